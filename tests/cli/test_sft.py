"""`palaestra sft`: from the episodes of a teacher to a student that can be measured and trained further."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import families
import pytest
import torch
from commands import run_in_words as run

from palaestra import Ending
from palaestra.agents.local_model import load
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.cli import main
from palaestra.record import Record, read, to_line, write
from palaestra.trainers import sft as room

CALCULATOR, TWO_HOP = "palaestra/Calculator-v0", "palaestra/TwoHop-v0"
SHORT = ["--epochs", "4", "--batch-rows", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Thirty episodes of each of two environments, as `collect` leaves them."""
    folder = tmp_path_factory.mktemp("teacher")
    for name in ("calculator", "two-hop"):
        assert main(["collect", name, "--out", str(folder / f"{name}.jsonl"), "--tasks", "30"]) == 0
    return {name: folder / f"{name}.jsonl" for name in ("calculator", "two-hop")}


@pytest.fixture
def model(tmp_path):
    """The folder of a random model."""
    tokenizer = families.TOKENIZERS["qwen2.5"]
    export(families.stock_model("qwen3", len(tokenizer)), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_tiny_agent_is_made_from_the_episodes_themselves_and_its_loss_falls(capsys, files, tmp_path):
    folder = tmp_path / "run"
    status, shown, err = run(capsys, "sft", files["calculator"], "--run", folder, *SHORT)
    assert status == 0, err
    lines = metrics(folder)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]
    assert all({"loss", "num_tokens", "learning_rate"} <= set(line) for line in lines)
    told = json.loads((folder / "summary.json").read_text())
    assert (told["model"], told["steps"], told["epochs"]) == ("tiny", len(lines), 4)
    assert (told["episodes"], told["rows_truncated"], told["no_episodes"]) == (
        len(list(read(files["calculator"]))),
        0,
        0,
    )
    assert (told["loss_first"], told["loss_last"]) == (lines[0]["loss"], lines[-1]["loss"])
    asked = json.loads((folder / "config.json").read_text())
    assert (asked["optimizer"]["algorithm"], asked["epochs"], asked["files"]) == ("muon", 4, [str(files["calculator"])])
    assert str(folder) in shown
    local = load(str(folder / "model"), slots=1, device="cpu")
    spelled = local.tokenizer.encode("What is", add_special_tokens=False)
    assert len(spelled) < len("What is"), "its words are those of the episodes"


def test_the_student_can_be_measured_and_taught_again(capsys, files, tmp_path):
    assert run(capsys, "sft", files["two-hop"], "--run", tmp_path / "one", *SHORT)[0] == 0
    measure = ["--tasks", 2, "--max-turn-tokens", 8, "--device", "cpu"]
    status, _, err = run(capsys, "eval", "two-hop", "--model", tmp_path / "one" / "model", *measure)
    assert status == 0, err
    again = ["--model", tmp_path / "one" / "model", "--run", tmp_path / "two", "--optimizer.learning-rate", "1e-3"]
    status, _, err = run(capsys, "sft", files["two-hop"], *again, *SHORT)
    assert status == 0, err
    losses = [metrics(tmp_path / name) for name in ("one", "two")]
    assert losses[1][0]["loss"] < 0.9 * losses[0][0]["loss"], "it goes on from what it has learned"
    assert json.loads((tmp_path / "two" / "config.json").read_text())["optimizer"]["algorithm"] == "adamw"


def test_a_model_from_disk_reads_the_episodes_by_its_own_template(capsys, files, model, tmp_path):
    status, _, err = run(
        capsys,
        "sft",
        files["calculator"],
        "--model",
        model,
        "--run",
        tmp_path / "run",
        "--optimizer.learning-rate",
        "3e-3",
        *SHORT,
    )
    assert status == 0, err
    lines = metrics(tmp_path / "run")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[0]["learning_rate"] == pytest.approx(3e-3)
    before, after = (load(str(one), slots=1, device="cpu").model for one in (model, tmp_path / "run" / "model"))
    pairs = list(zip(before.parameters(), after.parameters(), strict=True))
    assert not any(torch.equal(one, other) for one, other in pairs), "every weight was taught"


def test_episodes_of_several_environments_are_one_lesson(capsys, files, tmp_path):
    status, _, shown = run(capsys, "sft", *files.values(), "--run", tmp_path / "run", *SHORT)
    assert status == 0, shown
    counts = [len(list(read(path))) for path in files.values()]
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["environments"] == dict(zip((CALCULATOR, TWO_HOP), counts, strict=True))
    assert f"{counts[0]} of {CALCULATOR}, {counts[1]} of {TWO_HOP}: {sum(counts)} rows" in shown


