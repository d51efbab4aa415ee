"""A job that loses a rank ends in time with an error that says so, leaves no process behind, and goes on from its last
checkpoint. The jobs are real: torchrun, two processes, gloo, the CPU. No GPU has met them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from families import random_agent
from going import on, require_same_untimed
from serving_vllm import stand_in

from palaestra.trainers.run.checkpoint import last_step
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.saved_config import read_config

pytestmark = pytest.mark.prove
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STILL = ("--play.no-ordered", "--play.max-staleness", "1", "--optimizer.learning-rate", "0")
"""The first rank plays ahead, alone. Weights that do not change leave nothing to time, so a run can be repeated."""
PROCESS = ("--engine.kind", "process", *STILL)
VLLM = ("--engine.kind", "vllm", "--engine.python", sys.executable, *STILL)
MARK = "PALAESTRA_TEST_LOST_RANKS"


class Job:
    """A run on the command line, by two ranks, that is long enough to be disturbed."""

    def __init__(self, folder, model, *more):
        options = "--steps 400 --play.num-prompts 2 --play.num-generations 4 --play.slots 8 --play.max-turn-tokens 12"
        rest = "--play.max-episode-tokens 256 --eval-tasks 0 --save.checkpoint-every 2"
        command = ["-m", "--", "palaestra", "train", "two-hop", "--model", model, "--run", str(folder)]
        self.folder, self.mark = folder, f"{MARK}={folder}".encode()
        self.process = subprocess.Popen(
            [*TORCHRUN, *command, *options.split(), *rest.split(), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: str(folder)},
        )

    def __enter__(self):
        """Wait until it has taken some steps."""
        deadline, metrics = time.monotonic() + 120, self.folder / "metrics.jsonl"
        while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 3):
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        first = (self.folder / "lock").read_text().split()[1]
        assert first in children and len(children) == 2
        self.first = int(first)
        self.second = next(int(child) for child in children if child != first)
        return self

    def __exit__(self, *problem):
        for process in self.left_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.communicate()

    def ended(self, within):
        """Return its output after it has ended."""
        return self.process.communicate(timeout=within)[0]

    def left_running(self):
        """Return the processes of the job: itself, its ranks, and all that these have started."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # It is gone.
                if self.mark in path.read_bytes().split(b"\0"):
                    found.add(int(path.parent.name))
        return found


@pytest.mark.parametrize(
    ("number", "first", "engine"),
    [
        (signal.SIGSTOP, False, ()),
        (signal.SIGKILL, False, PROCESS),
        (signal.SIGKILL, False, VLLM),
        (signal.SIGKILL, True, VLLM),
    ],
    ids=[
        "hangs",
        "killed-that-learns-only",
        "killed-that-learns-only-with-servers",
        "killed-that-plays-ahead-with-servers",
    ],
)
def test_a_rank_that_is_lost_ends_the_job_in_time_and_the_run_goes_on_without_it(
    tmp_path, monkeypatch, number, first, engine
):
    """One that hangs is given up after its timeout; torchrun would kill it 30 seconds later, and here we do."""
    monkeypatch.setenv("PYTHONPATH", str(stand_in(tmp_path / "package")), prepend=os.pathsep)
    model, run = str(random_agent(tmp_path / "model")), tmp_path / "run"
    hangs = number == signal.SIGSTOP
    patience = 40 if hangs else 60  # Slower than that two ranks are not, on a busy machine.
    with Job(run, model, "--scale.rank-timeout", str(patience), *engine) as job:
        assert len(job.left_running()) >= 3 + bool(engine)
        os.kill(job.first if first else job.second, number)
        if hangs:
            deadline = time.monotonic() + 120
            while job.first in job.left_running():
                assert time.monotonic() < deadline, "the other rank waits for one that hangs"
                time.sleep(0.05)
            os.kill(job.second, signal.SIGKILL)
        output = job.ended(60)
        assert job.process.returncode
        assert "another rank of this job has ended, or did not answer in time (scale.rank_timeout)" in output
        assert "go on with: palaestra train --resume" in output
        deadline = time.monotonic() + 60
        while left := job.left_running():
            assert time.monotonic() < deadline, f"{left} still run"
            time.sleep(0.05)
    saved = last_step(run / "checkpoints")
    assert saved >= 2
    with closing(on(run, read_config(run), steps=1).agent.engine):
        assert last_step(run / "checkpoints") == saved + 1
    if engine:
        with closing(on(tmp_path / "whole", read_config(run), saved + 1).agent.engine):
            require_same_untimed(run, tmp_path / "whole")


def test_an_interrupt_saves_the_same_step_on_every_rank(tmp_path):
    with Job(tmp_path / "run", str(random_agent(tmp_path / "model"))) as job:
        os.kill(job.process.pid, signal.SIGINT)
        output = job.ended(60)
    with Run.read(tmp_path / "run") as run:
        step = len(run.metrics)
    assert last_step(tmp_path / "run" / "checkpoints") == step
    assert output.count(f"interrupted; step {step} is saved") == 2
