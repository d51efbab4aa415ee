"""Check and measure palaestra on one GPU in ten minutes, with random-weight models in Qwen3's shapes: `make bench-gpu`

The parts are: planned attention compared with float64; the rate of learning at 8,192 tokens compared with that of a
matrix product, with the settings that `train` would choose, with 8-bit moments and with the optimizer offloaded; whole
steps with tools, played by a vLLM server that shares the GPU; and the memory of each part compared with the estimate.
It needs no network and no model. It first says which parts cannot run here. Each part runs in a separate process,
prints its figures at once and writes them to the file; if a part fails, its error is reported and the others continue.
`--device cpu --shapes tiny` tries everything on any machine, without targets.

Exit status 1 when a target is missed, 2 without a GPU.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from on_gpu.apart import Failed, apart
from on_gpu.attention import attention
from on_gpu.engine import engine
from on_gpu.learning import learning
from on_gpu.rates import rates
from on_gpu.shapes import SHAPES, Shape
from peers.findings import Report, target

from palaestra import UsageError
from palaestra.agents.engines.vllm.environment import default_folder, kind_here
from palaestra.agents.engines.vllm.own_servers import python_of
from palaestra.agents.local_model import find_device

Part = Literal["attention", "learning", "8-bit", "offload", "engine"]
Figures = dict[str, Any]
SCALES: dict[Part, Figures] = {"learning": {}, "8-bit": {"optimizer_bits": 8}, "offload": {"optimizer_offload": True}}
"""Settings of the parts that only learn; all other settings are those that `train` would choose."""
MATRIX_SHARE, MEMORY_GAP, LOGPROB_GAP = 0.45, 0.10, 0.05
"""Smallest share of the matrix rate in learning (4B), largest error of the memory estimate, and largest mean difference
of the log-probs of engine and trainer in bfloat16.
"""
ATTENTION_GAP = {"bfloat16": 2e-2, "float32": 1e-3}
"""Largest difference from float64, divided by the largest value."""


@dataclass(frozen=True)
class Options:
    """Measure attention, learning, whole steps with vLLM, and memory on one GPU, with random weights."""

    shapes: tuple[Literal["0.6B", "1.7B", "4B", "tiny"], ...] = ("4B",)
    """Models, named by the size of Qwen3's."""
    parts: tuple[Part, ...] = ("attention", "learning", "8-bit", "offload", "engine")
    """Parts that are measured for each model."""
    minutes: float = 10.0
    """Minutes after which no part begins, and a running one is stopped."""
    device: str = "cuda"
    """`cpu` works for the tiny shape."""
    python: str = ""
    """Python interpreter with vLLM; by default that of the environment that `palaestra serve vllm` makes."""
    apart: bool | None = None
    """Run each part in a separate process; this is the default on a GPU."""
    targets: bool = True
    """Exit with status 1 if a target is missed; there are no targets without a GPU."""
    out: Path = Path(__file__).resolve().parent / "results" / "gpu.json"
    """File for the figures."""


@dataclass
class Story:
    """The figures so far."""

    options: Options
    report: Report
    device: torch.device
    until: float
    figures: dict[str, Figures] = field(default_factory=dict)
    """Figures by shape and part, such as `4B learning`."""
    missing: dict[str, str] = field(default_factory=dict)

    def measure(self, name: str, part: Callable[..., Figures], *arguments: Any) -> None:
        """Run a part. Print and store its figures, or the reason why there are none."""
        left, began = self.until - time.monotonic(), time.monotonic()
        try:
            if left <= 0:
                raise Failed(f"no time was left of {self.options.minutes:g} minutes")
            alone = self.device.type == "cuda" if self.options.apart is None else self.options.apart
            figures = apart(part, *arguments, seconds=left) if alone else part(*arguments)
        except Exception as error:  # Whatever it is, the others go on.
            self.missing[name] = str(error)
            print(f"{name}: not measured: {error}", flush=True)
        else:
            self.figures[name] = figures
            print(f"{name} ({time.monotonic() - began:.0f} s)")
            for key, value in figures.items():
                print(f"  {key:<32}{readable(key, value)}", flush=True)
        self.report.write({"figures": self.figures}, (), self.missing)

    def figure(self, name: str, key: str) -> float | None:
        """Return a stored figure."""
        return self.figures.get(name, {}).get(key)


