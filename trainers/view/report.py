"""Show a finished run: its curves as a PNG, an episode as a transcript."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from palaestra.episode import Episode
from palaestra.errors import MissingExtra


def need_matplotlib() -> Any:
    """Return matplotlib, or raise `MissingExtra` with how to install it. Call it before a long run, not after."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot", "drawing the curve") from error
    return matplotlib


def save_curve(path: Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Draw success by training step, one line per curve. Line styles differ, so colours are not needed."""
    need_matplotlib().use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = max(map(len, curves.values()))
    for (name, values), style in zip(curves.items(), cycle(["-", "--", ":", "-."])):
        label = name if len(values) == steps else f"{name} ({len(values)} steps)"
        width = 2.5 if style == "-" else 1.8
        axes.plot(range(1, len(values) + 1), values, style, label=label, linewidth=width)
    axes.set(title=title, xlabel="training step", ylabel="success of the step's episodes", ylim=(-0.02, 1.02))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=200)


def transcript(episode: Episode) -> str:
    """Return an episode as text, message by message, with its reward parts."""
    lines = []
    for messages, _ in episode.dialogues:
        lines += ["dialogue"] * bool(episode.attempt.dialogues)
        lines += [f"{message['role']:>9}  {_shown(message['content'])}" for message in messages]
    if episode.attempt.refused:
        lines.append(f"{'refused':>9}  {episode.attempt.refused} requests that did not fit")
    if episode.attempt.raised:
        lines.append(f"{'raised':>9}  {_shown(episode.attempt.raised)}")
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.parts.items())
    expected = episode.attempt.task.answer
    lines.append(f"{'ending':>9}  {episode.ending}: {parts or episode.fault} (expected {expected!r})")
    return "\n".join(lines)


def _shown(text: str) -> str:
    """Return model text on one line, without control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else {"\n": " ⏎ ", "\t": " "}.get(c, "�") for c in text)