def test_a_folder_of_collections_gives_what_was_chosen_not_all_that_was_played(capsys, files, tmp_path):
    folder = files["calculator"].parent
    status, _, shown = run(capsys, "sft", folder, "--run", tmp_path / "run", *SHORT)
    assert status == 0, shown
    chosen = sum(len(list(read(path))) for path in files.values())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["episodes"] == chosen
    assert "calculator.played.jsonl is left out" in shown
    played = folder / "calculator.played.jsonl"
    status, _, shown = run(capsys, "sft", played, "--run", tmp_path / "all", *SHORT)
    assert json.loads((tmp_path / "all" / "summary.json").read_text())["episodes"] == 30
    assert "left out" not in shown


def test_damaged_lines_are_named_and_the_rest_is_imitated(capsys, files, tmp_path):
    records = list(read(files["two-hop"]))[:6]
    lines = [to_line(record) for record in records]
    changed = lines[1].replace(b'"answer"', b'"anzwer"', 1)
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(lines[0] + changed + b"no json\n" + b"".join(lines[2:5]) + lines[5][:-40])
    status, _, shown = run(capsys, "sft", path, "--run", tmp_path / "run", *SHORT)
    assert status == 0, shown
    for place in ("line 2: its digest", "line 3: it is not whole JSON", "line 7: it is not whole JSON"):
        assert place in shown
    assert "3 lines are no episodes; the rest is imitated" in shown
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (told["episodes"], told["no_episodes"]) == (4, 3)


def test_what_cannot_be_imitated_is_left_out_and_what_is_imperfect_is_said(capsys, files, tmp_path):
    good = list(read(files["two-hop"]))[:5]
    broken = [replace(r, episode=replace(r.episode, reward=None, parts={}, ending=Ending.BROKEN)) for r in good[:2]]
    cut = [replace(good[2], episode=replace(good[2].episode, ending=Ending.LENGTH_LIMIT))]
    wrong = [replace(good[3], episode=replace(good[3].episode, reward=0.0, parts={"success": 0.0}))]
    write(tmp_path / "e.jsonl", [*good, *broken, *cut, *wrong])
    status, _, shown = run(capsys, "sft", tmp_path / "e.jsonl", "--run", tmp_path / "run", *SHORT)
    assert status == 0
    assert "2 episodes are BROKEN; they are left out" in shown
    assert "1 episodes ran out of tokens; they are left out" in shown
    assert "1 episodes are short of full success, and are imitated too" in shown
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["episodes"] == 6


def test_rows_that_are_too_long_are_cut_and_counted(capsys, files, tmp_path):
    asked = ["sft", files["two-hop"], *SHORT, "--max-row-tokens"]
    status, _, shown = run(capsys, *asked, 40, "--run", tmp_path / "run")
    assert status == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["rows_truncated"] == 30
    assert told["rows"] == 30 - told["rows_emptied"]
    assert "30 rows are longer than 40 tokens; they were cut off" in shown
    status, _, err = run(capsys, *asked, 3, "--run", tmp_path / "short")
    assert status == 2
    assert "a larger max_row_tokens may help" in err


# What goes wrong.


def refused(capsys, tmp_path, *arguments):
    """What is said of a request that makes no folder."""
    status, _, err = run(capsys, "sft", *arguments, "--run", tmp_path / "refused", "--device", "cpu")
    assert status == 2
    assert "Traceback" not in err
    assert not (tmp_path / "refused").exists()
    return err


