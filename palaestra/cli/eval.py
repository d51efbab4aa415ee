"""`palaestra eval ID --model FOLDER`: how good is an agent on tasks it was not trained on?

With `--greedy` also without chance in it, and with `--against` how much better than another agent on the same tasks.
Left out: the figures (`trainers.statistics`), and top-p, which some papers evaluate with: what is measured here is the
distribution that is trained.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from palaestra.cli import agents as seats
from palaestra.cli.agents import DEMONSTRATOR, AgentOptions, spending, spent, token_limits
from palaestra.cli.display import display
from palaestra.cli.ids import resolve_all
from palaestra.cli.output import Reported, reporting, require_writable
from palaestra.cli.tables import EvalArena, open_table
from palaestra.endpoint.config import address_of
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.mixture import environment_of, read_mixture
from palaestra.plain import from_pairs
from palaestra.record import Record, to_line, write
from palaestra.registry import is_game
from palaestra.trainers.config.env_config import EnvId

if TYPE_CHECKING:
    from palaestra.agents import Agent, TokenLimits
    from palaestra.trainers.evaluation.evaluate import Report
    from palaestra.trainers.evaluation.second_attempts import Attempts
    from palaestra.trainers.reward.async_scoring import Scoring

SAMPLED, GREEDY = "sampled", "greedy"


@dataclass(frozen=True)
class EvalOptions(Reported):
    """Measure an agent on held-out tasks, or two agents against each other."""

    env_id: EnvId
    """Environment, by id; or a mixture of several by weight, as in two-hop=3 calculator=1."""
    agent: Annotated[AgentOptions, tyro.conf.arg(name="")]
    against: str | None = None
    """Another agent, named as for --model, that plays the same tasks; the difference is tested, paired by task. With
    --base-url it is another model of that server, unless it is `demonstrator` or a folder."""
    tasks: int = 256
    """Tasks, the first of the split."""
    samples: int = 1
    """Episodes a task: the k of avg@k, pass@k and maj@k."""
    temperature: float = 1.0
    """Sampling temperature. 0 means greedy decoding."""
    critic: tuple[str, ...] = ()
    """Servers of a reward model, up to and without `/chat/completions`. It writes a critique of each attempt, the agent
    reads it and tries again, and both attempts are measured (Reagent-C)."""
    critic_model: str = "rrm"
    """Its name there, as `palaestra serve rrm --served-as` says it."""
    greedy: bool = False
    """Play each task once more with the likeliest tokens, and show that beside the sampled figures."""
    split: Literal["train", "eval", "all"] = "eval"
    """Which tasks; `all` is the whole of a file, for a test that was published as one."""
    slots: int = 96
    """Episodes played at once."""
    max_turn_tokens: int | None = None
    """A turn that is cut here ends its episode; what the model was trained with where it is a run's, else 4096."""
    max_episode_tokens: int | None = None
    """Longest row: prompt, tool results and what the agent says; as in the model's run, else 23,040."""
    seed: int = 0
    """Decides the sampling noise."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE for the environment: tasks=problems.jsonl, or what its class takes; for one of a mixture
    calculator.KEY=VALUE."""
    seats: tuple[str, ...] = ()
    """In a game of several seats, those that the agent plays and that are measured; all by default."""
    others: str = DEMONSTRATOR
    """Who plays the other seats: `demonstrator` for the game's own script, or a model's folder or hub name."""
    save: Path | None = None
    """Write the episodes here, for view, replay, rescore and sft."""

    def __post_init__(self) -> None:
        counts = min(self.tasks, self.samples, self.slots) >= 1
        if not (counts and 0 <= self.temperature < float("inf") and self.seed >= 0):
            raise UsageError("tasks, samples and slots must be at least 1, and temperature and seed at least 0")
        if self.greedy and self.temperature == 0:
            raise UsageError("--temperature 0 plays greedily already; leave out --greedy, or sample at a temperature")
        if self.others != DEMONSTRATOR and not self.seats:
            raise UsageError("--others play the seats that the agent does not: name its own with --seats")
        if self.against == self.agent.model:
            raise UsageError(f"--against names {self.against!r} as --model does; name another agent to compare with")
        for url in self.critic:
            address_of(url, "--critic")
        if self.save is not None:
            require_writable("--save", self.save)

    @property
    def environment(self) -> dict[str, Any]:
        """Options of the environment, from the command line."""
        return {"split": self.split, **from_pairs(self.env_options, "env_options")}