def readable(key: str, value: Any) -> str:
    """Return a figure as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if key.endswith("_flops"):
        return f"{value / 1e12:,.4g} TFLOP/s"
    return f"{value / 2**30:,.2f} GiB" if key.endswith("_bytes") else f"{value:,.4g}"


def absent(options: Options) -> dict[Part, str]:
    """Return the parts that cannot run here, each with what is not installed."""
    reasons: dict[Part, str] = {}
    if find_spec("bitsandbytes") is None:
        reasons["8-bit"] = "bitsandbytes is not installed: pip install 'palaestra[quantized]'"
    try:
        python_of(options.python, default_folder(kind_here()))
    except UsageError as error:
        reasons["engine"] = str(error)
    return {part: reason for part, reason in reasons.items() if part in options.parts}


def measure_all(story: Story) -> None:
    """Measure all requested parts, the smallest model first."""
    device = story.device
    work = max((SHAPES[name] for name in story.options.shapes), key=lambda shape: shape.parameters).work
    story.measure("device", rates, work, device)
    rate = story.figure("device", "matrix_flops")
    ways: dict[Part, Callable[[Shape], tuple[Any, ...]]] = {
        "attention": lambda shape: (attention, shape, device),
        **{part: lambda shape, scale=scale: (learning, shape, device, rate, scale) for part, scale in SCALES.items()},
        "engine": lambda shape: (engine, shape, device, story.options.python),
    }
    for name in story.options.shapes:
        for part, way in ways.items():
            if part in story.options.parts and part not in story.missing:
                story.measure(f"{name} {part}", *way(SHAPES[name]))


def judged(story: Story) -> list[dict[str, Any]]:
    """Return the figures that have a target, if they were requested and are possible; on a GPU they count."""
    counts, targets = story.device.type == "cuda", []
    parts = [part for part in story.options.parts if part not in story.missing]

    def judge(name: str, found: float | None, **limit: float) -> None:
        targets.append(target(name, found, **(limit if counts else {})))

    for name in story.options.shapes:
        for part in parts:
            figure = {key: story.figure(f"{name} {part}", key) for key in ("peak_bytes", "predicted_bytes")}
            peak, predicted = figure.values()
            if part == "attention":
                for dtype, gap in ATTENTION_GAP.items():
                    gaps = [story.figure(f"{name} {part}", f"{dtype}_depth_{depth}") for depth in range(3)]
                    worst = None if None in gaps else max(gap for gap in gaps if gap is not None)
                    judge(f"{name}: attention in {dtype}, off by", worst, most=gap)
                shares = story.figure(f"{name} {part}", "rows_share_prefixes")
                judge(f"{name}: rows share prefixes, 1 if so", None if shares is None else float(shares), least=1)
                continue
            if part == "learning":
                least = {"least": MATRIX_SHARE} if name == "4B" else {}
                share = story.figure(f"{name} {part}", "share_of_matrix_rate")
                judge(f"{name}: learning, model FLOPs by the matrix rate", share, **least)
            if part == "engine":
                gap = story.figure(f"{name} {part}", "engine_and_trainer_differ_by")
                judge(f"{name}: engine and trainer, mean difference of log-probs", gap, most=LOGPROB_GAP)
            if counts:
                off = abs(predicted / peak - 1) if peak and predicted else None
                judge(f"{name}: {part}, memory predicted by measured, off by", off, most=MEMORY_GAP)
    return targets


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; to try it on a CPU: --device cpu --shapes tiny", file=sys.stderr)
        return 2
    began = time.monotonic()
    story = Story(options, Report(options), find_device(options.device), began + 60 * options.minutes)
    for part, reason in absent(options).items():
        story.missing[part] = reason
        print(f"{part} cannot be measured: {reason}", flush=True)
    measure_all(story)
    print()
    return story.report.conclude({"figures": story.figures}, judged(story), story.missing)


if __name__ == "__main__":
    sys.exit(main())
