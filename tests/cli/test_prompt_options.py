"""A model whose template shows no tools is told them by every command, with --system and --chat-template."""

from dataclasses import replace
from pathlib import Path

import families
import pytest
from commands import refused, run

from palaestra.agents.local_model import open_tokenizer
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.cli import agents
from palaestra.reading import episode_files
from palaestra.record import read
from palaestra.trainers.run.saved_config import read_config

ENV, TEXT = "palaestra/Calculator-v0", "Think first."
BARE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PROMPT = f"<|im_start|>system\n{TEXT}\n\nAnswer with the number alone.\n\nYou can use tools."
CALL = '<calculator>{"expression": "value"}</calculator>'
NOTE = "stand in the system message, with an example call in tags"
LIMITS = ("--max-turn-tokens", "8", "--max-episode-tokens", "1900")
SMALL = ("--steps", "1", "--eval-tasks", "0", "--play.num-prompts", "2", "--play.num-generations", "2")
TAGS = ("--env-options", "format=tags")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare") / "model"
    tokenizer = families._tokenizer(BARE, families._CHATML_TOKENS, (), "<|im_end|>")
    export(tiny_model(len(tokenizer)), tokenizer, folder)
    return str(folder)


def prompts(paths, model):
    """The beginnings of the recorded rows as text, up to the question."""
    tokenizer = open_tokenizer(model)
    rows = [record.episode.rows[0] for path in paths for record in read(Path(path))]
    assert rows
    return {tokenizer.decode(row.ids.tolist()).partition("<|im_start|>user")[0] for row in rows}


def test_every_command_shows_the_same_prompt_and_records_what_it_shows(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    who = ("--model", model, "--system", TEXT)
    status, out, err = run(capsys, "play", ENV, *who, *LIMITS, *TAGS, "--seed", "1", "--show-prompt")
    assert (status, out.count(PROMPT), out.count(CALL), NOTE in err) == (0, 1, 1, True)
    shown = out[out.index("<|im_start|>") :].partition("<|im_start|>user")[0]

    status, _, err = run(capsys, "eval", ENV, *who, *LIMITS, *TAGS, "--tasks", "2", "--save", "eval.jsonl")
    assert (status, NOTE in err, prompts(["eval.jsonl"], model)) == (0, True, {shown})
    status, _, err = run(capsys, "collect", ENV, *who, *LIMITS, *TAGS, "--tasks", "2", "-o", "taught.jsonl")
    assert (status, NOTE in err, prompts(["taught.played.jsonl"], model)) == (1, True, {shown})
    refused(capsys, "system", "collect", ENV, "--model", model, *LIMITS, *TAGS, "--tasks", "2", "-o", "taught.jsonl")

    long = ("--play.max-turn-tokens", "8", "--play.max-episode-tokens", "1900")
    status, out, err = run(capsys, "train", ENV, *who, *TAGS, *SMALL, *long, "--run", "run")
    assert (status, NOTE in out + err) == (0, True), err
    assert prompts(episode_files([tmp_path / "run"]), model) == {shown}
    assert run(capsys, "audit", "run")[0] == 0
    # The trained model has the prompt with it, and is not given it twice.
    status, out, _ = run(capsys, "play", ENV, "--model", "run/model", *LIMITS, "--seed", "1", "--show-prompt")
    assert (status, out[out.index("<|im_start|>") :].partition("<|im_start|>user")[0]) == (0, shown)


def test_imitation_and_the_play_of_its_model_have_one_prompt(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "collect", ENV, *TAGS, "--tasks", "4", "-o", "taught.jsonl")[0] == 0
    few = ("--epochs", "1", "--max-row-tokens", "1900", "--batch-rows", "4")
    status, out, err = run(capsys, "sft", "taught.jsonl", "--model", model, "--system", TEXT, *few, "--run", "sft")
    assert (status, NOTE in out + err) == (0, True), err
    assert read_config(tmp_path / "sft").format == "tags"
    status, out, _ = run(capsys, "play", ENV, "--model", "sft/model", *LIMITS, "--seed", "1", "--show-prompt")
    assert (status, PROMPT in out, CALL in out) == (0, True, True)


def test_a_chat_template_of_a_file_replaces_the_models(model, tmp_path, capsys):
    other, wrong = tmp_path / "other.jinja", tmp_path / "wrong.jinja"
    other.write_text(BARE.replace("<|im_start|>' + m", "<|im_start|>role ' + m"))
    wrong.write_text("{% for %}")
    line = ("play", ENV, "--model", model, *LIMITS, "--seed", "1", "--show-prompt", "--chat-template")
    status, out, _ = run(capsys, *line, str(other))
    assert (status, "<|im_start|>role user" in out) == (0, True)
    refused(capsys, "wrong.jinja cannot be used", *line, str(wrong))


@pytest.mark.parametrize("command", [("eval", ENV), ("train", ENV), ("sft", "x.jsonl"), ("play", ENV)])
def test_prompts_are_changed_only_of_a_model_that_is_loaded(command, capsys):
    refused(capsys, "--system is for a model that is loaded", *command, "--system", TEXT)


def test_the_model_to_compare_with_keeps_its_own_prompt(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = []
    original = agents.open_agent

    def noted(options, *arguments, **settings):
        loaded.append((options.model, options.system))
        here = replace(options, model=model) if options.model == "org/name" else options
        return original(here, *arguments, **settings)

    monkeypatch.setattr(agents, "open_agent", noted)
    who = ("--model", model, "--system", TEXT)
    for name in ("org/name", "demonstrator"):
        assert run(capsys, "eval", ENV, *who, "--against", name, *LIMITS, *TAGS, "--tasks", "1", "--no-greedy")[0] == 0
    assert loaded == [(model, TEXT), ("org/name", ""), (model, TEXT), ("demonstrator", "")]
