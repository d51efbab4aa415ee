"""The curves of analysed runs as an image: a panel a figure, a line a group, its band the 95 % interval over seeds."""

from itertools import cycle
from pathlib import Path

import numpy as np

from palaestra.errors import UsageError
from palaestra.trainers.analysis.comparing import Analysis, Group
from palaestra.trainers.analysis.sources import SUCCESS
from palaestra.trainers.intervals import student_interval
from palaestra.trainers.metrics import GAP
from palaestra.trainers.report import need_matplotlib

PANELS = {
    SUCCESS: "success",
    GAP: "pass@k less avg@k",
    "entropy": "entropy",
    "clip_ratio/free_high_mean": "free tokens clipped above",
    "tools/call_frequency": "calls an episode",
    "tools/failure_frequency": "failed calls",
    "completions/tokens_per_turn": "tokens a turn",
    "completions/mean_length": "tokens an episode",
    "frac_reward_zero_std": "dead groups",
    "loss": "loss",
}
_COLUMNS = 2
SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse, before the work, an image that cannot be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: expected a file that ends in {', '.join(SUFFIXES)}")
    need_matplotlib()


def plot(path: Path, analysis: Analysis) -> None:
    """Draw the panels of which there are curves."""
    shown = [name for name in PANELS if any(one.curve(name) for group in analysis.groups for one in group.sources)]
    judged = [one for group in analysis.groups for one in group.judged]
    if not shown and not judged:
        raise UsageError(
            "--plot draws curves over the steps of training, and a judge's scores; nothing here has steps or scores; "
            "pass runs' folders"
        )
    need_matplotlib().use("Agg")
    from matplotlib.figure import Figure

    rows = -(-(len(shown) + bool(judged)) // _COLUMNS)
    figure = Figure(figsize=(5 * _COLUMNS, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axes, name in zip(panels, shown, strict=False):
        # The lines differ without their colours too.
        for group, style in zip(analysis.groups, cycle(["-", "--", ":", "-."]), strict=False):
            steps, middle, low, high = _band(group, name)
            if steps:
                (line,) = axes.plot(steps, middle, style, label=group.name)
                axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        # The interval of two or three seeds is wide: the axis shows where the runs were.
        seen = [value for group in analysis.groups for one in group.sources for value in one.curve(name).values()]
        margin = 0.1 * (max(seen) - min(seen)) or 0.1
        axes.set(title=PANELS[name], xlabel="training step", ylim=(min(seen) - margin, max(seen) + margin))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    if shown:
        panels[0].legend(frameon=False, fontsize="small")
    if judged:
        scores = [[one.score for one in judged if one.solved is solved] for solved in (False, True)]
        panels[len(shown)].hist(scores, bins=10, range=(0, 1), label=["failed", "solved"])
        panels[len(shown)].set(title="judge's score, by outcome", xlabel="score", ylabel="episodes")
        panels[len(shown)].legend(frameon=False, fontsize="small")
    for axes in panels[len(shown) + bool(judged) :]:
        axes.set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(
            f"{path} could not be written ({error.strerror}); name a file in a folder that exists"
        ) from error


def _band(group: Group, name: str) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps that all runs of a group have taken; the mean there, and its interval."""
    curves = [curve for source in group.sources if (curve := source.curve(name))]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    values = [[curve[step] for curve in curves] for step in steps]
    middle = [float(np.mean(one)) for one in values]
    bounds = [student_interval(one) or (centre, centre) for one, centre in zip(values, middle, strict=True)]
    return steps, middle, [low for low, _ in bounds], [high for _, high in bounds]
