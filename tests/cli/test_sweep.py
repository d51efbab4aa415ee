"""`palaestra analyse` and `palaestra sweep` as they are typed: one table, what is refused, stopping and going on."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import families
import pytest
from commands import refused, run, words

from palaestra.agents.local_model import serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.record import read
from palaestra.trainers.experiments import sweep as trainers_sweep
from palaestra.trainers.run.folder import Run
from palaestra.trainers.setup import open_learner
from palaestra.trainers.setup.cold_start import Pupil

ROOT = Path(__file__).parents[2]
OPTIONS = (
    "--play.num-prompts 2 --play.num-generations 4 --optimizer.num-mini-batches 2 --optimizer.learning-rate 1e-2 "
    "--play.slots 16 --play.max-turn-tokens 6 --play.max-episode-tokens 256 --play.ordered --eval-tasks 0 "
    "--recipe.shaping.max-completion-length 10 --save.checkpoint-every 1 --device cpu"
)
EPSILON = "recipe.loss.epsilon_high=0.28,0.315,0.35"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a random agent."""
    return families.random_agent(tmp_path_factory.mktemp("model"), layers=1)


def command(model, folder, *more, steps=1, over=EPSILON, seeds="0-1"):
    chosen = ["--model", model, "--steps", steps, "--over", over, "--seeds", seeds, "--run", folder]
    return [*map(str, ["sweep", "two-hop", *OPTIONS.split(), *chosen, *more])]


@pytest.fixture
def at_hand(monkeypatch):
    """Runs of a sweep in this process, one after the other: what a process of its own costs is proved elsewhere."""
    played = []

    class Ended:
        def __init__(self, target, args):
            self.folder, self.config = args

        def start(self):
            played.append(Path(self.folder).relative_to(Path(self.folder).parents[1]).as_posix())
            if "FAIL" not in os.environ:
                with Run.reopened(Path(self.folder), self.config) as record:
                    trainers_sweep.deque(trainers_sweep.train(record), 0)

        def is_alive(self):
            return False

        terminate = join = lambda self: None

    class Context:
        Process = Ended

    monkeypatch.setattr(trainers_sweep.multiprocessing, "get_context", lambda _: Context)
    monkeypatch.setattr(trainers_sweep, "_LOOK_SECONDS", 0.0)
    return played


def test_f26_a_sweep_of_epsilon_high_has_three_values_the_same_seeds_and_data_and_one_table(
    capsys, model, tmp_path, at_hand
):
    status, out, err = run(
        capsys, *command(model, tmp_path / "s", "--json", tmp_path / "s.json", "--eval-tasks", "1", seeds="0")
    )
    assert status == 0, err
    assert at_hand == [f"epsilon-high_{value}/seed-0" for value in ("0.28", "0.315", "0.35")]
    shown = words(out)
    assert out.count("held-out, after") == 1
    assert all(value in shown for value in ("0.28", "0.315", "0.35"))
    found = json.loads((tmp_path / "s.json").read_text())
    assert [(group["name"], len(group["runs"])) for group in found["groups"]] == [
        (f"epsilon_high {value}", 1) for value in ("0.28", "0.315", "0.35")
    ]
    records = [Run.read(tmp_path / "s" / name) for name in at_hand]
    assert [record.config.recipe.loss.epsilon_high for record in records] == [0.28, 0.315, 0.35]
    files = [tmp_path / "s" / name / "episodes" / "step-000001.jsonl" for name in at_hand]
    starts = [[one.episode.start for one in read(path)] for path in files]
    assert starts[0] == starts[1] == starts[2]
    # Finished runs are not repeated; more seeds are more runs, and pair with those of the first arm.
    at_hand.clear()
    status, out, err = run(capsys, *command(model, tmp_path / "s", "--json", tmp_path / "s.json", "--eval-tasks", "1"))
    assert (status, [name[-1] for name in at_hand]) == (0, ["1"] * 3)
    assert "3 of 6 runs are finished already" in words(err)
    beside = json.loads((tmp_path / "s.json").read_text())["groups"][1]["beside_first"]["entropy"]
    assert (beside["runs"], beside["low"] <= beside["value"] <= beside["high"]) == (2, True)
    assert "±" in out
    # What was begun with other settings is told before anything runs.
    refused(
        capsys,
        "optimizer.num_mini_batches was 2 and is 1",
        *command(model, tmp_path / "s", "--eval-tasks", "1"),
        "--optimizer.num-mini-batches",
        "1",
    )


def test_a_sweep_grows_by_steps_where_a_run_may(capsys, model, tmp_path, at_hand):
    one = {"over": "recipe.loss.epsilon-high=0.3", "seeds": "0"}
    assert run(capsys, *command(model, tmp_path / "s", **one))[0] == 0
    assert run(capsys, *command(model, tmp_path / "s", **one, steps=2))[0] == 0
    assert steps(tmp_path / "s" / "epsilon-high_0.3" / "seed-0") == 2


