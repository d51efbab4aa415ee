"""A run that is killed or terminated again and again ends as the one that nobody touched: the same curve, evaluations
and weights, no litter.

Two of three ends are SIGKILL, where nothing is caught and nothing tidied up, the others SIGTERM. About half of them
come at a random moment, the others when the folder shows that a checkpoint, an episode file or a line of metrics is
being written.
"""

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import families
import pytest

from palaestra.record import read
from palaestra.trainers.run.checkpoint import newest

pytestmark = pytest.mark.prove
KILLS = 20
KINDS = ("moment", "moment", "moment", "checkpoints", "checkpoints", "episodes", "metrics")
KEPT = ("model/model.safetensors", "best/model.safetensors", "best/measured.json", "measured.jsonl")
MOST_RUNS = 60
STEPS = 12
DEADLINE = 900.0
MARK = "PALAESTRA_TEST_KILLING"
OPTIONS = {
    "steps": STEPS,
    "play.num-prompts": 12,
    "play.num-generations": 8,
    "optimizer.num-mini-batches": 4,
    "optimizer.learning-rate": 1e-3,
    "play.slots": 96,
    "play.max-turn-tokens": 40,
    "play.max-episode-tokens": 256,
    "recipe.shaping.max-completion-length": 12,
    "save.checkpoint-every": 2,
    "save.recorded-groups": 12,
    "eval-tasks": 32,
    "eval.eval-steps": 4,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a random agent."""
    return families.random_agent(tmp_path_factory.mktemp("model"))


_WARM = """
import json, os, sys
import palaestra.cli.results, palaestra.envs, palaestra.trainers.training
from palaestra.cli import main
for line in sys.stdin:
    arguments, log = json.loads(line)
    child = os.fork()
    if not child:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream, place in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
            os.dup2(stream, place)
        os.setsid()
        os._exit(main(arguments))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Warm:
    """A process that has loaded all libraries and forks one that runs the command: a start takes no seconds then."""

    def __init__(self, log):
        self.log, self.child, self.status = log, 0, None
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WARM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, MARK: str(log)},
        )

    def start(self, folder, model):
        """Begin the run in a folder, or go on with it if there is one."""
        if (folder / "config.json").exists():
            arguments = ["train", "--resume", str(folder)]
        else:
            given = OPTIONS | {"model": model, "run": folder}
            pairs = (str(part) for name, value in given.items() for part in (f"--{name}", value))
            arguments = ["train", "two-hop", "--play.ordered", *pairs]
        self.process.stdin.write(json.dumps([arguments, str(self.log)]).encode() + b"\n")
        self.status, self.child = None, int(self.process.stdout.readline())

    def running(self, seconds=0.0):
        """Whether the command still runs, so many seconds later."""
        if self.status is None and select.select([self.process.stdout], [], [], seconds)[0]:
            self.status = int(self.process.stdout.readline())
        return self.status is None

    def left_running(self):
        """Processes that descend from this one."""
        mark, found = f"{MARK}={self.log}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # It is gone.
                continue
        return set(found) - {self.process.pid}


@pytest.fixture
def warm(tmp_path):
    command = Warm(tmp_path / "log")
    yield command
    if command.running():
        os.kill(command.child, signal.SIGKILL)
    command.process.stdin.close()
    command.process.wait(DEADLINE)
    command.process.stdout.close()


def wanted_after(hit):
    """What the next kill may be aimed at: whatever, then what none has met. A write is soon over, and may be missed."""
    return KINDS if len(hit) < KILLS else tuple(kind for kind in dict.fromkeys(KINDS) if kind not in hit)


def finish(warm, folder, model):
    """A run that is left alone ends well; returns how long it took."""
    warm.start(folder, model)  # The first start waits until all libraries are loaded.
    began = time.monotonic()
    assert not warm.running(DEADLINE), "it hangs"
    assert warm.status == 0, warm.log.read_text()
    return time.monotonic() - began


def writings(folder, kind):
    """What the folder shows of a write that is under way or just done; each write shows something else."""
    if kind == "metrics":
        metrics = folder / "metrics.jsonl"
        return {metrics.stat().st_size} if metrics.exists() and metrics.stat().st_size else set()
    return {path.name for path in (folder / kind).glob("*.part")}


def killed(warm, folder, model, rng, longest, kinds):
    """Start the command and kill it; returns what the kill was aimed at, or None if the run had ended before."""
    kind = rng.choice(kinds)
    moment, wanted, pause = rng.uniform(0.0, 0.6 * longest), rng.randint(1, 2), rng.uniform(0.0, 0.02)
    left, seen = writings(folder, kind), set()
    warm.start(folder, model)
    began = time.monotonic()
    while warm.running(0.0005):
        assert time.monotonic() - began < DEADLINE, "it hangs"
        if kind == "moment" and time.monotonic() - began >= moment:
            break
        if kind != "moment":
            shown = writings(folder, kind)
            left &= shown  # What an earlier kill has left stays until the run removes it.
            seen |= shown - left
            if len(seen) >= wanted:
                time.sleep(pause)
                break
    if not warm.running():
        assert warm.status == 0, warm.log.read_text()
        return None
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    with contextlib.suppress(ProcessLookupError):  # It has ended by itself.
        os.kill(warm.child, number)
    assert not warm.running(DEADLINE)
    assert warm.status in (-number, 128 + number, 0), warm.log.read_text()
    return kind if warm.status else None


def curve(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "time" not in key} for line in lines]


def episodes(folder):
    """Every episode that was written down, by file."""
    return {
        path.name: [
            (r.episode.start, r.episode.attempt, [row.ids.tolist() for row in r.episode.rows]) for r in read(path)
        ]
        for path in (folder / "episodes").iterdir()
    }


def files(folder):
    """Return the names of all files, with the older checkpoint under one name: SIGTERM saves the step it interrupts, so
    which step comes before the last one depends on the moment.
    """
    older, last = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert last == f"step-{STEPS:06}"
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name.replace(f"checkpoints/{older}/", "checkpoints/older/") for name in names)


def test_twenty_kills_change_nothing(warm, model, tmp_path):
    whole, rng, hit, runs = tmp_path / "whole", random.Random(5), [], 0
    longest = finish(warm, whole, model)
    assert sum(line["optimizer_steps"] for line in curve(whole)) >= STEPS, "nothing was learned, so nothing is shown"
    while wanted := wanted_after(hit):
        assert runs < MOST_RUNS, f"no kill came while there was one of {wanted} to be seen"
        folder, runs = tmp_path / f"killed-{runs}", runs + 1
        while wanted and (kind := killed(warm, folder, model, rng, longest, wanted)) is not None:
            hit.append(kind)
            wanted = wanted_after(hit)
            until = time.monotonic() + DEADLINE
            while left := warm.left_running():
                assert time.monotonic() < until, left
                time.sleep(0.01)
        if not (folder / "summary.json").exists():
            finish(warm, folder, model)
        assert curve(folder) == curve(whole)
        assert episodes(folder) == episodes(whole)
        assert files(folder) == files(whole)
        for name in (*KEPT, f"checkpoints/step-{STEPS:06}/training.safetensors"):
            assert (folder / name).read_bytes() == (whole / name).read_bytes()
        ends = [json.loads((one / "summary.json").read_text()) for one in (folder, whole)]
        assert all(ends[0][name] == ends[1][name] for name in ("before", "after", "best", "curve"))
        found, faults = newest(folder / "checkpoints")
        assert (found.step, faults) == (STEPS, {})
    assert set(hit) == set(KINDS)
