"""Sources side by side: runs that differ in their seed alone are one group, and the groups are held against the first.

Intervals are Student's, over seeds: what another seed would have given. A single source has those of its own
measurements, over tasks. The difference to the first group is that of the same seeds, where both have them, so what a
seed decides (start, tasks, noise) is in neither side of it. Left out: reading (`sources`) and drawing (`plots`).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.trainers.analysis.sources import Source, pooled_medians, sources_of
from palaestra.trainers.intervals import student_interval
from palaestra.trainers.scoring.agreement import Judged, disagreements

MOST_LISTED = 100
"""Episodes of a group that are named one by one."""
_OWN_NAME = ("recipe.recipe_name", "env.env_id")
"""Settings that stand in a group's name without their key, and that bring others with them."""
_MOST_IN_NAME = 5
"""Settings in a group's name; where more differ, it is named by the folder of its first run."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the sources of a group."""

    value: float
    low: float | None
    """95 %; None where one source says nothing of the spread."""
    high: float | None
    runs: int
    over: str = "seeds"
    """What the interval is over: seeds, or tasks."""


@dataclass
class Group:
    """Sources that differ in their seed alone."""

    name: str
    sources: list[Source]
    each: list[dict[str, float]]
    """The figures of each source."""
    figures: dict[str, Spread] = field(default_factory=dict)
    beside: dict[str, Spread] = field(default_factory=dict)
    """How much larger than in the first group, paired by seed; of two seeds or more."""

    @property
    def judged(self) -> list[Judged]:
        """The episodes that a judge has given a score."""
        return [one for source in self.sources for one in source.judged]


@dataclass(frozen=True)
class Analysis:
    """All that was found."""

    groups: list[Group]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "groups": [
                {
                    "name": group.name,
                    "runs": [
                        {"path": str(source.path), "seed": source.seed, "steps": len(source.steps), "figures": figures}
                        for source, figures in zip(group.sources, group.each, strict=True)
                    ],
                    "figures": {name: asdict(one) for name, one in group.figures.items()},
                    "beside_first": {name: asdict(one) for name, one in group.beside.items()},
                    **_said(group.judged),
                }
                for group in self.groups
            ]
        }


def analyse(paths: Sequence[Path | str], say: Callable[[str], object] = warnings.warn) -> Analysis:
    """Read runs, folders of runs and files of episodes, and hold them against each other; `say` hears of what cannot be
    read.
    """
    sources = sources_of([Path(path) for path in paths], say)
    medians = pooled_medians(sources)
    groups: list[Group] = []
    for own, name in _grouped(sources):
        groups.append(Group(name, own, [source.figures(medians) for source in own]))
        groups[-1].figures = _spreads(groups[-1])
        groups[-1].beside = _beside(groups[0], groups[-1]) if len(groups) > 1 else {}
    return Analysis(groups)


def _said(found: Sequence[Judged]) -> dict[str, Any]:
    """For JSON, where a judge gave scores: how many, and the episodes that contradict them, the widest apart first."""
    apart = disagreements(found)
    listed = [{"kind": one.contradiction, **asdict(one)} for one in apart[:MOST_LISTED]]
    return {"judged": len(found), "contradicted": len(apart), "disagreements": listed} if found else {}


def _spreads(group: Group) -> dict[str, Spread]:
    found = {}
    for name in dict.fromkeys(name for figures in group.each for name in figures):
        values = [figures[name] for figures in group.each if name in figures]
        over, (low, high) = "seeds", student_interval(values) or (None, None)
        if len(group.sources) == 1 and (own := group.sources[0].measured.get(name)):
            over, (_, low, high) = "tasks", own
        found[name] = Spread(float(np.mean(values)), low, high, len(values), over)
    return found


def _beside(first: Group, other: Group) -> dict[str, Spread]:
    ours, theirs = _by_seed(other), _by_seed(first)
    both = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    found = {}
    for name in dict.fromkeys(name for pair in both for name in pair[0]):
        differences = [mine[name] - its[name] for mine, its in both if name in mine and name in its]
        if (interval := student_interval(differences)) is not None:
            found[name] = Spread(float(np.mean(differences)), *interval, len(differences))
    return found


def _by_seed(group: Group) -> dict[int, dict[str, float]]:
    """The figures by seed; of a seed that was run twice neither is the one to pair."""
    seeds = [source.seed for source in group.sources]
    pairs = zip(group.sources, group.each, strict=True)
    return {s.seed: figures for s, figures in pairs if s.seed is not None and seeds.count(s.seed) == 1}


def _grouped(sources: Sequence[Source]) -> list[tuple[list[Source], str]]:
    """The sources of each group, in the order in which they came, with a name of what tells it from the others."""
    groups: dict[tuple[Any, ...], list[Source]] = {}
    for source in sources:
        # A file stands for itself: it does not say which seed it was played with.
        alone = () if source.seed is not None else (source.path, source.name)
        key = (*alone, *sorted((name, str(value)) for name, value in source.settings.items()))
        groups.setdefault(key, []).append(source)
    members = list(groups.values())
    names = [_name(own[0], [other[0] for other in members]) for own in members]
    return [
        (own, name if names.count(name) == 1 else f"{name} ({own[0].path})")
        for own, name in zip(members, names, strict=True)
    ]


def _name(source: Source, others: Sequence[Source]) -> str:
    if source.seed is None:
        return source.name
    runs = [one for one in others if one.seed is not None]
    parts = [str(source.settings[key]) for key in _OWN_NAME if _differs(key, source, runs)]
    # A recipe brings its values with it: only what differs among runs of one recipe and environment is named.
    alike = [one for one in runs if not any(_differs(key, source, [one]) for key in _OWN_NAME)]
    keys = dict.fromkeys(key for one in alike for key in one.settings)
    parts += [
        f"{key.removesuffix('.name').rpartition('.')[2]} {source.settings.get(key)}"
        for key in keys
        if key not in _OWN_NAME and _differs(key, source, alike)
    ]
    if len(parts) > _MOST_IN_NAME:
        return str(source.path)  # Runs that have little in common: a list of all their settings names none of them.
    return ", ".join(parts) or str(source.settings.get("recipe.recipe_name", source.settings["kind"]))


def _differs(key: str, source: Source, others: Sequence[Source]) -> bool:
    found: Mapping[str, Any] = source.settings
    return any(found.get(key) != one.settings.get(key) for one in others)