def test_files_without_an_episode_are_refused_with_what_is_there(capsys, files, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    assert "the files are empty" in refused(capsys, tmp_path, tmp_path / "empty.jsonl")
    good = next(read(files["two-hop"]))
    silent = replace(good.episode.attempt, messages=good.episode.attempt.messages[:2])
    write(tmp_path / "s.jsonl", [Record(TWO_HOP, replace(good.episode, attempt=silent))] * 2)
    assert "2 have no turn of an agent" in refused(capsys, tmp_path, tmp_path / "s.jsonl")
    (tmp_path / "n.jsonl").write_text("nothing\n")
    assert "1 lines are no episodes" in refused(capsys, tmp_path, tmp_path / "n.jsonl")
    assert "cannot be read" in refused(capsys, tmp_path, tmp_path / "nowhere.jsonl")
    assert "name one or more episode files" in refused(capsys, tmp_path)


def test_a_template_that_cannot_show_tools_is_refused(capsys, files, tmp_path):
    template = (
        "{%- for message in messages -%}{%- if message.role not in ('user', 'assistant') -%}"
        "{{- raise_exception('only user and assistant') -}}{%- endif -%}"
        "{{- '<|im_start|>' + message.role + message.content + '<|im_end|>' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant' -}}{%- endif -%}"
    )
    tokenizer = families._tokenizer(template, families._CHATML_TOKENS, families._CHATML_WORDS, "<|im_end|>")
    export(tiny_model(len(tokenizer), layers=1), tokenizer, tmp_path / "model")
    for name in ("calculator", "two-hop"):
        err = refused(capsys, tmp_path, files[name], "--model", tmp_path / "model")
        assert f"{name}.jsonl, episode 1: the student's chat template cannot show" in err
        assert "only user and assistant" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "/nowhere/at/all"], "no folder '/nowhere/at/all'"),
        (["--epochs", "0"], "epochs is 0"),
        (["--optimizer.learning-rate", "nan"], "learning_rate is nan"),
        (["--optimizer.algorithm", "sgd"], "muon"),
        (["--epoch", "3"], "--epochs"),
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_refused_in_a_sentence(capsys, files, tmp_path, arguments, said):
    assert said in refused(capsys, tmp_path, files["calculator"], *arguments)


def test_help_shows_the_defaults_of_the_model_that_is_asked_for(capsys):
    for given, rate in (
        ([], "0.004"),
        (["--model", "a/b"], "5e-05"),
        (["-m", "a/b"], "5e-05"),
        (["--model=a/b"], "5e-05"),
    ):
        status, shown, _ = run(capsys, "sft", *given, "--help")
        assert status == 0
        assert f"--optimizer.learning-rate FLOAT AdamW's. (default: {rate})" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_and_ends_as_one_that_was_left_alone(capsys, files, tmp_path, monkeypatch, number):
    real = room.Imitation.step

    def step(self, rate=None):
        if self.learner.step == 9:
            os.kill(os.getpid(), number)
        return real(self, rate)

    folder = tmp_path / "a run"
    with monkeypatch.context() as patch:
        patch.setattr(room.Imitation, "step", step)
        status, _, err = run(capsys, "sft", files["two-hop"], "--run", folder, *SHORT)
    assert status == 128 + number
    assert f"step 9 is saved; go on with: palaestra sft --resume '{folder}'" in err
    load(str(folder / "checkpoints" / "step-000009" / "model"), slots=1, device="cpu")
    assert not (folder / "model").exists()
    assert len(metrics(folder)) == 9
    status, _, err = run(capsys, "sft", "--resume", folder)
    assert status == 0, err
    assert "going on after step 9" in err
    assert run(capsys, "sft", files["two-hop"], "--run", tmp_path / "whole", *SHORT)[0] == 0
    assert not list(tmp_path.rglob("*.part"))
    weights = [(one / "model" / "model.safetensors").read_bytes() for one in (folder, tmp_path / "whole")]
    assert weights[0] == weights[1]
    assert [line["loss"] for line in metrics(folder)] == [line["loss"] for line in metrics(tmp_path / "whole")]
    assert "is finished: 4 epochs" in run(capsys, "sft", "--resume", folder)[2]


def test_an_interrupt_before_the_first_step_leaves_the_way_on(capsys, files, tmp_path, monkeypatch):
    monkeypatch.setattr(room.Imitation, "step", lambda self, rate=None: os.kill(os.getpid(), signal.SIGINT))
    status, _, err = run(capsys, "sft", files["two-hop"], "--run", tmp_path / "run", *SHORT)
    assert status == 130
    assert f"no step is saved yet: palaestra sft --resume {tmp_path / 'run'} begins again with the same options" in err


def test_a_finished_run_grows_by_epochs(capsys, files, tmp_path):
    run(capsys, "sft", files["two-hop"], "--run", tmp_path / "run", "--optimizer.lr-schedule", "constant", *SHORT)
    status, _, err = run(capsys, "sft", "--resume", tmp_path / "run", "--epochs", 5)
    assert status == 0, err
    assert len(metrics(tmp_path / "run")) == json.loads((tmp_path / "run" / "summary.json").read_text())["steps"]


def test_a_rate_that_is_too_high_ends_in_a_sentence(capsys, files, model, tmp_path):
    asked = ["sft", files["two-hop"], "--model", model, "--run", tmp_path / "run", "--optimizer.warmup-share", "0"]
    status, _, err = run(capsys, *asked, "--optimizer.learning-rate", "1e30", *SHORT)
    assert status == 2
    assert "so all were skipped; a lower learning_rate" in err


def test_help_does_not_wait_for_torch():
    code = "import sys; from palaestra.cli import main\ntry: main(['sft', '--help'])\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
