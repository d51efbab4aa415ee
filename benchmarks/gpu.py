"""The whole story on one GPU, with random-weight Qwen3 of 0.6, 1.7 and 4 billion parameters: `make bench-gpu`

For each shape, and by what the device itself can do, which is measured first: generation alone against the time that
memory needs to be read, learning alone against the rate of a matrix product, a whole step of GRPO with tools (three
turns, 50 ms between them) beside TRL's, and the memory that each held beside what the memory model predicts
(`on_gpu.phases` says how). Needs no network and no model.

Each part runs in a process of its own, prints its figures at once and is written down; one that fails is named, and the
others go on. What no time is left for is said too. `--device cpu --shapes tiny` tries it all on any machine, without
targets. Exit status 1 when a target is missed, 2 without a GPU.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from on_gpu.apart import Failed, apart
from on_gpu.phases import generation, learning, whole_step
from on_gpu.rates import rates
from on_gpu.shapes import SHAPES, Shape
from peers.findings import Report, target
from peers.sides import Side
from peers.training import Case

from palaestra.agents.local_model import find_device

HERE = Path(__file__).resolve().parent
MATRIX_SHARE, FLOOR_SHARE, BY_TRL, MEMORY_GAP = 0.45, 0.60, 2.0, 0.10
"""Least share of the matrix rate in learning (4B), and of the bandwidth floor in generation; least ratio of a whole
step's tokens a second to TRL's; and the most that the memory model may be off."""
Part = Literal["generation", "learning", "step", "trl"]
Figures = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """Generation, learning, a whole step and memory on one GPU, with random weights."""

    shapes: tuple[Literal["0.6B", "1.7B", "4B", "tiny"], ...] = ("0.6B", "1.7B", "4B")
    """Models, by the size of Qwen3's."""
    parts: tuple[Part, ...] = ("generation", "learning", "step", "trl")
    """What is measured of each."""
    minutes: float = 9.0
    """After which nothing is begun, and what runs is stopped."""
    device: str = "cuda"
    """`cpu` works for the tiny shape."""
    apart: bool | None = None
    """A process for each part; by default on a GPU."""
    targets: bool = True
    """Fail when a target is missed; there are none without a GPU."""
    out: Path = HERE / "results" / "gpu.json"
    """Where the figures go."""


@dataclass
class Story:
    """What has been found so far."""

    options: Options
    report: Report
    device: torch.device
    until: float
    found: dict[str, Figures] = field(default_factory=dict)
    """By shape and part, as in `4B learning`."""
    missing: dict[str, str] = field(default_factory=dict)

    def measure(self, name: str, part: Callable[..., Figures], *arguments: Any) -> None:
        """Run a part, print and keep its figures, or why there are none."""
        left, began = self.until - time.monotonic(), time.monotonic()
        try:
            if left <= 0:
                raise Failed(f"no time was left of {self.options.minutes:g} minutes")
            alone = self.device.type == "cuda" if self.options.apart is None else self.options.apart
            # TRL's side is a process already.
            figures = apart(part, *arguments, seconds=left) if alone and part is not trl else part(*arguments)
        except Exception as error:  # Whatever it is, the others go on.
            self.missing[name] = str(error)
            print(f"{name}: not measured: {error}", flush=True)
        else:
            self.found[name] = figures
            print(f"{name} ({time.monotonic() - began:.0f} s)")
            for key, value in figures.items():
                print(f"  {key:<32}{readable(key, value)}", flush=True)
        self.report.write({"figures": self.found}, (), self.missing)

    def figure(self, name: str, key: str) -> float | None:
        """One that was found."""
        return self.found.get(name, {}).get(key)


def readable(key: str, value: Any) -> str:
    """A figure for people."""
    if not isinstance(value, int | float):
        return str(value)
    if key.endswith("_flops"):
        return f"{value / 1e12:,.4g} TFLOP/s"
    if key == "memory_bytes":
        return f"{value / 1e9:,.4g} GB/s"
    return f"{value / 2**30:,.2f} GiB" if key.endswith("_bytes") else f"{value:,.4g}"


