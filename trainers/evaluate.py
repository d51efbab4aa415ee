"""How good an agent is on tasks it was not trained on: avg@k, pass@k and maj@k with intervals, sampled or greedy.

Left out: the figures themselves (`statistics`, `intervals`).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.policies.table import in_every_seat
from palaestra.episode import Ending, Episode, Start, Status
from palaestra.errors import UsageError
from palaestra.protocols import Arena
from palaestra.trainers import statistics
from palaestra.trainers.intervals import difference_interval
from palaestra.trainers.metrics import episode_metrics, facts_of
from palaestra.trainers.progress import Progress, result_of
from palaestra.trainers.sampling.draws import counts_in
from palaestra.trainers.sampling.seats import seated, seats_of
from palaestra.trainers.scale.ranks import ALONE, Ranks
from palaestra.trainers.statistics import Comparison, Values, estimate, powers_of_two

SEEDS_BEYOND_TRAINING = 2**40


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
    """95 % interval of the success; the tasks are the independent unit."""
    reward: float
    calls: float
    """Tool calls an episode, working or not."""
    failed_calls: float
    """Share of calls that were malformed or failed."""
    success_with_tool: float
    """Success among the episodes in which a call worked; 0 when there are none."""
    tool_share: float
    """Share of episodes in which a call worked."""
    tokens: float | None
    """Sampled tokens an episode; None for an agent whose turns are text, such as one behind a server."""
    broken: int
    """Episodes without a reward; in none of the figures."""
    endings: dict[str, int]
    at_k: dict[str, dict[str, float]] = field(default_factory=dict)
    """By name, for k in 1, 2, 4 ... and `samples`: `value`, `low`, `high`, and the `tasks` with at least k samples.

    `pass@k` is unbiased and counts full success, `any@k` counts the first k samples, `gap@k` is pass@k less avg@k, and
    `maj@k` takes the answer most often given; `bootstrap best@k` and `bootstrap maj@k` are the papers', from 1000
    resamples with replacement.
    """
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Beside success, the means of the reward's parts that lie from 0 to 1: `value`, `low`, `high` and `tasks`."""
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of a mixture, the report of each environment; the other figures are of all, weighted as the mixture is."""

    def as_dict(self) -> dict[str, object]:
        """For JSON, and back again."""
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
    limits: TokenLimits | None = None,
    seed: int = 0,
    seats: Sequence[str] = (),
    ranks: Ranks = ALONE,
) -> tuple[Report, list[Episode]]:
    """`evaluation`, without showing how far it is."""
    return result_of(
        evaluation(
            agent,
            arena,
            tasks=tasks,
            samples=samples,
            temperature=temperature,
            limits=limits,
            seed=seed,
            seats=seats,
            ranks=ranks,
        )
    )


def evaluation(
    agent: Agent,
    arena: Arena,
    *,
    tasks: int = 256,
    samples: int = 1,
    temperature: float = 1.0,
    limits: TokenLimits | None = None,
    seed: int = 0,
    stage: str = "evaluation",
    seats: Sequence[str] = (),
    ended: Callable[[Episode], object] | None = None,
    ranks: Ranks = ALONE,
) -> Generator[Progress, None, tuple[Report, list[Episode]]]:
    """Play the first `tasks` tasks of the arena's split `samples` times each; the episodes come back in task order.

    A generator of Progress, one for each episode that has ended, which `ended` is shown before. Of a game all seats are
    played, and `seats` (all where none is named) are in the figures. Each rank plays its share of the tasks, and all
    get all episodes.
    """
    asked, table = held_out(arena, tasks), seats_of(arena)
    tasks = len(asked)
    agent = in_every_seat(agent, table)

    starts = held_out_starts(asked, samples, seed, ranks)
    episodes: list[Episode] = []
    scored, successes = 0, 0.0
    for episode in play(agent, arena, seated(starts, table), limits=limits, temperature=temperature):
        episodes.append(episode)
        if ended is not None:
            ended(episode)
        if episode.reward is not None and _counts(episode, seats):
            scored, successes = scored + 1, successes + episode.parts["success"]
        metrics = {"rewards/success/mean": successes / scored} if scored else {}
        yield Progress(stage, len(episodes), tasks * samples * max(1, len(table)), metrics)
    episodes = [episode for own in ranks.gathered(episodes) for episode in own]
    episodes.sort(key=lambda episode: (*episode.start.key[:3], episode.start.seat or ""))
    counted = [episode for episode in episodes if _counts(episode, seats)]
    return summarise(counted, tasks, samples, temperature), episodes


def held_out_starts(asked: Sequence[tuple[str, int]], samples: int, seed: int, ranks: Ranks = ALONE) -> Iterator[Start]:
    """What a rank plays of an evaluation of these tasks of these environments."""
    for place in range(ranks.rank, len(asked), ranks.count):
        env, task = asked[place]
        for sample in range(samples):
            number = SEEDS_BEYOND_TRAINING + (seed * len(asked) + place) * samples + sample
            yield Start(task=task, seed=number, group=place, env=env)


def held_out(arena: Arena, tasks: int) -> list[tuple[str, int]]:
    """The first so many tasks of an arena. Of a mixture each environment's, by its share: where one has too few, all
    have fewer, so that the figures of all together are weighted as the mixture is.
    """
    found, there = counts_in(arena, tasks)
    while any(found[env] > count for env, count in there.items()):
        tasks = min(tasks - 1, *(tasks * count // found[env] for env, count in there.items() if found[env]))
        found, there = counts_in(arena, tasks)
    if lacking := [env for env, count in found.items() if not count]:
        raise UsageError(f"{tasks} tasks are too few to measure a mixture: {lacking[0]} has none by its share")
    return [(env, task) for env, count in found.items() for task in range(count)]


def by_seat(
    report: Report, episodes: Sequence[Episode], seats: Sequence[str]
) -> dict[str, tuple[Report, list[Episode]]]:
    """The evaluation of a game, seat by seat."""
    found = {}
    for seat in seats:
        own = [episode for episode in episodes if episode.start.seat == seat]
        found[seat] = summarise(own, report.tasks, report.samples, report.temperature), own
    return found


def _counts(episode: Episode, seats: Sequence[str]) -> bool:
    return not seats or episode.start.seat in seats


def summarise(episodes: Sequence[Episode], tasks: int, samples: int, temperature: float) -> Report:
    """The figures of played episodes."""
    scored = [episode for episode in episodes if episode.reward is not None]
    matrix = [row for row in successes_by_task(episodes).values() if row]
    success = estimate(statistics.avg_at_k(matrix))
    figures = episode_metrics([facts_of(episode) for episode in scored])
    with_tool = [e for e in scored if any(call.status is Status.OK for call in e.attempt.calls)]
    count = max(1, len(scored))
    return Report(
        tasks=tasks,
        samples=samples,
        temperature=temperature,
        success=success.value,
        low=success.low,
        high=success.high,
        reward=sum(e.reward for e in scored if e.reward is not None) / count,
        calls=figures.get("tools/call_frequency", 0.0),
        failed_calls=figures.get("tools/failure_frequency", 0.0),
        success_with_tool=sum(e.parts["success"] for e in with_tool) / max(1, len(with_tool)),
        tool_share=len(with_tool) / count,
        tokens=figures.get("completions/mean_length", 0.0) if any(e.rows for e in scored) else None,
        broken=len(episodes) - len(scored),
        endings={str(ending): sum(e.ending is ending for e in episodes) for ending in Ending},
        at_k=_at_k(matrix, _answers_by_task(scored), samples),
        parts=_parts(scored),
        environments=_by_environment(episodes, samples, temperature),
    )


def _parts(scored: Sequence[Episode]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for episode in scored:
        for name, value in episode.parts.items():
            found.setdefault(name, {}).setdefault(episode.start.key[:2], []).append(value)
    by_task = {
        name: [sum(row) / len(row) for row in rows.values()] for name, rows in found.items() if name != "success"
    }
    return {name: asdict(estimate(row)) for name, row in by_task.items() if min(row) >= 0 and max(row) <= 1}


def _by_environment(episodes: Sequence[Episode], samples: int, temperature: float) -> dict[str, dict[str, Any]]:
    found: dict[str, list[Episode]] = {}
    for episode in episodes:
        found.setdefault(episode.start.env, []).append(episode)
    if len(found) < 2:
        return {}
    return {
        env: summarise(own, len({episode.start.task for episode in own}), samples, temperature).as_dict()
        for env, own in found.items()
    }


def successes_by_task(episodes: Sequence[Episode]) -> dict[tuple[str, int], list[float]]:
    """The successes of each task that was played, by environment and task; an empty list where every episode broke."""
    found: dict[tuple[str, int], list[float]] = {}
    for episode in episodes:
        row = found.setdefault(episode.start.key[:2], [])
        if episode.reward is not None:
            row.append(episode.parts["success"])
    return found


def compare(first: Sequence[Episode], second: Sequence[Episode]) -> Comparison:
    """Two agents' episodes of the same tasks, compared by task."""
    return statistics.compare(successes_by_task(first), successes_by_task(second))


def _answers_by_task(scored: Sequence[Episode]) -> list[list[str | None]]:
    found: dict[tuple[str, int], list[str | None]] = {}
    for episode in scored:
        found.setdefault(episode.start.key[:2], []).append(episode.attempt.answer)
    return list(found.values())


def _at_k(matrix: statistics.Matrix, answers: statistics.Answers, samples: int) -> dict[str, dict[str, float]]:
    found: dict[str, Values] = {}
    for k in powers_of_two(samples):
        found[f"pass@{k}"] = statistics.pass_at_k(matrix, k)
        found[f"any@{k}"] = statistics.any_of_k(matrix, k)
        found[f"maj@{k}"] = statistics.maj_at_k(matrix, answers, k)
        found[f"bootstrap best@{k}"] = statistics.best_of_resamples(matrix, k)
        found[f"bootstrap maj@{k}"] = statistics.maj_of_resamples(matrix, answers, k)
    gaps = {f"gap@{k}": estimate(statistics.gap_at_k(matrix, k), difference_interval) for k in powers_of_two(samples)}
    return {name: asdict(one) for name, one in {**{n: estimate(v) for n, v in found.items()}, **gaps}.items()}
