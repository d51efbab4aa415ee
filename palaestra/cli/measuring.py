"""Let one agent play its tasks for `palaestra eval`, sampled and greedy, with a progress display.

Left out: opening agents and arenas (`eval`), and tables (`results`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palaestra.cli.display import display
from palaestra.cli.eval_file import EvalFile
from palaestra.cli.eval_options import EvalOptions
from palaestra.episode import Episode
from palaestra.mixture import environment_of
from palaestra.protocols import Arena
from palaestra.record import Record

if TYPE_CHECKING:
    from palaestra.agents import Agent, TokenLimits
    from palaestra.cli.results import Measured
    from palaestra.trainers.evaluation.second_attempts import Attempts
    from palaestra.trainers.reward.async_scoring import Scoring

SAMPLED, GREEDY = "sampled", "greedy"
CHEAP_WEIGHTS = 1_000_000_000
"""Most weights of a model in this process that plays its tasks once more with greedy decoding by default."""


@dataclass(frozen=True, slots=True)
class EvalArena:
    """An arena and the agent that plays in it."""

    agent: "Agent"
    arena: Arena
    environment: Mapping[str, Any]
    """Options that the arena was opened with; its calls are read as the agents write them."""
    seats: tuple[str, ...]
    """Seats of the agent that is measured; empty where there is one seat, which has no name."""


def ways_of(options: EvalOptions, agents: Sequence["Agent"], greedy_too: bool) -> dict[str, tuple[int, float]]:
    """Return the samples of a task and the temperature of each way of decoding.

    Greedy decoding is measured beside sampling if the options ask for it. With `greedy_too`, it is also measured where
    it is cheap: all agents are models in this process of at most `CHEAP_WEIGHTS` weights, and no critic is paid.
    """
    ways = {SAMPLED if options.temperature else GREEDY: (options.samples, options.temperature)}
    if options.greedy or (greedy_too and not options.critic and all(map(_is_small, agents))):
        ways[GREEDY] = ways.get(GREEDY, (1, 0.0))
    return ways


def _is_small(agent: "Agent") -> bool:
    model = getattr(agent.engine, "model", None)
    return model is not None and sum(weight.numel() for weight in model.parameters()) <= CHEAP_WEIGHTS


def measure(
    name: str,
    table: EvalArena,
    options: EvalOptions,
    limits: "TokenLimits",
    ways: Mapping[str, tuple[int, float]],
    env_id: str,
    file: EvalFile | None = None,
    critic: "Scoring | None" = None,
) -> "Measured":
    """Let an agent play its tasks, with a progress display, and return its reports and episodes.

    Each episode is added to `file` as it ends, and those that the file holds are not played again.
    """
    from palaestra.cli.results import Measured
    from palaestra.trainers.evaluation.evaluate import Report, by_seat, evaluate
    from palaestra.trainers.evaluation.second_attempts import attempts

    measured = Measured(name, table.environment, table.seats)
    began, tokens = time.perf_counter(), table.agent.engine.sampled
    for way, (samples, temperature) in ways.items():
        how: dict[str, Any] = {
            "tasks": options.tasks,
            "samples": samples,
            "temperature": temperature,
            "limits": limits,
            "seed": options.seed,
            "stage": way,
            "greedy": way == GREEDY,
        }
        if file is not None:
            players = {measured.player(seat, options.others) for seat in (None, *getattr(table.arena, "seats", ()))}
            how["earlier"] = file.earlier(players, greedy=way == GREEDY)
            how["ended"] = lambda episode: file.add(record_of(env_id, measured, episode, options.others))
        if critic is not None:
            with display() as show:
                both = attempts(table.agent, table.arena, critic, on_progress=show, **how)
            _add_both(measured, way if len(ways) > 1 else "", both)
            continue
        with display() as show:
            report, episodes_played = evaluate(table.agent, table.arena, seats=table.seats, on_progress=show, **how)
        measured.all += episodes_played
        if not table.seats:
            measured.reports[way], measured.episodes[way] = report, episodes_played
        parts = by_seat(report, episodes_played, table.seats)
        for env, figures in report.environments.items():
            parts[env] = Report(**figures), [episode for episode in episodes_played if episode.start.env == env]
        for name, (report_of_column, episodes) in parts.items():
            column = f"{name} {way}" if len(ways) > 1 else name
            measured.reports[column], measured.episodes[column] = report_of_column, episodes
    measured.tokens, measured.seconds = table.agent.engine.sampled - tokens, time.perf_counter() - began
    return measured


def _add_both(measured: "Measured", way: str, both: "Attempts") -> None:
    first, second = f"{way} first".strip(), f"{way} second".strip()
    measured.reports |= {first: both.first, second: both.second}
    measured.episodes |= {first: both.first_episodes, second: both.second_episodes}
    measured.gains[second] = both.gain, both.without_critique, both.fault
    measured.all += [*both.first_episodes, *both.second_episodes]


def record_of(env_id: str, measured: "Measured", episode: Episode, others: str) -> Record:
    """Return the record of an episode of a measured agent, or of the `others` in its games."""
    member_id, environment = environment_of(env_id, measured.environment, episode.start.env)
    return Record(member_id, episode, environment, measured.player(episode.start.seat, others))