@dataclass(slots=True)
class Measured:
    """An agent's reports and episodes, by decoding (sampled or greedy) and environment of a mixture; in a game by the
    seat that it played."""

    model: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Options of its environment."""
    seats: tuple[str, ...] = ()
    reports: "dict[str, Report]" = field(default_factory=dict)
    episodes: dict[str, list[Episode]] = field(default_factory=dict)
    gains: dict[str, Any] = field(default_factory=dict)
    """Gain of second attempts over first ones, the number of them without a critique, and the judge's last fault."""
    all: list[Episode] = field(default_factory=list)
    """All episodes, sampled and greedy; in a game those of the other seats too."""

    def player(self, seat: str | None, others: str) -> str:
        """Return the name of the agent that played a seat."""
        return others if self.seats and seat not in self.seats else self.model

    def figures(self, way: str) -> dict[str, Any]:
        """Return a report for JSON, with the results of each task."""
        from palaestra.cli.results import report_figures

        return report_figures(self.reports[way]) | {"per_task": _per_task(self.episodes[way])}


def run(arguments: Sequence[str]) -> int:
    """Print the figures; 1 where no episode could be scored."""
    options = tyro.cli(EvalOptions, args=list(arguments), prog="palaestra eval")
    with reporting(options.json) as figures:
        return _evaluate(options, figures)


def _evaluate(options: EvalOptions, figures: dict[str, Any]) -> int:
    env_id, console = resolve_all(options.env_id), Console()
    from palaestra.agents import TokenLimits

    limits = TokenLimits(*token_limits(options.agent.model, options.max_turn_tokens, options.max_episode_tokens))
    names = [options.agent.model] if options.against is None else [options.agent.model, options.against]
    with ExitStack() as opened:
        critic = opened.enter_context(open_critic(options, env_id)) if options.critic else None
        # All are opened before the first plays, so that a mistake in a name is reported at once.
        agents = [opened.enter_context(open_agent(name, options, env_id)) for name in names]
        # The seats of a game each take a place.
        slots = options.slots if is_game(env_id) else min(options.slots, options.tasks * options.samples)
        how: dict[str, Any] = {"env_id": env_id, "slots": slots, "seed": options.seed}
        others = AgentOptions(options.others, device=options.agent.device)
        tables = [
            opened.enter_context(open_table(name, agent, others, options.seats, options.environment, **how))
            for name, agent in zip(names, agents, strict=True)
        ]
        measured = [measure(name, table, options, limits, critic) for name, table in zip(names, tables, strict=True)]
    if options.save is not None:
        write(
            options.save,
            (
                Record(own, one, environment, agent.player(one.start.seat, options.others))
                for agent in measured
                for one in agent.all
                for own, environment in [environment_of(env_id, agent.environment, one.start.env)]
            ),
        )
    compared = _compared(measured)
    _show(measured, compared, env_id, console)
    for name, agent in zip(names, agents, strict=True):
        if (cost := spent(agent)) is not None:
            console.print(f"{name}: {spending(cost)}", markup=False, highlight=False)
    figures |= _figures(measured, compared, options, env_id)
    return 0 if all(_scored(agent) for agent in measured) else 1


@contextmanager
def open_agent(name: str, options: EvalOptions, env_id: str) -> "Iterator[Agent]":
    """Open the agent of that name, and close it at the end."""
    chosen = options.agent
    if name != chosen.model:
        here = name == DEMONSTRATOR or Path(name).is_dir()
        chosen = AgentOptions(name, device=chosen.device) if here else replace(chosen, model=name)
    how: dict[str, Any] = {"slots": options.slots, "seed": options.seed, "environment": options.environment}
    with seats.open_agent(chosen, env_id, **how) as agent:
        yield agent


@contextmanager
def open_critic(options: EvalOptions, env_id: str) -> "Iterator[Scoring]":
    """Open the client of the critic, and close it at the end. Raise a UsageError if the critic is not reachable."""
    from palaestra.trainers.reward.reward_model import ReasoningReward, scoring

    if is_game(env_id):
        raise UsageError("--critic: a game has no second attempts, which are one agent's; measure it without")
    with closing(ReasoningReward(options.critic, options.critic_model).opened()) as judge:
        judge.check()
        with closing(scoring(lambda episode: {}, judge)) as scorer:
            yield scorer


def measure(
    name: str, table: EvalArena, options: EvalOptions, limits: "TokenLimits", critic: "Scoring | None" = None
) -> Measured:
    """Let an agent play its tasks, with a progress display, and return its reports and episodes."""
    from palaestra.trainers.evaluation.evaluate import Report, by_seat, evaluate
    from palaestra.trainers.evaluation.second_attempts import attempts

    measured = Measured(name, table.environment, table.seats)
    ways = {SAMPLED if options.temperature else GREEDY: (options.samples, options.temperature)}
    if options.greedy:
        ways[GREEDY] = (1, 0.0)
    for way, (samples, temperature) in ways.items():
        how: dict[str, Any] = {
            "tasks": options.tasks,
            "samples": samples,
            "temperature": temperature,
            "limits": limits,
            "seed": options.seed,
            "stage": way,
            "ended": _require_writable if options.save else None,
        }
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
    return measured


