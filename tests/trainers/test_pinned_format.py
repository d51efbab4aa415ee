"""Training, evaluation, collection and imitation use the call format of the model at hand, and write that down."""

import shutil

import families
import pytest

import palaestra
from palaestra import formats
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.cli import main
from palaestra.errors import ConfigError
from palaestra.record import read
from palaestra.trainers import sft
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.config.sft_config import tiny_sft_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.saved_config import read_config, written_config
from palaestra.trainers.setup.cold_start import demonstrate
from palaestra.trainers.setup.open_learner import open_learner
from palaestra.trainers.setup.open_run import open_arena, settled

ENV = "palaestra/Calculator-v0"
LLAMA3 = families.QWEN25.replace(
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}",
    "{{- '<|im_start|>' + message.role + '\\n' -}}{%- for call in message.tool_calls or [] -%}"
    "{{- '{\"name\": \"' + call.function.name + '\", \"parameters\": ' + (call.function.arguments | tojson) + '}' -}}"
    "{%- endfor -%}{{- message.content + '<|im_end|>\\n' -}}",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a random model whose template writes llama3."""
    folder = tmp_path_factory.mktemp("llama3")
    tokenizer = families._tokenizer(LLAMA3, families._CHATML_TOKENS, (), "<|im_end|>")
    export(tiny_model(len(tokenizer)), tokenizer, folder)
    return folder


def test_a_run_is_pinned_when_its_model_is_opened_and_goes_on_so(model, tmp_path):
    config = tiny_config(ENV, model=str(model), device="cpu", slots=2)
    with Run(tmp_path / "run", config) as run:
        open_learner(run)
        assert run.config.env.env_options == ("format=llama3",)
        assert any("llama3" in note for note in run.notes)
        arena = open_arena(run.config)
        assert arena._author.author.format == "llama3"
        arena.close()
    assert read_config(tmp_path / "run").env.env_options == ("format=llama3",)
    with Run.reopened(tmp_path / "run", config) as run:
        assert run.config.env.env_options == ("format=llama3",)
    other = tiny_config(ENV, model=str(model), device="cpu", slots=2, env_options=("format=glm",))
    with pytest.raises(ConfigError, match=r"env\.env_options was"):
        Run.reopened(tmp_path / "run", other)


def test_a_run_whose_format_was_chosen_keeps_it(model, tmp_path):
    config = tiny_config(ENV, model=str(model), device="cpu", slots=2, env_options=("format=glm",))
    with Run(tmp_path / "run", config) as run:
        open_learner(run)
        assert run.config == settled(config, tmp_path)[0]
        assert run.notes == []


@pytest.mark.parametrize("command", ["eval", "collect"])
def test_what_is_played_by_a_model_records_its_format(model, tmp_path, capsys, command):
    played = tmp_path / ("played.jsonl" if command == "eval" else "kept.played.jsonl")
    out = ["--save", str(played), "--no-greedy"] if command == "eval" else ["--out", str(tmp_path / "kept.jsonl")]
    limits = ["--max-turn-tokens", "8", "--max-episode-tokens", "800", "--tasks", "2", "--device", "cpu"]
    main([command, ENV, "--model", str(model), *limits, *out])
    said = capsys.readouterr().err
    assert "calls are read as llama3, as the model's chat template writes them" in " ".join(said.split())
    assert [record.options for record in read(played)] == [{"split": command_split(command), "format": "llama3"}] * 2
    assert main(["replay", str(played)]) == 0


def command_split(command):
    return "eval" if command == "eval" else "train"


def test_two_agents_are_each_read_as_they_write(model, tmp_path):
    played = tmp_path / "played.jsonl"
    limits = ["--max-turn-tokens", "8", "--max-episode-tokens", "800", "--tasks", "3", "--device", "cpu"]
    assert main(["eval", ENV, "-m", str(model), "--against", "demonstrator", *limits, "--save", str(played)]) == 0
    found = {record.agent: (record.options.get("format"), record.episode.reward) for record in read(played)}
    assert found == {str(model): ("llama3", 0.0), "demonstrator": (None, 1.0)}


def test_a_student_imitates_calls_as_its_template_writes_them(model, tmp_path, capsys):
    lessons, folder = tmp_path / "lessons.jsonl", tmp_path / "taught"
    assert main(["eval", ENV, "--tasks", "3", "--save", str(lessons)]) == 0
    learn = ["sft", str(lessons), "--model", str(model), "--epochs", "1", "--device", "cpu", "--run", str(folder)]
    assert main(learn) == 0
    assert "the calls of 3 episodes are written anew as llama3" in " ".join(capsys.readouterr().err.split())
    assert read_config(folder).format == "llama3"


def test_a_student_learns_another_format_where_it_is_told_to(model, tmp_path, monkeypatch):
    seen = []
    inner = sft.sft_rows
    monkeypatch.setattr(sft, "sft_rows", lambda *given, **how: seen.append(given[1]) or inner(*given, **how))
    lessons = tmp_path / "lessons.jsonl"
    main(["eval", ENV, "--tasks", "2", "--env-options", "format=glm", "--save", str(lessons)])
    main(["sft", str(lessons), "-m", str(model), "--epochs", "1", "--format", "deepseek", "--run", str(tmp_path / "r")])
    assert seen[0]
    for _, episode in seen[0]:
        turn = next(m["content"] for m in episode.attempt.messages if m["role"] == "assistant")
        (call,) = formats.get("deepseek").parse(turn, episode.tools).calls
        assert call == formats.ParsedCall("calculator", episode.attempt.calls[0].arguments)


def test_the_tiny_agent_is_raised_in_the_format_that_was_chosen():
    arena = palaestra.arena(ENV, 8, format="glm")
    played = demonstrate(arena, palaestra.demonstrator(ENV), 12, 1.0, 0, format="glm")
    arena.close()
    assert {episode.reward for episode in played} == {1.0}
    assert all("<arg_key>" in episode.attempt.messages[-3]["content"] for episode in played)


@pytest.mark.parametrize(
    "config",
    [tiny_config("x", env_options=("tasks=x", "format=glm")), tiny_sft_config(format="glm")],
    ids=["grpo", "sft"],
)
def test_a_runs_model_is_read_as_it_was_trained_to_write(model, tmp_path, config):
    shutil.copytree(model, tmp_path / "run" / "model")
    (tmp_path / "run" / "config.json").write_text(written_config(config))
    played = tmp_path / "played.jsonl"
    limits = ["--max-turn-tokens", "8", "--max-episode-tokens", "800", "--tasks", "1", "--device", "cpu"]
    main(["eval", ENV, "--model", str(tmp_path / "run" / "model"), *limits, "--save", str(played), "--no-greedy"])
    assert [record.options["format"] for record in read(played)] == ["glm"]
