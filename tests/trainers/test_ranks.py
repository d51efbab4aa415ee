"""Several ranks learn what one learns, their checkpoints are one another's, and none waits for ever.

The jobs are real: torchrun, two processes, gloo, the CPU. No GPU has met them.
"""

import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import families
import pytest
import torch
from batches import TOKENIZER, restless, same
from families import random_agent
from going import STEPS, on, run_of, step_folder, told
from rank_job import again
from rank_step import CASES
from rank_step import steps as stepped_alone
from safetensors.torch import load_file

from palaestra import ConfigError
from palaestra.agents.model_folder import export
from palaestra.trainers.batch import Scored
from palaestra.trainers.rollout.rank_sampler import Share
from palaestra.trainers.samplers.group_sampler import Groups, InOrder
from palaestra.trainers.samplers.task_of_group import Even
from palaestra.trainers.scale.fsdp import load_parts
from palaestra.trainers.scale.ranks import ALONE, Ranks
from palaestra.trainers.setup.open_run import check_ranks

BF16 = {"precision": "bfloat16", "gradient_checkpointing": True}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ALL_OF_IT = {
    "recipe": "grpo-t",
    "beta": 0.1,
    "lr_schedule": "constant",
    "correction": {"name": "truncated"},
    "micro_batch_tokens": 60,
    "gradient_checkpointing": True,
}


