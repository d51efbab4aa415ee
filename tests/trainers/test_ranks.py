"""Several ranks learn what one learns, their checkpoints are one another's, and none waits for ever.

The jobs are real: torchrun, two processes, gloo, the CPU. No GPU has met them.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import families
import pytest
import torch
from batches import same
from going import STEPS, on, random_agent, run_of, state, step_folder, steps_kept, told
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from palaestra import ConfigError
from palaestra.trainers.batch import Scored
from palaestra.trainers.opening import check_ranks
from palaestra.trainers.sampling.share import Share
from palaestra.trainers.sampling.uniform import Even, InOrder
from palaestra.trainers.scale.ranks import Ranks

BF16 = {"precision": "bfloat16", "gradient_checkpointing": True}
ALL_OF_IT = {
    "recipe": "grpo-t",
    "beta": 0.1,
    "lr_schedule": "constant",
    "correction": {"name": "truncated"},
    "micro_batch_tokens": 60,
    "gradient_checkpointing": True,
}


@pytest.mark.parametrize("parts", [1, 2, 5, 6])
def test_every_part_counts_once_and_ranks_make_as_many_passes(parts):
    sizes = list(range(10, 10 + parts))
    by_rank = [list(Ranks(rank, 3).share(sizes, lambda size: size)) for rank in range(3)]
    assert len({len(own) for own in by_rank}) == 1
    assert sorted(size for own in by_rank for size, counts in own if counts) == sizes
    for of_one_pass in zip(*by_rank, strict=True):  # All wait for the largest.
        assert max(size for size, _ in of_one_pass) - min(size for size, _ in of_one_pass) < 3


class Talking(Ranks):
    """Ranks that are threads of this process."""

    def __init__(self, rank, count, table, barrier):
        for name, value in {"rank": rank, "count": count, "group": (table, barrier)}.items():
            object.__setattr__(self, name, value)

    def gathered(self, own):
        table, barrier = self.group
        table[self.rank] = own
        barrier.wait(10)
        found = [table[rank] for rank in range(self.count)]
        barrier.wait(10)
        return found


@pytest.mark.parametrize(("count", "prompts", "seats"), [(2, 4, ()), (3, 4, ()), (2, 3, ("a", "b"))])
def test_ranks_play_every_episode_once_and_have_the_same_batches(count, prompts, seats):
    table, barrier, made, played = {}, threading.Barrier(count), {}, Counter()

    def sampler():
        return InOrder(Even("env", 1000, prompts, 0), prompts, 4, seats, frozenset(seats))

    def play(rank):
        share, batches = Share(sampler(), Talking(rank, count, table, barrier), seats), []
        while len(batches) < 3:
            while (start := share.next()) is not None:
                played[start.key] += 1
                episode = families.an_episode(reward=0.5)
                share.heard(Scored(episode.__class__(**{**_fields(episode), "start": start}), {"outcome": 0.5}))
            if (batch := share.batch()) is not None:
                batches.append(batch)
        made[rank] = [([scored.episode.start for scored in batch.played], batch.samples, batch.state) for batch in batches]

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    alone, expected = sampler(), Counter()
    for _ in range(3):
        while (start := alone.next()) is not None:
            expected[start.key] += 1
        alone.load({"first": alone.state()["first"] + prompts})
    assert played == expected and set(played.values()) == {1}
    assert all(made[rank] == made[0] for rank in range(count)), "ranks have different batches"


def _fields(one):
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


@pytest.mark.parametrize(
    "changes",
    [{"algorithm": "muon"}, {"optimizer_bits": 8}, {"lora_r": 4}, {"num_prompts": 1}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_several_ranks_cannot_do_is_refused_by_name(monkeypatch, changes):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=next(iter(changes))):
        check_ranks(run_of("tiny", **changes))


def job(*runs, folder, count=2):
    """Start ranks that take these runs; returns what they said and their status."""
    plan = folder / f"plan-{len(list(folder.glob('plan-*')))}.json"
    plan.write_text(json.dumps([[str(path), *rest] for path, *rest in runs]))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [*torchrun, str(Path(__file__).with_name("rank_job.py")), str(plan)],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stdout + done.stderr


def weights(path):
    return load_file(path / "model" / "model.safetensors")


def largest_gap(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


@dataclass
class Folders:
    one: Path
    two: Path
    root: Path
    model: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same runs by one rank and by two, and what begins with one number of ranks and goes on with another."""
    root = tmp_path_factory.mktemp("ranks")
    model = str(random_agent(root / "model"))
    one, two = root / "one", root / "two"
    changes = {"plain": {}, "all": ALL_OF_IT, "bf16": BF16}
    for name, changed in changes.items():
        on(one / name, run_of(model, **changed), 2 if name == "all" else STEPS)
    for name in ("plain", "bf16"):
        on(root / f"then-two-{name}", run_of(model, **changes[name]), 2)
    status, said = job(
        *((two / name, model, changed, 2 if name == "all" else STEPS) for name, changed in changes.items()),
        *((root / f"then-two-{name}", model, changes[name], STEPS) for name in ("plain", "bf16")),
        *((root / f"then-one-{name}", model, changes[name], 2) for name in ("plain", "bf16")),
        (root / "stopped", model, {}, 2),
        (root / "stopped", model, {}, STEPS),
        folder=root,
    )
    assert not status, said
    for name in ("plain", "bf16"):
        on(root / f"then-one-{name}")
    return Folders(one, two, root, model)


@pytest.mark.prove
@pytest.mark.parametrize(("name", "steps", "gap"), [("plain", STEPS, 1e-4), ("all", 2, 1e-4), ("bf16", STEPS, 2e-2)])
def test_two_ranks_learn_what_one_learns(runs, name, steps, gap):
    (lines, episodes), (expected, alone) = told(runs.two / name), told(runs.one / name)
    assert len(lines) == len(expected) == steps
    if name != "bf16":
        assert episodes == alone, "ranks play other episodes"
        for mine, theirs in zip(lines, expected, strict=True):
            # Parts of a batch are cut otherwise, so less of it is shared.
            del mine["num_tokens/shared_ratio"], theirs["num_tokens/shared_ratio"]
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-6)
        assert any(line["grad_norm"] > 0 for line in lines)
    assert largest_gap(weights(step_folder(runs.two / name, 1)), weights(step_folder(runs.one / name, 1))) < gap
    assert all(line["sampling/sampling_logp_difference/max"] < (0.1 if name == "bf16" else 1e-4) for line in lines)
    assert (runs.two / name / "before.json").read_text() == (runs.one / name / "before.json").read_text()


@pytest.mark.prove
def test_two_ranks_that_stop_go_on_bit_by_bit(runs):
    assert told(runs.root / "stopped") == told(runs.two / "plain")
    for step in range(1, STEPS + 1):
        ours, theirs = (step_folder(folder, step) for folder in (runs.root / "stopped", runs.two / "plain"))
        assert parts(ours).keys() == parts(theirs).keys()
        assert same(parts(ours), parts(theirs)) and same(weights(ours), weights(theirs))


def parts(path):
    """The tensors that ranks have written, each by its file and name."""
    files = sorted((path / "training").iterdir())
    assert len(files) == 2
    return {f"{file.name}/{name}": tensor for file in files for name, tensor in load_file(file).items()}