def _add_both(found: Measured, way: str, both: "Attempts") -> None:
    first, second = f"{way} first".strip(), f"{way} second".strip()
    found.reports |= {first: both.first, second: both.second}
    found.episodes |= {first: both.first_episodes, second: both.second_episodes}
    found.gains[second] = both.gain, both.without_critique, both.fault
    found.all += [*both.first_episodes, *both.second_episodes]


def _require_writable(episode: Episode) -> None:
    """Raise an error with the first episode whose task data cannot be written, not after the last one."""
    to_line(Record("", replace(episode, rows=())))


def _compared(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return the comparison of the first agent with the second, by decoding; empty for a single agent."""
    if len(measured) < 2:
        return {}
    from palaestra.trainers.evaluation.evaluate import compare

    first, second = measured
    return {way: compare(first.episodes[way], second.episodes[way]) for way in first.episodes}


def _show(measured: Sequence[Measured], compared: Mapping[str, Any], env_id: str, console: Console) -> None:
    from palaestra.cli.results import SUITE, comparison_table, k_table, report_table

    shown_id = env_id.replace(SUITE, "") if read_mixture(env_id) else env_id.rpartition(":")[2]
    for agent in measured:
        names, title = list(agent.reports), f"{agent.model} in {shown_id}"
        # Seats of a game and environments of a mixture are side by side; sampled and greedy are below each other.
        apart = len(agent.reports[names[0]].environments)
        together = len(agent.seats) or (1 + apart if apart else len(names))
        for at in range(0, len(names), together):
            columns = {name.removeprefix(SUITE): agent.reports[name] for name in names[at : at + together]}
            console.print(report_table(title, columns))
        max_samples = max(report.samples for report in agent.reports.values())
        for column, report in agent.reports.items():
            if report.samples == max_samples > 1:
                console.print(k_table(report, column if agent.seats or apart else ""))
        if faults := [episode.fault for episode in agent.all if episode.reward is None]:
            text = f"{len(faults)} of {len(agent.all)} episodes broke and count in no figure; the last: {faults[-1]}"
            console.print(text, markup=False, highlight=False)
        if agent.gains:
            gains = {way: gain for way, (gain, *_) in agent.gains.items()}
            console.print(comparison_table(f"{agent.model}: second attempts less first", gains))
            if missed := sum(count for _, count, _ in agent.gains.values()):
                message = f"{missed} second attempts had no critique to read"
                faults = [fault for *_, fault in agent.gains.values() if fault]
                message += f"; the last time that the judge gave up: {faults[-1]}" if faults else ""
                console.print(message, markup=False, highlight=False, soft_wrap=True)
    if compared:
        first, second = measured
        console.print(comparison_table(f"{first.model} less {second.model}", compared))


def _scored(agent: Measured) -> bool:
    return all(
        any(episode.reward is not None for episode in column_episodes) for column_episodes in agent.episodes.values()
    )


def _per_task(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for episode in episodes:
        env, task = episode.start.key[:2]
        identity = ({"env": env} if env else {}) | {"task": task, "id": episode.attempt.task.id}
        row = rows.setdefault((env, task), {**identity, "success": [], "answers": [], "broken": 0})
        if episode.reward is None:
            row["broken"] += 1
        else:
            row["success"].append(episode.parts["success"])
            row["answers"].append(episode.attempt.answer)
    return list(rows.values())


def _figures(
    measured: Sequence[Measured], compared: Mapping[str, Any], options: EvalOptions, env_id: str
) -> dict[str, Any]:
    """Return the figures of the agent, of greedy play, of the other agent and of the comparison."""
    from palaestra.cli.results import comparison_figures

    figures: dict[str, Any] = {"env_id": env_id, "split": options.split, "seed": options.seed}
    figures |= ({"others": options.others} if options.seats else {}) | _agent(measured[0])
    if compared:
        figures["against"] = _agent(measured[1])
        figures["comparison"] = {way: comparison_figures(comparison) for way, comparison in compared.items()}
    return figures


def _agent(agent: Measured) -> dict[str, Any]:
    entry: dict[str, Any] = {"model": agent.model, "environment": dict(agent.environment)}
    if agent.seats:
        return entry | {"seats": {name: agent.figures(name) for name in agent.reports}}
    from palaestra.cli.results import comparison_figures

    for way, (gain, missed, _) in agent.gains.items():
        entry |= {f"gain of {way}": comparison_figures(gain) | {"without_critique": missed}}
    first, *others = agent.reports
    return entry | agent.figures(first) | {way: agent.figures(way) for way in others}
