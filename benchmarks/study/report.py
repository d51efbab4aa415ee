"""Tables and pictures of the study. They replace the text between two marks of a page; the rest of the page stays.

The page has the last answer to each claim, the appendix the claims of each round, and the tables of each part.
Intervals are Student's t over seeds, 95 %; differences are paired by seed. Left out: the text around them,
which is written by hand.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arms import Comparison
from claims import Answer, area, first_round, half_width, table, tokens_to
from later_claims import SECOND_CLAIMS, THIRD_CLAIMS, last_answers, later_round, leaves_zero
from parts import PARTS
from results import Results
from useful import table as useful_table

BEGIN, END = "<!-- tables of PART={}: written by make study -->", "<!-- end of the tables -->"
BEGIN_CLAIMS = "<!-- table of claims: written by make study -->"
BEGIN_ROUND = "<!-- claims of the {} round: written by make study -->"
ROUNDS = ("first", "second", "third")
PICTURES = {
    "algorithms": "pictures/study.png",
    "reagent": "pictures/study-reagent.png",
    "tree": "pictures/study-tree.png",
    "second": "pictures/study-second.png",
    "third": "pictures/study-third.png",
}
Line = Mapping[str, Any]


def _figure(part: str, name: str) -> Callable[[Line], float | None]:
    return lambda line: line["figures"][part].get(name)


def _measured(place: int, name: str) -> Callable[[Line], float | None]:
    return lambda line: line["curve"][place].get(name)


def _control(line: Line) -> float | None:
    return next((values["success"] for values in line["controls"].values()), None)


def _untrained(name: str) -> Callable[[Line], float | None]:
    return lambda line: line["controls"].get("untrained", {}).get(name)


COLUMNS: Mapping[str, Callable[[Line], float | None]] = {
    "optimizer steps": lambda line: line["figures"]["optimizer_steps"],
    "useful tokens": lambda line: line["figures"]["useful_share"],
    "dead groups": lambda line: line["figures"]["all"].get("dead_played", line["figures"]["all"].get("dead")),
    "dead, steps 1-5": _figure("first", "dead"),
    "copies a step": _figure("all", "copies"),
    "largest share": _figure("all", "largest_share"),
    "clipped, of free tokens with A > 0": lambda line: line["figures"]["free_clipped"],
    "clipped, of all tokens": _figure("all", "clipped"),
    "entropy, steps 1-5": _figure("first", "entropy"),
    "entropy, last 5": _figure("last", "entropy"),
    "KL, last 5": _figure("last", "kl"),
    "tokens an episode, steps 1-5": _figure("first", "length"),
    "tokens an episode, last 5": _figure("last", "length"),
    "in the zone, steps 1-5": _figure("first", "zone"),
    "in the zone, last 5": _figure("last", "zone"),
    "success at the first point": _measured(1, "success"),
    "first call served, before": _measured(0, "served"),
    "after": _measured(-1, "served"),
    "busy calls repeated, before": _measured(0, "recovered"),
    "repeated, after": _measured(-1, "recovered"),
    "calls, before": _measured(0, "calls"),
    "calls, after": _measured(-1, "calls"),
    "control": _control,
    "format, untrained": _untrained("format"),
    "format, imitated": _measured(0, "format"),
    "format, GRPO": _measured(-1, "format"),
    "error, untrained": _untrained("error"),
    "error, imitated": _measured(0, "error"),
    "error, GRPO": _measured(-1, "error"),
    "Brier, imitated": _measured(0, "brier"),
    "Brier, GRPO": _measured(-1, "brier"),
    "agreement, imitated": _measured(0, "agreement"),
    "agreement, GRPO": _measured(-1, "agreement"),
    "second attempts, with a critique": _control,
    "second attempts in training, last 5": _figure("last", "success_refined"),
    "tokens to .8": lambda line: tokens_to(line, 0.8),
    "seeds that reach .8": lambda line: float(max(point["success"] for point in line["curve"]) >= 0.8),
    "left zero": leaves_zero,
    "pass@8, before": _measured(0, "pass@8"),
    "pass@8, after": _measured(-1, "pass@8"),
    "tasks kept": lambda line: line.get("kept"),
    "tokens of curation": lambda line: line.get("curation_tokens"),
}
_TREE = ["tokens to .8", "seeds that reach .8", "optimizer steps", "dead groups", "entropy, last 5"]
_CLIP = ["optimizer steps", "clipped, of free tokens with A > 0", "clipped, of all tokens", "entropy, last 5"]
_STAGED = ["dead, steps 1-5", "dead groups", "first call served, before", "after"]
_CARRIED = ["dead groups", "entropy, last 5", "calls, after", "control"]
SHOWN = {
    "vspo": ["optimizer steps", "dead groups", "copies a step", "largest share", "useful tokens", "entropy, last 5"],
    "origin": ["busy calls repeated, before", "repeated, after", "calls, after", "dead groups", "control"],
    "prs-format": _STAGED,
    "prs-starved": _STAGED,
    "prs-choice": _STAGED,
    "curated": ["useful tokens", "dead groups", "tasks kept", "tokens of curation", "optimizer steps"],
    "sequence": _CLIP,
    "epsilon-high": _CLIP,
    "overlong": [
        "in the zone, steps 1-5",
        "in the zone, last 5",
        "tokens an episode, steps 1-5",
        "tokens an episode, last 5",
        "dead groups",
        "success at the first point",
    ],
    "kl": ["KL, last 5", "entropy, last 5", "tokens an episode, last 5", "optimizer steps"],
    "damping": ["clipped, of all tokens", "entropy, last 5", "copies a step", "optimizer steps"],
    "judge": [
        f"{what}, {when}"
        for what in ("format", "error", "Brier", "agreement")
        for when in ("untrained", "imitated", "GRPO")
        if when != "untrained" or what in ("format", "error")
    ],
    "reagent": [
        "second attempts, with a critique",
        "second attempts in training, last 5",
        "tokens an episode, last 5",
        "optimizer steps",
        "dead groups",
    ],
    "tree-two-hop": _TREE,
    "tree-trail": _TREE,
    "diverse": _CARRIED,
    "graded": ["optimizer steps", "dead groups", "copies a step", "largest share", "useful tokens", "entropy, last 5"],
    "starved": ["left zero", *_STAGED],
    "worlds": _CARRIED,
    "curation": ["useful tokens", "dead groups", "tasks kept", "tokens of curation", "optimizer steps"],
    "scaled": _CLIP,
    "process": ["dead, steps 1-5", "dead groups", "first call served, before", "after", "optimizer steps"],
    "pass-at-8": ["pass@8, before", "pass@8, after", *_CLIP],
    "bounds": _CLIP,
    "graded-again": ["optimizer steps", "dead groups", "copies a step", "useful tokens", "entropy, last 5"],
    "starved-again": ["left zero", *_STAGED],
    "bounds-again": _CLIP,
    "tree-again": _TREE,
    "thinking": ["calls, before", "calls, after", "entropy, last 5", "tokens an episode, last 5", "dead groups"],
}


def interval(values: Sequence[float]) -> str:
    """Return a mean with half of the width of its interval, as text."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:+.3f}"
    return f"{mean:+.3f} ± {half_width(values):.3f}"


