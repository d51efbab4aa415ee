"""Compare a step of GRPO with that of TRL's `GRPOTrainer`: `make bench-train`

Both train the same random model in float32 (a Qwen3 of 3.4 million parameters, and one in the shape of SmolLM2-135M) on
the same prompts, sample the same number of tokens and take one optimizer step. A figure is that of a whole step with
play. Each side is a process; they are measured in turn in each round, and a ratio is the median over rounds, palaestra
divided by TRL. CPU time is process time, which other load on the machine hardly affects; wall time is affected. TRL
generates with transformers, as on a machine without vLLM; its micro-batches have the number of rows that was fastest
(TRL_ROWS). The learning step alone is compared, in this process, with padded rows and all their logits: groups with
prompts of 60 to 400 tokens and answers of 20 to 300, in one to three turns.

Exit status 1 when a target is missed.
"""

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import tyro
from peers.findings import Report, brief, show, start_sides, target
from peers.sides import Side, around, ratio
from peers.training import WORDS, Case, Clock, build

from palaestra.episode import TokenRow
from palaestra.trainers.learn.forward import micro_batches, token_logprobs
from palaestra.trainers.learn.packing import Packed, pack_rows

HERE = Path(__file__).resolve().parent
CASES = {
    "64 + 64 tokens, 8 x 8": (Case(8, 8, 64, 64), "cpu_s", 0.60),
    "256 + 64 tokens, 4 x 16": (Case(4, 16, 256, 64), "cpu_s", 0.35),
    "50 ms tool in two turns of 16 tokens, 8 x 16": (Case(8, 16, 64, 16, 0.05), "wall_s", 0.25),
    "SmolLM2's shape, 96 + 64 tokens, 4 x 8": (Case(4, 8, 96, 64, model="smollm2"), "cpu_s", 0.50),
}
"""By name: the case, the figure that is compared, and the largest ratio."""
ALONE = 0.5
"""Largest CPU time of the learning step, divided by that of padded rows with all logits."""
ROWS = 16
"""Number of rows of the padded micro-batches."""
TRL_ROWS = {"small": 16, "smollm2": 8}
"""Number of rows of TRL's micro-batches: the faster of 16 and 64; in SmolLM2's shape 8, which is as fast as 16."""
MATRIX_SHARE = 0.8
"""Smallest rate of learning in SmolLM2's shape, as a share of the core's float32 matrix rate."""
ANSWER_SECONDS = 900.0
"""Maximum seconds of two steps on a busy machine."""


@dataclass(frozen=True)
class Options:
    """Compare a step of GRPO with TRL's, and learning with padded rows."""

    rounds: int = 5
    """Number of rounds; all sides are measured in turn in each."""
    models: tuple[str, ...] = ("small", "smollm2")
    """Models whose steps are measured; the learning step alone is measured with the small one."""
    groups: int = 4
    """Number of groups of eight in the learning step alone."""
    targets: bool = True
    """Exit with status 1 if a target is missed."""
    out: Path = HERE / "results" / "train.json"
    """File for the figures."""


