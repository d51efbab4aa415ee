"""How good an agent is on tasks it was not trained on: avg@k with an interval, sampled or greedy."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import sqrt

import numpy as np

from palaestra.agents import Agent, Limits, play
from palaestra.episode import Ending, Episode, Start, Status
from palaestra.protocols import Arena

_SEEDS_BEYOND_TRAINING = 2**40


@dataclass(frozen=True, slots=True)
class Report:
    """An evaluation in figures."""

    tasks: int
    samples: int
    """Episodes a task: the k of avg@k."""
    temperature: float
    success: float
    """avg@k: mean success over tasks and samples."""
    low: float
    high: float
    """95 % interval of the success."""
    reward: float
    calls: float
    """Tool calls an episode, working or not."""
    failed_calls: float
    """Share of calls that were malformed or failed."""
    success_with_tool: float
    """Success among the episodes in which a call worked; 0 when there are none."""
    tool_share: float
    """Share of episodes in which a call worked."""
    tokens: float
    """Sampled tokens an episode."""
    broken: int
    """Episodes without a reward; in none of the figures above."""
    endings: dict[str, int]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Both:
    """An agent measured on the held-out tasks twice: sampled as in training, and greedy."""

    sampled: Report
    greedy: Report
    sampled_episodes: Sequence[Episode]
    """In task order."""
    greedy_episodes: Sequence[Episode]

    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {"sampled": self.sampled.as_dict(), "greedy": self.greedy.as_dict()}


def pooled(measured: Sequence[Both]) -> Both:
    """Several agents measured on the same tasks, as one that plays each task once as each of them."""
    reports, episodes = [], []
    for report, played in (
        (measured[0].sampled, [e for both in measured for e in both.sampled_episodes]),
        (measured[0].greedy, [e for both in measured for e in both.greedy_episodes]),
    ):
        reports.append(summarise(played, report.tasks, report.samples * len(measured), report.temperature))
        episodes.append(played)
    return Both(reports[0], reports[1], episodes[0], episodes[1])


def evaluate(
    agent: Agent,
    arena: Arena,
    *,
    tasks: int = 256,
    samples: int = 1,
    temperature: float = 1.0,
    limits: Limits | None = None,
    seed: int = 0,
) -> tuple[Report, list[Episode]]:
    """Play the first `tasks` tasks of the arena's split `samples` times each; the episodes come back in task order."""
    tasks = min(tasks, arena.task_count)

    def starts() -> Iterator[Start]:
        for task in range(tasks):
            for sample in range(samples):
                number = _SEEDS_BEYOND_TRAINING + (seed * tasks + task) * samples + sample
                yield Start(task=task, seed=number, group=task)

    episodes = sorted(
        play(agent, arena, starts(), limits=limits, temperature=temperature), key=lambda e: (e.start.task, e.start.seed)
    )
    return summarise(episodes, tasks, samples, temperature), episodes


def summarise(episodes: Sequence[Episode], tasks: int, samples: int, temperature: float) -> Report:
    """The figures of played episodes."""
    scored = [episode for episode in episodes if episode.reward is not None]
    by_task: dict[int, list[float]] = {}
    for episode in scored:
        by_task.setdefault(episode.start.task, []).append(episode.parts["success"])
    success = float(np.mean([np.mean(values) for values in by_task.values()])) if by_task else 0.0
    low, high = wilson(success, len(by_task))
    calls = [call for episode in scored for call in episode.attempt.calls]
    with_tool = [e for e in scored if any(call.status is Status.OK for call in e.attempt.calls)]
    count = max(1, len(scored))
    return Report(
        tasks=tasks,
        samples=samples,
        temperature=temperature,
        success=success,
        low=low,
        high=high,
        reward=sum(e.reward for e in scored if e.reward is not None) / count,
        calls=len(calls) / count,
        failed_calls=sum(call.status is not Status.OK for call in calls) / max(1, len(calls)),
        success_with_tool=sum(e.parts["success"] for e in with_tool) / max(1, len(with_tool)),
        tool_share=len(with_tool) / count,
        tokens=sum(e.sampled_tokens for e in scored) / count,
        broken=len(episodes) - len(scored),
        endings={str(ending): sum(e.ending is ending for e in episodes) for ending in Ending},
    )


def wilson(mean: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval for a mean of `count` independent values in [0, 1].

    Exact in kind for one sample a task; for the mean of several samples it is too wide rather than too narrow.
    """
    if count == 0:
        return 0.0, 1.0
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
