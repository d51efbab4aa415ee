"""Plot the curves of analysed runs: one panel per metric, one line per group, with the 95 % interval over seeds."""

from itertools import cycle
from pathlib import Path

import numpy as np

from palaestra.errors import UsageError
from palaestra.trainers.evaluation.intervals import student_interval
from palaestra.trainers.evaluation.metrics import GAP
from palaestra.trainers.view.compare_groups import Analysis, SeedGroup
from palaestra.trainers.view.report import need_matplotlib
from palaestra.trainers.view.sources import SUCCESS

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
    """Raise an error, before the analysis, if the image cannot be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: expected a file that ends in {', '.join(SUFFIXES)}")
    need_matplotlib()


def plot(path: Path, analysis: Analysis) -> None:
    """Draw an image: a panel for each metric that has a curve, and one for a judge's scores if there are any."""
    sources = [source for group in analysis.groups for source in group.sources]
    names = [name for name in PANELS if any(source.curve(name) for source in sources)]
    scored_episodes = [member for group in analysis.groups for member in group.labelled]
    if not names and not scored_episodes:
        raise UsageError(
            "--plot draws curves over the steps of training, and a judge's scores; nothing here has steps or scores; "
            "pass runs' folders"
        )
    need_matplotlib().use("Agg")
    from matplotlib.figure import Figure

    rows = -(-(len(names) + bool(scored_episodes)) // _COLUMNS)
    figure = Figure(figsize=(5 * _COLUMNS, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        # Line styles differ, so that the lines can be distinguished without colours.
        for group, style in zip(analysis.groups, cycle(["-", "--", ":", "-."]), strict=False):
            steps, middle, low, high = _band(group, name)
            if steps:
                (line,) = axes.plot(steps, middle, style, label=group.name)
                axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        # Intervals of two or three seeds are wide, so the axis limits follow the curves instead.
        values = [value for source in sources for value in source.curve(name).values()]
        margin = 0.1 * (max(values) - min(values)) or 0.1
        axes.set(title=PANELS[name], xlabel="training step", ylim=(min(values) - margin, max(values) + margin))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    if names:
        panels[0].legend(frameon=False, fontsize="small")
    if scored_episodes:
        scores = [[member.score for member in scored_episodes if member.solved is solved] for solved in (False, True)]
        panels[len(names)].hist(scores, bins=10, range=(0, 1), label=["failed", "solved"])
        panels[len(names)].set(title="judge's score, by outcome", xlabel="score", ylabel="episodes")
        panels[len(names)].legend(frameon=False, fontsize="small")
    for axes in panels[len(names) + bool(scored_episodes) :]:
        axes.set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UsageError(
            f"{path} could not be written ({error.strerror}); name a file in a folder that exists"
        ) from error


def _band(group: SeedGroup, name: str) -> tuple[list[int], list[float], list[float], list[float]]:
    """Return the steps that all runs of a group have, the means there, and the lower and upper bounds."""
    curves = [curve for source in group.sources if (curve := source.curve(name))]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    bands = []
    for step in steps:
        values = [curve[step] for curve in curves]
        mean = float(np.mean(values))
        bands.append((mean, *(student_interval(values) or (mean, mean))))
    return steps, [mean for mean, _, _ in bands], [low for _, low, _ in bands], [high for _, _, high in bands]