def mixed(groups: int) -> Packed:
    """Return rows of many lengths."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(groups):
        prompt = rng.integers(8, WORDS, rng.integers(60, 401))
        for _ in range(8):
            turns = rng.integers(1, 4)
            said = [int(rng.integers(20, 301)) // int(turns) for _ in range(turns)]
            sizes = [(len(prompt), False), *[each for size in said for each in ((size, True), (16, False))]]
            sampled = np.concatenate([np.full(size, chosen) for size, chosen in sizes])
            ids = np.concatenate([prompt, rng.integers(8, WORDS, len(sampled) - len(prompt))]).astype(np.int32)
            rows.append(TokenRow(ids, sampled, np.zeros(len(ids), np.float32), np.where(sampled, 0, -1)))
    return pack_rows(rows)


def learn_packed(model: Any, packed: Packed) -> None:
    """Compute the gradients as the trainer does."""
    for micro in micro_batches(model, packed, 4096):
        token_logprobs(model, micro).logprobs_N.sum().backward()


def learn_padded(model: Any, packed: Packed) -> None:
    """Compute the gradients in the simplest way: padded rows in their given order, with all their logits."""
    for first in range(0, len(packed.lengths), ROWS):
        micro = packed.select(range(first, min(first + ROWS, len(packed.lengths))))
        rows = torch.split(micro.ids_N, micro.lengths.tolist())
        ids_RL = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        mask_RL = torch.arange(ids_RL.shape[1]) < micro.lengths[:, None]
        logits_RLV = model(input_ids=ids_RL, attention_mask=mask_RL.long()).logits[:, :-1]
        logprobs = -torch.nn.functional.cross_entropy(
            logits_RLV.flatten(0, 1), ids_RL[:, 1:].flatten(), reduction="none"
        )
        chosen_RL = torch.nn.utils.rnn.pad_sequence(
            list(torch.split(micro.sampled_N, micro.lengths.tolist())), batch_first=True
        )
        (logprobs * chosen_RL[:, 1:].flatten()).sum().backward()


def alone(options: Options) -> dict[str, Any]:
    """Return the CPU seconds for the gradients of one batch, in both ways."""
    model, packed = build().eval(), mixed(options.groups)
    ways: dict[str, Callable[[Any, Packed], None]] = {"packed": learn_packed, "padded": learn_padded}
    found: dict[str, list[float]] = {name: [] for name in ways}
    gradients: dict[str, list[torch.Tensor]] = {}
    learn_packed(model, mixed(1))  # Looks at the model.
    for _ in range(options.rounds):
        for name, way in ways.items():
            model.zero_grad()
            clock = Clock()
            clock.begin()
            way(model, packed)
            found[name].append(clock.end()["cpu_s"])
            gradients[name] = [parameter.grad.clone() for parameter in model.parameters()]
    gap = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*gradients.values(), strict=True))
    return {
        "cpu_s": {name: round(statistics.median(seconds), 3) for name, seconds in found.items()},
        "ratio": statistics.median(a / b for a, b in zip(*found.values(), strict=True)),
        "gradients_differ_by": float(f"{gap:.2g}"),
        "tokens": len(packed.ids_N),
        "sampled_tokens": int(packed.sampled_N.sum()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    torch.set_num_threads(1)
    report, tables, targets = Report(options), {}, []
    learning = alone(options) if "small" in options.models else None
    if learning is not None:
        print(f"learning alone: {learning}", flush=True)
        targets.append(target("learning alone: CPU by padded rows with all logits", learning["ratio"], most=ALONE))
    installed = HERE.parent / ".peers"
    with ExitStack() as stack:
        sides, missing = start_sides(
            ["palaestra", "trl"], ["palaestra"], HERE / "peers", "train", installed, stack, ANSWER_SECONDS
        )
        cases = {title: row for title, row in CASES.items() if row[0].model in options.models}
        for title, (case, key, most) in cases.items():
            number = iter(range(0, 10**6, 2))

            def ask(side: Side, way: str) -> dict[str, float]:
                more = {"rows": TRL_ROWS[case.model]} if side.name == "trl" else {}  # noqa: B023
                return side.ask("train", case_values=asdict(case), begin=next(number), **more)  # noqa: B023

            found = around(sides, [("palaestra", "step"), ("trl", "step")], options.rounds, ask, ["palaestra"])
            columns = {
                name: lambda each, name=name: f"{each.median(name):.2f}" for name in ("cpu_s", "wall_s", "peak_gb")
            }
            show(title, found, columns)
            tables[title] = brief(found, "cpu_s")
            ours, theirs = found[("palaestra", "step")], [each for (name, _), each in found.items() if name == "trl"]
            targets.append(target(f"{title}: {key} by TRL's", ratio(ours, theirs, key, min), most=most))
            if case.model == "smollm2":
                name, share = f"{title}: learning, FLOPs by the core's matrix rate", ours.median("matrix_share")
                targets.append(target(name, share, least=MATRIX_SHARE))
        return report.conclude({"learning_alone": learning, "steps": tables}, targets, missing, sides)


if __name__ == "__main__":
    sys.exit(main())