def verdict(values: Sequence[float]) -> str:
    """Return the result of a difference in words, by its interval."""
    if len(values) < 5:
        return "too few seeds"
    if abs(np.mean(values)) <= half_width(values):
        return "not resolved"
    return "more" if np.mean(values) > 0 else "less"


def write(page: Path, appendix: Path, results: Results, part: str) -> None:
    """Write the claims into the page, the tables of a part into the appendix, and the part's picture beside them."""
    _draw(page.parent / PICTURES[part], results, PARTS[part])
    tables = [_section(name, comparison, results) for name, comparison in PARTS[part].items()]
    if part == "algorithms":
        tables.append(useful_table())
    _between(appendix, BEGIN.format(part), "\n\n".join(tables))
    _between(page, BEGIN_CLAIMS, table(last_answers(results)))
    for name, text in round_tables(results).items():
        _between(appendix, BEGIN_ROUND.format(name), text)


def round_tables(results: Results) -> dict[str, str]:
    """Return the table of claims of each round, with the number of contrasts that it is corrected for."""
    first, contrasts = first_round(results)
    later = [later_round(results, claims) for claims in (SECOND_CLAIMS, THIRD_CLAIMS)]
    rounds: list[tuple[list[Answer], int]] = [(first, contrasts), *((answers, len(answers)) for answers in later)]
    return {
        name: f"Corrected over {count} contrasts.\n\n{table(answers)}"
        for name, (answers, count) in zip(ROUNDS, rounds, strict=True)
    }


