"""Sources of an analysis: the folder of a run, or the episodes of one agent in one environment of an episode file.

Metrics of a run are read from its metrics.jsonl; those that an older run lacks are computed from its recorded episodes,
by the same functions. Left out: the comparison of several seeds or sources (`compare_groups`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.errors import UsageError
from palaestra.reading import RecordReader
from palaestra.trainers.evaluation.metrics import (
    EpisodeStats,
    episode_metrics,
    facts_of,
    gap_metrics,
    medians_of,
    mode_metrics,
)
from palaestra.trainers.evaluation.statistics import estimate
from palaestra.trainers.reward.judge_agreement import LabelledEpisode, labelled_episode
from palaestra.trainers.run.folder import Run
from palaestra.trainers.validation import flat, plain
from palaestra.trainers.view.pages.eval_results import measurements

SUCCESS = "rewards/success/mean"
BEFORE, AFTER, WHOLE = "held-out/before", "held-out/after", "rewards/success/whole_run"
_OF_THE_RUN = ("seed", "track", "device", "save.")
"""Prefixes of settings that do not define another experiment."""
_LAST = 10
"""Metrics of a run are means over its last tenth of steps, but at least 5 steps."""


@dataclass
class AnalysisSource:
    """A run, or the episodes of one agent in a file."""

    name: str
    path: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that define the experiment; they are equal for two runs that differ only in their seed."""
    seed: int | None = None
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    """Metrics by step; empty for a file."""
    facts: dict[int, list[EpisodeStats]] = field(default_factory=dict)
    """Facts of the recorded episodes, by step; the key is 0 for a file."""
    measured: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Metrics with their own interval over tasks: (value, low, high)."""
    broken: int = 0
    labelled: list[LabelledEpisode] = field(default_factory=list)
    """Episodes that a judge has scored."""

    @cached_property
    def last(self) -> list[int]:
        """Return the last steps, over which the metrics are averaged."""
        return sorted(self.steps)[-max(5, -(-len(self.steps) // _LAST)) :]

    def figures(self, medians: tuple[float, float]) -> dict[str, float]:
        """Return all metrics of the source; modes are relative to `medians`."""
        metrics = {name: value for name, (value, _, _) in self.measured.items()}
        if not self.steps:
            facts = self.facts.get(0, [])
            return {**episode_metrics(facts, medians), **gap_metrics(facts), "episodes/broken": self.broken, **metrics}
        for name in dict.fromkeys(name for step in self.last for name in self.steps[step]):
            metrics[name] = float(np.mean([self.steps[step][name] for step in self.last if name in self.steps[step]]))
        if whole := self.curve(SUCCESS):
            metrics[WHOLE] = float(np.mean(list(whole.values())))
        last_facts = [episode_facts for step in self.last for episode_facts in self.facts.get(step, [])]
        return metrics | mode_metrics(last_facts, medians)

    def curve(self, name: str) -> dict[int, float]:
        """Return a metric by step, for the steps that have it."""
        return {step: figures[name] for step, figures in sorted(self.steps.items()) if name in figures}


def sources_of(paths: Sequence[Path], say: Callable[[str], object]) -> list[AnalysisSource]:
    """Return the sources in run folders, folders of runs, and episode files. `say` gets messages on damaged lines."""
    sources = [source for path in paths for source in (_in_folder(path, say) if path.is_dir() else _of_file(path, say))]
    if not sources:
        raise UsageError("nothing to analyse; pass runs' folders, or files of episodes (.jsonl)")
    return list({(source.path.resolve(), source.name): source for source in sources}.values())


def _in_folder(path: Path, say: Callable[[str], object]) -> list[AnalysisSource]:
    if (path / "config.json").exists():
        return [_of_run(path, say)]
    inner = {config.parent for depth in ("*", "*/*") for config in path.glob(f"{depth}/config.json")}
    runs = sorted((folder for folder in inner if (folder / "metrics.jsonl").exists()), key=_natural)
    if not runs:
        raise UsageError(f"{str(path)!r} holds no run, and no folder of runs; expected config.json and metrics.jsonl")
    return [_of_run(run, say) for run in runs]


def _natural(path: Path) -> list[tuple[float, str]]:
    """Return a sort key that orders numbers in a path by value."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [(float(part), "") if at % 2 else (-1.0, part) for at, part in enumerate(parts)]


def _of_run(path: Path, say: Callable[[str], object]) -> AnalysisSource:
    run = Run.read(path)
    settings = flat(plain(run.config))
    source = AnalysisSource(
        path.resolve().name,
        path,
        {key: value for key, value in settings.items() if not key.startswith(_OF_THE_RUN)} | {"kind": run.config.KIND},
        run.config.seed,
    )
    episode_files = sorted(filter(Path.is_file, (path / "episodes").glob("step-*.jsonl")))
    for place, record in RecordReader(episode_files, say) if episode_files else ():
        source.labelled += filter(None, [labelled_episode(record, place)])
        step = next((lesson.step for lesson in record.lessons), None)
        if step is not None and record.episode.reward is not None:  # Episodes without a lesson were not trained on.
            source.facts.setdefault(step, []).append(facts_of(record.episode, step))
    logged_steps = {line["step"]: _numbers(line) for line in run.metrics}
    for step in sorted({*logged_steps, *source.facts}):
        facts = source.facts.get(step, [])
        source.steps[step] = {**episode_metrics(facts), **gap_metrics(facts), **logged_steps.get(step, {})}
    for measurement in measurements(path):
        if measurement["when"] in ("before", "after"):
            source.measured[BEFORE if measurement["when"] == "before" else AFTER] = tuple(measurement["sampled"])
    return source


def _of_file(path: Path, say: Callable[[str], object]) -> list[AnalysisSource]:
    if not path.is_file():
        raise UsageError(f"there is no {str(path)!r}; pass a run's folder, or a file of episodes (.jsonl)")
    source_by_agent: dict[tuple[str, str], AnalysisSource] = {}
    for place, record in RecordReader([path], say):
        agent, env_id = key = record.agent, record.env_id
        new = AnalysisSource(path.stem, path, {"agent": agent, "env_id": env_id})
        source = source_by_agent.setdefault(key, new)
        source.labelled += filter(None, [labelled_episode(record, place)])
        if record.episode.reward is None:
            source.broken += 1
        else:
            source.facts.setdefault(0, []).append(facts_of(record.episode, source.path))
    if not source_by_agent:
        raise UsageError(
            f"no line of {str(path)!r} is an episode; pass a run's folder, or what 'palaestra eval --save' or "
            "'palaestra collect' has written"
        )
    agents, env_ids = map(set, zip(*source_by_agent, strict=True))
    for (agent, env_id), source in source_by_agent.items():
        source.name = " ".join([path.stem, *[agent] * (len(agents) > 1), *[env_id] * (len(env_ids) > 1)])
        by_task: dict[Any, list[float]] = {}
        for episode_facts in source.facts.get(0, ()):
            by_task.setdefault(episode_facts.group, []).append(episode_facts.parts.get("success", 0.0))
        if by_task:
            success = estimate([float(np.mean(row)) for row in by_task.values()])
            source.measured[SUCCESS] = success.value, success.low, success.high
    return list(source_by_agent.values())


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def pooled_medians(sources: Sequence[AnalysisSource]) -> tuple[float, float]:
    """Return `medians_of` all episodes of these sources."""
    return medians_of([episode for source in sources for facts in source.facts.values() for episode in facts])