def tell(story: Story) -> None:
    """Measure all that was asked for, the smallest model first."""
    work = max((SHAPES[name] for name in story.options.shapes), key=lambda shape: shape.parameters).work
    story.measure("device", rates, work, story.device)
    ways: dict[Part, Callable[[Shape], tuple[Any, ...]]] = {
        "generation": lambda shape: (generation, shape, story.device, story.figure("device", "memory_bytes")),
        "learning": lambda shape: (learning, shape, story.device, story.figure("device", "matrix_flops")),
        "step": lambda shape: (whole_step, shape, story.device),
        "trl": lambda shape: (trl, shape, story.device, story.until),
    }
    parts = [part for part in ways if part in story.options.parts]
    if "trl" in parts and not trl_python().exists():
        parts.remove("trl")
        story.missing["trl"] = "it is not installed here, nor by scripts/peers.py"
    for name in story.options.shapes:
        for part in parts:
            story.measure(f"{name} {part}", *ways[part](SHAPES[name]))


def trl_python() -> Path:
    """This Python where TRL is installed, else that of `.peers`."""
    return Path(sys.executable) if find_spec("trl") else HERE.parent / ".peers" / "trl" / "bin" / "python"


def trl(shape: Shape, device: torch.device, until: float) -> Figures:
    """The same step by TRL."""
    work = shape.work
    case = Case(work.prompts, work.rollouts, work.prompt_tokens, work.turn_tokens, work.wait_seconds, work.turns - 1)
    left = max(1.0, until - time.monotonic())
    with closing(Side("trl", trl_python(), HERE / "peers" / "trl_gpu.py", left)) as side:
        config = shape.config().to_dict()
        figures = side.ask("step", asked=asdict(case), shape=config, steps=work.steps)
    if device.type == "cuda" and not figures["on_gpu"]:
        raise Failed("TRL's torch sees no GPU; install trl beside a torch that does")
    return figures | {"turns": float(case.turns)}


def judged(story: Story) -> list[dict[str, Any]]:
    """Every figure that has a target, where it was asked for; on a GPU they count."""
    counts, parts, targets = story.device.type == "cuda", story.options.parts, []

    def judge(name: str, found: float | None, **limit: float) -> None:
        targets.append(target(name, found, **(limit if counts else {})))

    for name in story.options.shapes:
        if "generation" in parts:
            share = story.figure(f"{name} generation", "share_of_bandwidth_floor")
            judge(f"{name}: decoding, time that memory needs by time taken", share, least=FLOOR_SHARE)
        if "learning" in parts:
            share = story.figure(f"{name} learning", "share_of_matrix_rate")
            least = {"least": MATRIX_SHARE} if name == "4B" else {}
            judge(f"{name}: learning, model FLOPs by the matrix rate", share, **least)
        if "step" in parts and f"{name} trl" in story.found:
            ours, theirs = (story.figure(f"{name} {part}", "sampled_tokens_per_second") for part in ("step", "trl"))
            ratio = ours / theirs if ours and theirs else None
            judge(f"{name}: a whole step, tokens a second by TRL's", ratio, least=BY_TRL)
        for part in ("generation", "learning", "step"):
            if part in parts and counts:
                peak, said = (story.figure(f"{name} {part}", key) for key in ("peak_bytes", "predicted_bytes"))
                gap = abs(said / peak - 1) if peak and said else None
                judge(f"{name}: {part}, memory predicted by measured, off by", gap, most=MEMORY_GAP)
    return targets


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    options = tyro.cli(Options, args=arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; to try it on a CPU: --device cpu --shapes tiny", file=sys.stderr)
        return 2
    began = time.monotonic()
    story = Story(options, Report(options), find_device(options.device), began + 60 * options.minutes)
    tell(story)
    print()
    return story.report.conclude({"figures": story.found}, judged(story), story.missing)


if __name__ == "__main__":
    sys.exit(main())