def _between(page: Path, begin: str, written: str) -> None:
    """Replace the text between two marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    if not rest or END not in rest:
        raise SystemExit(f"{page} has no {begin!r} and {END!r}, between which the tables are written")
    page.write_text(f"{before}{begin}\n\n{written}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _section(name: str, comparison: Comparison, results: Results) -> str:
    """Return the table of a comparison: success and its differences, then the mechanism's figures."""
    runs = {arm: results.of(name, arm) for arm in comparison.arms}
    base, shown = runs[comparison.against], SHOWN[name]
    seconds = sum(line["cpu_seconds"] for lines in runs.values() for line in lines.values())
    rows = [
        f"### {comparison.title} (`{name}`)",
        "",
        f"{comparison.tokens:,} tokens a run; differences are to `{comparison.against}`. "
        f"{sum(map(len, runs.values()))} of {sum(map(comparison.seeds_of, runs))} runs, {seconds:.0f} CPU seconds.",
        "",
        f"| arm | seeds | start | AUC | final | d AUC | d final | AUC is | {' | '.join(shown)} |",
        "|---" * (8 + len(shown)) + "|",
    ]
    if not any(runs.values()):
        return "\n".join([*rows[:2], "Not run yet."])
    for arm, lines in runs.items():
        if lines:
            rows.append(_row(arm, lines, {} if arm == comparison.against else base, shown))
    return "\n".join(rows)


def _row(arm: str, lines: Mapping[int, Line], base: Mapping[int, Line], shown: Sequence[str]) -> str:
    both = [seed for seed in lines if seed in base]
    areas = [area(lines[seed]) - area(base[seed]) for seed in both]
    finals = [lines[seed]["curve"][-1]["success"] - base[seed]["curve"][-1]["success"] for seed in both]
    cells = [
        arm,
        str(len(lines)),
        *(f"{np.mean([of(line) for line in lines.values()]):.2f}" for of in (_start, area, _final)),
        *((interval(areas), interval(finals), verdict(areas)) if both else ("", "", "")),
    ]
    for title in shown:
        values = [value for line in lines.values() if (value := COLUMNS[title](line)) is not None]
        cells.append(f"{np.mean(values):.3g}" if values else "")
    return "| " + " | ".join(cells) + " |"


def _start(line: Line) -> float:
    return float(line["curve"][0]["success"])


def _final(line: Line) -> float:
    return float(line["curve"][-1]["success"])


def _draw(picture: Path, results: Results, part: Mapping[str, Comparison]) -> None:
    """Draw a panel for each comparison, and in it the mean over seeds of each arm. Without runs, draw nothing."""
    from matplotlib.figure import Figure  # palaestra[plot]

    panels = {name: values for name, values in part.items() if any(results.of(name, arm) for arm in values.arms)}
    figure = Figure(figsize=(11, 2.6 * -(-len(panels) // 3)), dpi=80, layout="constrained")
    for place, (name, comparison) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(-(-len(panels) // 3), 3, place, title=comparison.title, ylim=(0, 1))
        for arm in comparison.arms:
            curves = [line["curve"] for line in results.of(name, arm).values()]
            if curves:
                tokens = comparison.tokens / 1000 * np.linspace(0, 1, len(curves[0]))
                axes.plot(tokens, np.mean([[p["success"] for p in c] for c in curves], axis=0), label=arm, linewidth=1)
        axes.title.set_fontsize(8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=5, loc="best")
    if panels:
        figure.supxlabel("thousand generated tokens", fontsize=8)
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture)