def test_tiny_agents_that_are_raised_alike_are_raised_once_a_seed(capsys, tmp_path, at_hand, monkeypatch):
    raised = []

    def cold_started(config, model, on_progress):
        raised.append(config.seed)
        made = tiny_model(len(families.TOKENIZERS["tiny"]), layers=1, seed=config.seed)
        return Pupil(serve(made, families.TOKENIZERS["tiny"], slots=4), 1, 1, ())

    monkeypatch.setattr(open_learner, "cold_started", cold_started)
    status, _, err = run(capsys, *command("tiny", tmp_path / "s", over="recipe=grpo-tcr,dr-grpo"))
    assert status == 0, err
    assert raised == [0, 1]
    starts = [(tmp_path / "s" / name / "start" / "model.safetensors").read_bytes() for name in at_hand]
    assert len(starts) == 4
    assert starts[0] == starts[2] != starts[1] == starts[3]


def test_a_run_that_fails_is_told_and_ends_no_other(capsys, model, tmp_path, at_hand, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    status, out, err = run(capsys, *command(model, tmp_path / "s", seeds="3"))
    assert status == 1
    assert len(at_hand) == 3
    assert words(err).count("failed and the others go on") == 3
    assert "seed 3 failed: it said nothing" in words(out)


@pytest.mark.parametrize(("over", "said"), [
    ("recipe.loss.epsilon-hig=1,2", "did you mean --recipe.loss.epsilon-high"),
    ("recipe.loss.epsilon-high=-1", "epsilon_high is -1"),
    ("recipe.loss.epsilon-high", "expected SETTING=VALUE,VALUE"), ("steps=1,,2", "expected SETTING=VALUE,VALUE"),
    ("steps=1,1", "a value stands twice"), ("seed=1,2", "seeds are named with --seeds"),
])  # fmt: skip
def test_what_cannot_be_swept_over_is_refused_before_a_run_begins(capsys, model, tmp_path, over, said):
    refused(capsys, said, *command(model, tmp_path / "s", over=over))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("more", "said"), [
    (["--seeds", "0..4"], "seeds has '0..4'"), (["--at-once", "0"], "at_once is 0"),
    (["--plot", "curves.txt"], ".png, .svg, .pdf"), (["--resume", "x"], "run the same command"),
    (["--seeds", "0-2000"], "are too many"),
])  # fmt: skip
def test_bad_options_of_a_sweep_are_refused(capsys, model, tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    refused(capsys, said, *command(model, tmp_path / "s"), *more)


def test_analyse_shows_what_eval_has_saved_and_collect_has_kept(capsys, tmp_path):
    played, kept = tmp_path / "played.jsonl", tmp_path / "kept.jsonl"
    assert run(capsys, "eval", "two-hop", "--tasks", 3, "--samples", 2, "--save", played)[0] == 0
    assert run(capsys, "collect", "two-hop", "--tasks", 3, "--out", kept)[0] == 0
    status, out, err = run(capsys, "analyse", played, kept, "--json", tmp_path / "a.json")
    assert status == 0, err
    assert "played" in out
    assert "1.000 [." in out, "an interval over tasks"
    first, second = json.loads((tmp_path / "a.json").read_text())["groups"]
    assert first["figures"]["tools/call_frequency"]["value"] > 0
    assert second["figures"]["rewards/success/mean"]["value"] == 1
    assert "modes/deliberative" not in first["figures"], "a script has no tokens"
    refused(capsys, "name runs' folders", "analyse")


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "palaestra", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def steps(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def until(condition, seconds=500.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.mark.prove
def test_a_sweep_that_is_stopped_and_then_killed_goes_on_without_repeating_what_is_done(model, tmp_path):
    arguments = command(model, tmp_path / "s", over="recipe.loss.epsilon-high=0.28,0.35", seeds="0", steps=20)
    first, second = (tmp_path / "s" / f"epsilon-high_{value}" / "seed-0" for value in ("0.28", "0.35"))

    def ended_after(taken, signal_number):
        """Start the command and end it once the second run has taken so many steps; return its status and words."""
        process = start(arguments)
        try:
            until(lambda: steps(second) >= taken)
            working = children(process.pid)
            os.kill(process.pid, signal_number)
            said = process.communicate(timeout=300)[0]
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in working), 30)
        assert (first / "summary.json").exists()
        assert not (second / "summary.json").exists()
        return process.returncode, said

    status, said = ended_after(2, signal.SIGINT)
    assert status == 130
    assert "the same command goes on" in said
    finished, before = (first / "summary.json").stat().st_mtime_ns, steps(second)
    status, _ = ended_after(before + 1, signal.SIGKILL)
    assert status == -signal.SIGKILL
    lines = (second / "metrics.jsonl").read_text().splitlines()[:-1]
    again = start(arguments)
    said = again.communicate(timeout=500)[0]
    assert again.returncode == 0, said
    assert "1 of 2 runs are finished already" in said
    assert (first / "summary.json").stat().st_mtime_ns == finished
    assert "going on after step" in (second / "log.txt").read_text()
    assert (second / "metrics.jsonl").read_text().splitlines()[: len(lines)] == lines
    assert steps(second) == 20