STOPPED = {"adapter": {"lora_r": 4}, "8 bits": {"optimizer_bits": 8}, "critic": {"recipe": "ppo"}}
_TWICE = [("", 2), ("", STEPS), ("-whole", STEPS)]


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
        return InOrder(Even("env", 1000, prompts, 0), Groups(prompts, 4, seats, frozenset(seats)))

    def play(rank):
        share, batches = Share(sampler(), Talking(rank, count, table, barrier), seats), []
        while len(batches) < 3:
            while (start := share.next()) is not None:
                played[start.key] += 1
                episode = families.an_episode(reward=0.5)
                share.observe(Scored(episode.__class__(**{**_fields(episode), "start": start}), {"outcome": 0.5}))
            if (batch := share.batch()) is not None:
                batches.append(batch)
        made[rank] = [
            ([scored.episode.start for scored in batch.rollouts], batch.samples, batch.state) for batch in batches
        ]

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
    [
        {"algorithm": "muon"},
        {"num_prompts": 1},
        {"max_staleness": 1, "ordered": False, "kind": "torch"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_several_ranks_cannot_do_is_refused_by_name(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        check_ranks(run_of("a-model", **changes), 2)


def job(*runs, folder):
    """Start ranks that take these runs; returns what they said and their status."""
    plan = folder / f"plan-{len(list(folder.glob('plan-*')))}.json"
    plan.write_text(json.dumps([[str(path), *rest] for path, *rest in runs]))
    done = subprocess.run(
        [*TORCHRUN, str(Path(__file__).with_name("rank_job.py")), str(plan)],
        capture_output=True,
        text=True,
        timeout=900,  # Against a hang alone: two busy cores need two minutes.
    )
    return done.returncode, done.stdout + done.stderr


@dataclass
class Folders:
    """Of runs by one rank, by two, of those that began with one number of ranks and went on with another, and of the
    model."""

    one: Path
    two: Path
    root: Path
    model: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("ranks")
    model, untied = str(random_agent(root / "model")), str(untied_agent(root / "untied"))
    one, two = root / "one", root / "two"
    plans = {"plain": (model, {}, STEPS), "all": (untied, ALL_OF_IT, 2), "bf16": (model, BF16, STEPS)}
    for name, (of, changes, steps) in plans.items():
        on(one / name, run_of(of, **changes), steps)
    moved = {name: plans[name][:2] for name in ("plain", "bf16")}
    for name, (of, changes) in moved.items():
        on(root / f"then-two-{name}", run_of(of, **changes), 2)
    status, said = job(
        *((two / name, *plan) for name, plan in plans.items()),
        *((root / f"then-two-{name}", *plan, 0) for name, plan in moved.items()),
        *((root / f"then-two-{name}", *plan, STEPS) for name, plan in moved.items()),
        *((root / f"then-one-{name}", *plan, 2) for name, plan in moved.items()),
        *((root / f"{name}{end}", model, STOPPED[name], steps) for end, steps in _TWICE for name in STOPPED),
        (root / "stopped", model, {}, 2),
        (root / "stopped", model, {}, STEPS),
        folder=root,
    )
    assert not status, said
    for name in moved:
        again(root / f"then-one-{name}")
        on(root / f"then-one-{name}")
    return Folders(one, two, root, model)


def untied_agent(folder):
    """A random agent whose output layer is not its embedding."""
    model = restless()
    model.config.tie_word_embeddings = False
    untied = type(model)(model.config)
    untied.load_state_dict(model.state_dict())
    untied.generation_config = model.generation_config
    with torch.no_grad():
        untied.lm_head.weight += 0.1 * torch.randn_like(untied.lm_head.weight)
    export(untied, TOKENIZER, folder)
    return folder


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """What two ranks made of each case."""
    tmp_path = tmp_path_factory.mktemp("steps")
    script = [sys.executable, str(Path(__file__).with_name("rank_step.py")), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stderr
    return json.loads((tmp_path / "steps.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_take_the_step_of_one(stepped, case):
    """The gradient is the sum of their parts, and no average. Blocks of 8 bits begin anew in each shard."""
    limit = 5e-5 if case == "8 bits" else 1e-5
    (ours, our_weights, _), (alone, weights_alone, *_) = stepped[case], stepped_alone(case)
    assert alone["grad_norm"] > 0
    for name in {"grad_norm", "loss", "entropy/learned", "kl", "critic/loss"} & alone.keys():
        assert ours[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6)
    assert our_weights.keys() == weights_alone.keys()
    for name, weight in weights_alone.items():
        assert torch.allclose(torch.tensor(our_weights[name]), torch.tensor(weight), rtol=0, atol=limit), name


def test_gradients_are_summed_over_the_ranks_once_a_mini_batch(stepped):
    once, each = stepped["plain"][2], stepped["each pass"][2]
    assert once > 0 and each == 3 * once, "each rank makes three passes"


@pytest.mark.prove
@pytest.mark.parametrize(("name", "steps"), [("plain", STEPS), ("all", 2)])
def test_two_ranks_learn_what_one_learns(runs, name, steps):
    (lines, episodes), (expected, alone) = told(runs.two / name), told(runs.one / name)
    assert episodes == alone, "ranks play other episodes"
    assert len(lines) == len(expected) == steps
    for mine, theirs in zip(lines, expected, strict=True):
        # Parts of a batch are cut otherwise, so less of it is shared.
        del mine["num_tokens/shared_ratio"], theirs["num_tokens/shared_ratio"]
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert any(line["grad_norm"] > 0 for line in lines)
    # AdamW's first step is the sign of a gradient, and where that is nearly 0 its last bits decide.
    for step in range(1, steps + 1):
        mine, theirs = (weights(step_folder(folder / name, step)) for folder in (runs.two, runs.one))
        assert mine.keys() == theirs.keys()
        gaps = torch.cat([(mine[key] - theirs[key]).abs().flatten() for key in mine])
        # One of ten thousand weights may be such a one, and step the other way at the rate of 1e-3.
        assert gaps.max() < 2e-3 * step and (gaps > 1e-4).float().mean() < 1e-4 and gaps.mean() < 2e-7
    assert (runs.two / name / "before.json").read_text() == (runs.one / name / "before.json").read_text()


@pytest.mark.prove
def test_in_bfloat16_engines_answer_from_the_rounded_masters(runs):
    path = step_folder(runs.two / "bf16", STEPS)
    masters = {name.removeprefix("master/float32/"): one for name, one in state_of(path).items() if "master" in name}
    rounded = weights(path)
    assert rounded.keys() == masters.keys()
    assert all(rounded[name].dtype == torch.bfloat16 for name in rounded)
    assert all(torch.equal(rounded[name], masters[name].bfloat16()) for name in rounded)
    assert any(not torch.equal(rounded[name].float(), masters[name]) for name in rounded)
    for one, two in zip(told(runs.one / "bf16")[0], told(runs.two / "bf16")[0], strict=True):
        gap = "sampling/sampling_logp_difference/mean"
        assert two[gap] < 0.02 and one[gap] < 0.02


@pytest.mark.prove
def test_two_ranks_that_stop_go_on_bit_by_bit(runs):
    assert told(runs.root / "stopped") == told(runs.two / "plain")
    for step in range(1, STEPS + 1):
        ours, theirs = (step_folder(folder, step) for folder in (runs.root / "stopped", runs.two / "plain"))
        for file in sorted((theirs / "training").iterdir()):
            assert same(load_file(ours / "training" / file.name), load_file(file))
        assert same(weights(ours), weights(theirs))


@pytest.mark.prove
@pytest.mark.parametrize("name", STOPPED)
def test_adapters_critics_and_moments_in_8_bits_go_on_with_two_ranks_that_stop(runs, name):
    assert told(runs.root / name) == told(runs.root / f"{name}-whole")


@pytest.mark.prove
def test_each_rank_holds_its_part(runs):
    sizes = [file.stat().st_size for file in (step_folder(runs.two / "bf16", 1) / "training").iterdir()]
    assert len(sizes) == 2 and max(sizes) < 0.55 * sum(sizes)


@pytest.mark.prove
@pytest.mark.parametrize("name", ["plain", "bf16"])
@pytest.mark.parametrize("to", ["one", "two"])
def test_any_number_of_ranks_goes_on_from_exactly_what_any_other_has_written(runs, name, to):
    folder, never_moved = runs.root / f"then-{to}-{name}", (runs.two if to == "one" else runs.one) / name
    parts = [(step_folder(folder, step) / "training").is_dir() for step in (2, 4)]
    assert parts == ([True, False] if to == "one" else [False, True])
    there, taken_up = step_folder(folder, 2), step_folder(folder.with_name(folder.name + "-again"), 2)
    assert same(state_of(taken_up), state_of(there)) and same(weights(taken_up), weights(there))
    assert len(state_of(there)) > 2 * len(weights(there))
    for step in (3, 4):
        gaps = [
            float((one.float() - two.float()).abs().max())
            for read in (weights, state_of)
            for one, two in zip(
                *(read(step_folder(place, step)).values() for place in (folder, never_moved)), strict=True
            )
        ]
        assert max(gaps) < (1e-6 if name == "plain" else 0.02)
    assert len(told(folder)[0]) == STEPS


def weights(path):
    """The model of a checkpoint."""
    return load_file(path / "model" / "model.safetensors")


def state_of(path):
    """The optimizer's memory and the masters, whole, whoever wrote them."""
    parts = path / "training"
    found = load_parts(parts if parts.is_dir() else path, {}, ALONE)
    return {name: found[name] for name in sorted(found) if name.startswith(("optimizer/", "master/"))}


@pytest.mark.prove
def test_no_thread_of_a_rank_s_group_outlives_its_parting(tmp_path):
    """gloo's threads free tensors, and one that does so while Python exits aborts the process."""
    script = tmp_path / "part.py"
    script.write_text(
        """
import contextlib, time
from pathlib import Path
from palaestra.trainers.scale.ranks import joined
def runs():
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # It has ended.
            if path.read_text().strip() == "pt_gloo_runloop":
                return True
    return False
with joined(60) as ranks:
    assert runs()
    ranks.part()
    deadline = time.monotonic() + 20  # The kernel lists a thread a little longer than it runs.
    while runs():
        assert time.monotonic() < deadline
"""
    )
    done = subprocess.run([*TORCHRUN, str(script)], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
