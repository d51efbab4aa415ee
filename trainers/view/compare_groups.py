"""Compare sources: runs that differ only in their seed form a group, and each group is compared with the first.

Intervals are Student's t intervals over seeds. A single source has the intervals of its own measurements, over tasks.
The difference to the first group is paired by seed, so effects of the seed (initial weights, tasks, noise) cancel out.
Left out: reading (`sources`) and drawing (`plots`).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.trainers.evaluation.intervals import student_interval
from palaestra.trainers.reward.judge_agreement import LabelledEpisode, disagreements
from palaestra.trainers.view.sources import AnalysisSource, pooled_medians, sources_of

MOST_LISTED = 100
"""Largest number of contradicting episodes that are listed for a group."""
_OWN_NAME = ("recipe.recipe_name", "env.env_id")
"""Settings that appear in the name of a group without their key, and that determine other settings."""
_MOST_IN_NAME = 5
"""Largest number of settings in the name of a group. If more differ, the name is the folder of its first run."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean of a metric over the sources of a group, with its interval."""

    value: float
    low: float | None
    """Bounds of the 95 % interval; None if one source gives no interval."""
    high: float | None
    runs: int
    over: str = "seeds"
    """Unit of the interval: seeds or tasks."""


@dataclass
class SeedGroup:
    """Sources that differ only in their seed."""

    name: str
    sources: list[AnalysisSource]
    each: list[dict[str, float]]
    """Metrics of each source."""
    figures: dict[str, Spread] = field(default_factory=dict)
    beside: dict[str, Spread] = field(default_factory=dict)
    """Differences to the first group, paired by seed, for metrics with two or more common seeds."""

    @property
    def labelled(self) -> list[LabelledEpisode]:
        """Return the episodes that a judge has scored."""
        return [episode for source in self.sources for episode in source.labelled]


@dataclass(frozen=True)
class Analysis:
    """Result of `analyse`: the groups that were compared."""

    groups: list[SeedGroup]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "groups": [
                {
                    "name": group.name,
                    "runs": [
                        {"path": str(source.path), "seed": source.seed, "steps": len(source.steps), "figures": figures}
                        for source, figures in zip(group.sources, group.each, strict=True)
                    ],
                    "figures": {name: asdict(spread) for name, spread in group.figures.items()},
                    "beside_first": {name: asdict(spread) for name, spread in group.beside.items()},
                    **_judge_summary(group.labelled),
                }
                for group in self.groups
            ]
        }


def analyse(paths: Sequence[Path | str], say: Callable[[str], object] = warnings.warn) -> Analysis:
    """Read runs, folders of runs and episode files, and compare them. `say` is called with messages about lines that
    cannot be read.
    """
    sources = sources_of([Path(path) for path in paths], say)
    medians = pooled_medians(sources)
    groups: list[SeedGroup] = []
    for members, name in _grouped(sources):
        groups.append(SeedGroup(name, members, [source.figures(medians) for source in members]))
        groups[-1].figures = _spreads(groups[-1])
        groups[-1].beside = _beside(groups[0], groups[-1]) if len(groups) > 1 else {}
    return Analysis(groups)


def _judge_summary(episodes: Sequence[LabelledEpisode]) -> dict[str, Any]:
    """Return the summary of judge scores for JSON: counts, and the largest contradictions; empty without scores."""
    apart = disagreements(episodes)
    examples = [{"kind": episode.contradiction, **asdict(episode)} for episode in apart[:MOST_LISTED]]
    return {"judged": len(episodes), "contradicted": len(apart), "disagreements": examples} if episodes else {}


def _spreads(group: SeedGroup) -> dict[str, Spread]:
    spreads = {}
    for name in dict.fromkeys(name for figures in group.each for name in figures):
        values = [figures[name] for figures in group.each if name in figures]
        over, (low, high) = "seeds", student_interval(values) or (None, None)
        if len(group.sources) == 1 and (interval := group.sources[0].measured.get(name)):
            over, (_, low, high) = "tasks", interval
        spreads[name] = Spread(float(np.mean(values)), low, high, len(values), over)
    return spreads


def _beside(first: SeedGroup, other: SeedGroup) -> dict[str, Spread]:
    other_by_seed, first_by_seed = _by_seed(other), _by_seed(first)
    both = [(other_by_seed[seed], first_by_seed[seed]) for seed in sorted(other_by_seed.keys() & first_by_seed.keys())]
    spreads = {}
    for name in dict.fromkeys(name for pair in both for name in pair[0]):
        differences = [metrics[name] - base[name] for metrics, base in both if name in metrics and name in base]
        if (interval := student_interval(differences)) is not None:
            spreads[name] = Spread(float(np.mean(differences)), *interval, len(differences))
    return spreads


def _by_seed(group: SeedGroup) -> dict[int, dict[str, float]]:
    """Return the metrics by seed. A seed that was run twice is left out, because its pairing is ambiguous."""
    seeds = [source.seed for source in group.sources]
    pairs = zip(group.sources, group.each, strict=True)
    return {s.seed: figures for s, figures in pairs if s.seed is not None and seeds.count(s.seed) == 1}


def _grouped(sources: Sequence[AnalysisSource]) -> list[tuple[list[AnalysisSource], str]]:
    """Return the sources and the name of each group, in input order. The name shows what differs from other groups."""
    groups: dict[tuple[Any, ...], list[AnalysisSource]] = {}
    for source in sources:
        # A file is a group of its own, because it does not record its seed.
        alone = () if source.seed is not None else (source.path, source.name)
        key = (*alone, *sorted((name, str(value)) for name, value in source.settings.items()))
        groups.setdefault(key, []).append(source)
    members = list(groups.values())
    names = [_name(group[0], [peer[0] for peer in members]) for group in members]
    return [
        (group, name if names.count(name) == 1 else f"{name} ({group[0].path})")
        for group, name in zip(members, names, strict=True)
    ]


def _name(source: AnalysisSource, others: Sequence[AnalysisSource]) -> str:
    if source.seed is None:
        return source.name
    runs = [run for run in others if run.seed is not None]
    parts = [str(source.settings[key]) for key in _OWN_NAME if _differs(key, source, runs)]
    # A recipe determines many settings, so only differences among runs of one recipe and environment are named.
    alike = [run for run in runs if not any(_differs(key, source, [run]) for key in _OWN_NAME)]
    keys = dict.fromkeys(key for run in alike for key in run.settings)
    parts += [
        f"{key.removesuffix('.name').rpartition('.')[2]} {source.settings.get(key)}"
        for key in keys
        if key not in _OWN_NAME and _differs(key, source, _comparable(key, source, alike))
    ]
    if len(parts) > _MOST_IN_NAME:
        return str(source.path)  # Too many settings differ for a readable name.
    return ", ".join(parts) or str(source.settings.get("recipe.recipe_name", source.settings["kind"]))


def _comparable(key: str, source: AnalysisSource, runs: Sequence[AnalysisSource]) -> list[AnalysisSource]:
    """Return the runs that can have this setting: a part of a recipe, such as another loss, brings its own settings."""
    part_name = f"{key.rpartition('.')[0]}.name"
    return [run for run in runs if key == part_name or not _differs(part_name, source, [run])]


def _differs(key: str, source: AnalysisSource, others: Sequence[AnalysisSource]) -> bool:
    settings: Mapping[str, Any] = source.settings
    return any(settings.get(key) != other.settings.get(key) for other in others)
