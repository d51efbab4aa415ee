"""Evaluate an agent on tasks it was not trained on: avg@k, pass@k, pass^k and maj@k with intervals (`statistics`)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.policies.table import in_every_seat
from palaestra.causes import Causes
from palaestra.episode import Ending, Episode, Start, Status
from palaestra.errors import SpendingLimit
from palaestra.protocols import Arena
from palaestra.trainers.evaluation import statistics
from palaestra.trainers.evaluation.intervals import difference_interval
from palaestra.trainers.evaluation.metrics import episode_metrics, facts_of
from palaestra.trainers.evaluation.statistics import PairedDifference, Samples, estimate, powers_of_two
from palaestra.trainers.evaluation.success_so_far import SuccessSoFar
from palaestra.trainers.run.progress import OnProgress, Progress, ignore
from palaestra.trainers.samplers.seats import seated, seats_of
from palaestra.trainers.samplers.task_of_group import held_out
from palaestra.trainers.scale.ranks import ALONE, Ranks

SEEDS_BEYOND_TRAINING = 2**40


@dataclass(frozen=True, slots=True)
class Report:
    """Metrics of an evaluation."""

    tasks: int
    samples: int
    """Number of episodes per task: the k of avg@k."""
    temperature: float
    success: float
    """avg@k: the mean success over tasks and samples."""
    low: float
    high: float
    """95 % interval of the success; the tasks are the independent unit."""
    reward: float
    calls: float
    """Number of tool calls per episode, successful or not."""
    failed_calls: float
    """Share of calls that were malformed or failed."""
    success_with_tool: float
    """Success among the episodes in which a call worked; 0 when there are none."""
    tool_share: float
    """Share of episodes in which a call worked."""
    tokens: float | None
    """Number of sampled tokens per episode; None for an agent whose turns are text, such as one behind a server."""
    broken: int
    """Number of episodes without a reward; the other metrics leave them out."""
    endings: dict[str, int]
    causes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of episodes by cause: of those that are `broken`, and of those whose harness `raised` an error."""
    at_k: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics by name, for k in 1, 2, 4 ... and `samples`: `value`, `low`, `high`, and `tasks` with at least k
    samples.

    `pass@k` (one of k samples passes) and `pass^k` (all of them do) are unbiased and count full success, `any@k` counts
    the first k samples, `gap@k` is pass@k minus avg@k, and `maj@k` takes the most frequent answer; `bootstrap best@k`
    and `bootstrap maj@k` are the papers' metrics, from 1000 resamples with replacement."""
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Means of the reward's other parts with values from 0 to 1: `value`, `low`, `high` and `tasks`."""
    requests: dict[str, float] = field(default_factory=dict)
    """Requests of a harness an episode that were `refused` because they did not fit, or `unfollowed` in a wish; only
    those that there were."""
    stopped: str = ""
    """Reason why only a part of the episodes was played, such as a spending limit; "" if all were."""
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Report of each environment of a mixture. The other metrics are over all, weighted as the mixture is."""

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Both:
    """Two evaluations of an agent on the held-out tasks: sampled as in training, and greedy."""

    sampled: Report
    greedy: Report
    sampled_episodes: Sequence[Episode]
    """Episodes of the sampled evaluation, in task order."""
    greedy_episodes: Sequence[Episode]

    def figures(self) -> dict[str, object]:
        """Return both reports as plain values for JSON."""
        return {"sampled": self.sampled.as_dict(), "greedy": self.greedy.as_dict()}


def pooled(measured: Sequence[Both]) -> Both:
    """Combine evaluations of several agents on the same tasks into one, as if each task was played once per agent."""
    first, count = measured[0], len(measured)
    sampled = [episode for both in measured for episode in both.sampled_episodes]
    greedy = [episode for both in measured for episode in both.greedy_episodes]
    sampled_report, greedy_report = (
        summarise(episodes, report.tasks, report.samples * count, report.temperature)
        for report, episodes in ((first.sampled, sampled), (first.greedy, greedy))
    )
    return Both(sampled_report, greedy_report, sampled, greedy)


def evaluate(
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
    greedy: bool = False,
    earlier: Iterable[Episode] = (),
    ended: Callable[[Episode], object] | None = None,
    ranks: Ranks = ALONE,
    on_progress: OnProgress = ignore,
) -> tuple[Report, list[Episode]]:
    """Play the first `tasks` tasks of the arena's split `samples` times each. Return the report and the episodes in
    task order.

    Each episode is passed to `ended` when it ends. In a game all seats are played, and the metrics are over `seats`
    (all seats if it is empty). Each rank plays its share of the tasks, and all ranks get all episodes. `greedy` marks
    the starts as greedy, which sets the temperature to 0. `earlier` are scored episodes of another call with the same
    settings: they are not played again.
    """
    task_list, table = held_out(arena, tasks), seats_of(arena)
    tasks = len(task_list)
    agent = in_every_seat(agent, table)

    episode_by_key = {episode.start.key: episode for episode in earlier}
    starts: list[Start] = []
    episodes: list[Episode] = []
    for start in held_out_starts(task_list, samples, seed, ranks, greedy):
        together = list(seated([start], table))
        if all(seat_start.key in episode_by_key for seat_start in together):
            episodes += [episode_by_key[seat_start.key] for seat_start in together]
        else:  # A game is played again as a whole.
            starts += together
    so_far = SuccessSoFar(episode for episode in episodes if _counts(episode, seats))
    total, sampled = tasks * samples * max(1, len(table)), agent.engine.sampled
    playing = play(agent, arena, starts, limits=limits, temperature=temperature, obey_temperature=True)
    with until_spent() as reasons, closing(playing):
        for episode in playing:
            episodes.append(episode)
            if ended is not None:
                ended(episode)
            if _counts(episode, seats):
                so_far.add(episode)
            metrics = so_far.metrics(agent.engine.sampled - sampled, len(episodes) == total)
            on_progress(Progress(stage, len(episodes), total, metrics))
    episodes = [episode for rank_episodes in ranks.gathered(episodes) for episode in rank_episodes]
    episodes.sort(key=lambda episode: (*episode.start.key[:3], episode.start.seat or ""))
    counted = [episode for episode in episodes if _counts(episode, seats)]
    return partial_report(summarise(counted, tasks, samples, temperature), counted, reasons), episodes


@contextmanager
def until_spent() -> Iterator[list[str]]:
    """End the block where a spending limit is reached. The list that is yielded then holds the reason."""
    reasons: list[str] = []
    try:
        yield reasons
    except SpendingLimit as limit:
        reasons.append(str(limit))


def partial_report(report: Report, episodes: Sequence[Episode], reasons: Sequence[str]) -> Report:
    """Return the report, which counts only the tasks that were played if play was stopped for these reasons."""
    tasks = len({episode.start.key[:2] for episode in episodes})
    return replace(report, tasks=tasks, stopped="; ".join(reasons)) if reasons else report


def held_out_starts(
    tasks: Sequence[tuple[str, int]], samples: int, seed: int, ranks: Ranks = ALONE, greedy: bool = False
) -> Iterator[Start]:
    """Yield the starts that a rank plays in an evaluation of these (environment, task) pairs."""
    for place in range(ranks.rank, len(tasks), ranks.count):
        env, task = tasks[place]
        for sample in range(samples):
            number = SEEDS_BEYOND_TRAINING + (seed * len(tasks) + place) * samples + sample
            yield Start(task=task, seed=number, group=place, env=env, greedy=greedy)


def by_seat(
    report: Report, episodes: Sequence[Episode], seats: Sequence[str]
) -> dict[str, tuple[Report, list[Episode]]]:
    """Return, for each seat of a game, the report and the episodes of its evaluation."""
    reports = {}
    for seat in seats:
        seat_episodes = [episode for episode in episodes if episode.start.seat == seat]
        reports[seat] = summarise(seat_episodes, report.tasks, report.samples, report.temperature), seat_episodes
    return reports


def _counts(episode: Episode, seats: Sequence[str]) -> bool:
    return not seats or episode.start.seat in seats


def summarise(episodes: Sequence[Episode], tasks: int, samples: int, temperature: float) -> Report:
    """Return the report on played episodes."""
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
        causes=Causes.of(episodes).as_dict(),
        at_k=_at_k(matrix, _answers_by_task(scored), samples),
        parts=_parts(scored),
        requests={
            name: figures[f"episodes/{name}"] for name in ("refused", "unfollowed") if f"episodes/{name}" in figures
        },
        environments=_by_environment(episodes, samples, temperature),
    )


def _parts(scored: Sequence[Episode]) -> dict[str, dict[str, float]]:
    values_by_part: dict[str, dict[tuple[str, int], list[float]]] = {}
    for episode in scored:
        for name, value in episode.parts.items():
            values_by_part.setdefault(name, {}).setdefault(episode.start.key[:2], []).append(value)
    by_task = {
        name: [sum(row) / len(row) for row in rows.values()]
        for name, rows in values_by_part.items()
        if name != "success"
    }
    return {name: asdict(estimate(row)) for name, row in by_task.items() if min(row) >= 0 and max(row) <= 1}


def _by_environment(episodes: Sequence[Episode], samples: int, temperature: float) -> dict[str, dict[str, Any]]:
    reports = {}
    for env in dict.fromkeys(episode.start.env for episode in episodes):
        env_episodes = [episode for episode in episodes if episode.start.env == env]
        if len(env_episodes) < len(episodes):
            tasks = len({episode.start.task for episode in env_episodes})
            reports[env] = summarise(env_episodes, tasks, samples, temperature).as_dict()
    return reports


def successes_by_task(episodes: Sequence[Episode]) -> dict[tuple[str, int], list[float]]:
    """Return the successes of each task, by environment and task; the list is empty if every episode of it broke."""
    successes: dict[tuple[str, int], list[float]] = {}
    for episode in episodes:
        row = successes.setdefault(episode.start.key[:2], [])
        if episode.reward is not None:
            row.append(episode.parts["success"])
    return successes


def compare(first: Sequence[Episode], second: Sequence[Episode], common_only: bool = False) -> PairedDifference:
    """Compare the episodes of two agents on the same tasks, task by task. With `common_only`, leave out tasks that only
    one of them has played.
    """
    rows, other_rows = successes_by_task(first), successes_by_task(second)
    if common_only:
        common = rows.keys() & other_rows.keys()
        rows, other_rows = ({task: by_task[task] for task in common} for by_task in (rows, other_rows))
    return statistics.compare(rows, other_rows)


def _answers_by_task(scored: Sequence[Episode]) -> list[list[str | None]]:
    answers: dict[tuple[str, int], list[str | None]] = {}
    for episode in scored:
        answers.setdefault(episode.start.key[:2], []).append(episode.attempt.answer)
    return list(answers.values())


def _at_k(matrix: statistics.Matrix, answers: statistics.Answers, samples: int) -> dict[str, dict[str, float]]:
    values: dict[str, Samples] = {}
    for k in powers_of_two(samples):
        values[f"pass@{k}"] = statistics.pass_at_k(matrix, k)
        values[f"pass^{k}"] = statistics.all_of_k(matrix, k)
        values[f"any@{k}"] = statistics.any_of_k(matrix, k)
        values[f"maj@{k}"] = statistics.maj_at_k(matrix, answers, k)
        values[f"bootstrap best@{k}"] = statistics.best_of_resamples(matrix, k)
        values[f"bootstrap maj@{k}"] = statistics.maj_of_resamples(matrix, answers, k)
    means = {name: estimate(value) for name, value in values.items()}
    gaps = {f"gap@{k}": estimate(statistics.gap_at_k(matrix, k), difference_interval) for k in powers_of_two(samples)}
    return {name: asdict(mean) for name, mean in {**means, **gaps}.items()}
