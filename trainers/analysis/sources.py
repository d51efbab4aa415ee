"""What is analysed: the folder of a run, or what one agent has played of an environment in a file of episodes.

A run's figures are those of its metrics.jsonl; what an older one lacks there is computed from the episodes that it has
kept, by the same functions. Left out: what several seeds or several sources say together (`comparing`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.errors import UsageError
from palaestra.reading import Reading
from palaestra.trainers.checked import flat, plain
from palaestra.trainers.metrics import Facts, episode_metrics, facts_of, gap_metrics, medians_of, mode_metrics
from palaestra.trainers.run import Run
from palaestra.trainers.scoring.agreement import Judged, judged
from palaestra.trainers.statistics import estimate
from palaestra.trainers.viewer.measured import measurements

SUCCESS = "rewards/success/mean"
BEFORE, AFTER, WHOLE = "held-out/before", "held-out/after", "rewards/success/whole_run"
_OF_THE_RUN = ("seed", "track", "device", "save.")
"""Settings that make no other experiment."""
_LAST = 10
"""The last tenth of a run's steps, and at least 5, are what is said of it."""


@dataclass
class Source:
    """A run, or the episodes of one agent in a file."""

    name: str
    path: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What makes it another experiment; two runs that differ in their seed alone have the same."""
    seed: int | None = None
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    """The curves: figures by step. Empty for a file."""
    facts: dict[int, list[Facts]] = field(default_factory=dict)
    """Of the episodes that were kept, by step; 0 for a file."""
    measured: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Figures with an interval of their own, over tasks."""
    broken: int = 0
    judged: list[Judged] = field(default_factory=list)
    """The episodes that a judge has given a score."""

    @cached_property
    def last(self) -> list[int]:
        """The steps that its figures are the mean of."""
        return sorted(self.steps)[-max(5, -(-len(self.steps) // _LAST)) :]

    def figures(self, medians: tuple[float, float]) -> dict[str, float]:
        """Everything that is said of it; modes are relative to `medians`."""
        found = {name: value for name, (value, _, _) in self.measured.items()}
        if not self.steps:
            facts = self.facts.get(0, [])
            return {**episode_metrics(facts, medians), **gap_metrics(facts), "episodes/broken": self.broken, **found}
        for name in dict.fromkeys(name for step in self.last for name in self.steps[step]):
            found[name] = float(np.mean([self.steps[step][name] for step in self.last if name in self.steps[step]]))
        if whole := self.curve(SUCCESS):
            found[WHOLE] = float(np.mean(list(whole.values())))
        return found | mode_metrics([one for step in self.last for one in self.facts.get(step, [])], medians)

    def curve(self, name: str) -> dict[int, float]:
        """A figure by step, where it is known."""
        return {step: figures[name] for step, figures in sorted(self.steps.items()) if name in figures}


def sources_of(paths: Sequence[Path], say: Callable[[str], object]) -> list[Source]:
    """What some paths hold: runs' folders, folders of such folders, files of episodes. `say` hears of damaged lines."""
    found = [source for path in paths for source in (_in_folder(path, say) if path.is_dir() else _of_file(path, say))]
    if not found:
        raise UsageError("nothing to analyse; pass runs' folders, or files of episodes (.jsonl)")
    return list({(source.path.resolve(), source.name): source for source in found}.values())


def _in_folder(path: Path, say: Callable[[str], object]) -> list[Source]:
    if (path / "config.json").exists():
        return [_of_run(path, say)]
    inner = {config.parent for depth in ("*", "*/*") for config in path.glob(f"{depth}/config.json")}
    runs = sorted((folder for folder in inner if (folder / "metrics.jsonl").exists()), key=_natural)
    if not runs:
        raise UsageError(f"{str(path)!r} holds no run, and no folder of runs; expected config.json and metrics.jsonl")
    return [_of_run(run, say) for run in runs]


def _natural(path: Path) -> list[tuple[float, str]]:
    """Numbers in a name are ordered as numbers."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [(float(part), "") if at % 2 else (-1.0, part) for at, part in enumerate(parts)]


def _of_run(path: Path, say: Callable[[str], object]) -> Source:
    run = Run.read(path)
    settings = flat(plain(run.config))
    source = Source(
        path.resolve().name,
        path,
        {key: value for key, value in settings.items() if not key.startswith(_OF_THE_RUN)} | {"kind": run.config.KIND},
        run.config.seed,
    )
    kept = sorted((path / "episodes").glob("step-*.jsonl"))
    for place, record in Reading(kept, say) if kept else ():
        source.judged += filter(None, [judged(record, place)])
        step = next((lesson.step for lesson in record.lessons), None)
        if step is not None and record.episode.reward is not None:  # What is no lesson was not learned from.
            source.facts.setdefault(step, []).append(facts_of(record.episode, step))
    told = {line["step"]: _numbers(line) for line in run.metrics}
    for step in sorted({*told, *source.facts}):
        facts = source.facts.get(step, [])
        source.steps[step] = {**episode_metrics(facts), **gap_metrics(facts), **told.get(step, {})}
    for one in measurements(path):
        if one["when"] in ("before", "after"):
            source.measured[BEFORE if one["when"] == "before" else AFTER] = tuple(one["sampled"])
    return source


def _of_file(path: Path, say: Callable[[str], object]) -> list[Source]:
    if not path.is_file():
        raise UsageError(f"there is no {str(path)!r}; pass a run's folder, or a file of episodes (.jsonl)")
    found: dict[tuple[str, str], Source] = {}
    for place, record in Reading([path], say):
        who = (record.agent, record.env_id)
        source = found.setdefault(who, Source(path.stem, path, {"agent": record.agent, "env_id": record.env_id}))
        source.judged += filter(None, [judged(record, place)])
        if record.episode.reward is None:
            source.broken += 1
        else:
            source.facts.setdefault(0, []).append(facts_of(record.episode, source.path))
    if not found:
        raise UsageError(
            f"no line of {str(path)!r} is an episode; pass a run's folder, or what 'palaestra eval --save' or "
            "'palaestra collect' has written"
        )
    for (agent, env_id), source in found.items():
        several = [
            text for text, all_ in ((agent, {a for a, _ in found}), (env_id, {e for _, e in found})) if all_ - {text}
        ]
        source.name = " ".join([path.stem, *several])
        by_task: dict[Any, list[float]] = {}
        for one in source.facts.get(0, ()):
            by_task.setdefault(one.group, []).append(one.parts.get("success", 0.0))
        if by_task:
            success = estimate([float(np.mean(row)) for row in by_task.values()])
            source.measured[SUCCESS] = success.value, success.low, success.high
    return list(found.values())


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def pooled_medians(sources: Sequence[Source]) -> tuple[float, float]:
    """Of all episodes that are compared."""
    return medians_of([one for source in sources for one in _all(source)])


def _all(source: Source) -> Iterator[Facts]:
    for facts in source.facts.values():
        yield from facts
