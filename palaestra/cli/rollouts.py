"""So many episodes of each task, played into a file that survives: what `collect` and `curate` begin with.

    play  ->  FILE.played.jsonl, an episode a line as it ends  ->  whatever the command makes of them

The same command again goes on where the last one stopped. Left out: what is on disk while it plays (`played`), and what
is made of the episodes.
"""

import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from palaestra.cli.agents import HUMAN, AgentOptions, loads_here, open_agent, read_as, spending, spent, token_limits
from palaestra.cli.blame import blaming
from palaestra.cli.display import note, show_line, watch
from palaestra.cli.ids import resolve
from palaestra.cli.output import Reported, reporting
from palaestra.cli.played import MOST_SAMPLES, Played, start_of
from palaestra.cli.stitching import NAME as STITCHED
from palaestra.cli.stitching import Stitching
from palaestra.episode import Start
from palaestra.errors import PalaestraError, TrainingHalted, UsageError
from palaestra.plain import from_pairs
from palaestra.record import Record
from palaestra.registry import arena
from palaestra.trainers.env_config import EnvId
from palaestra.trainers.interrupts import Interrupted, Interrupts
from palaestra.trainers.progress import Progress
from palaestra.trainers.provenance import weights_of

if TYPE_CHECKING:
    from palaestra.agents import Agent
    from palaestra.protocols import Arena

_HOPELESS = 16
"""When so many episodes in a row, and all that play at once, are BROKEN, going on would only cost."""


@dataclass(frozen=True)
class RolloutOptions(Reported):
    """What is played, and by whom."""

    SUFFIX: ClassVar[str] = ".jsonl"
    """Of the file that is made."""

    env_id: EnvId
    """Environment, by id."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """File for what is made of the episodes; they themselves go to FILE.played.jsonl beside it."""
    agent: Annotated[AgentOptions, tyro.conf.arg(name="")]
    tasks: int = 256
    """Tasks, the first of the split."""
    samples: int = 1
    """Episodes a task."""
    split: Literal["train", "eval"] = "train"
    """Which tasks."""
    temperature: float = 1.0
    """Of sampling; 0 is greedy."""
    max_turn_tokens: int | None = None
    """A turn that is cut here ends its episode; what the model was trained with where it is a run's, else 4096."""
    max_episode_tokens: int | None = None
    """Longest row: prompt, tool results and what the agent says; as in the model's run, else 23,040."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE for the environment: tasks=problems.jsonl, or what its class takes."""
    least_success: float = 1.0
    """An episode with less success counts as wrong."""
    slots: int = 32
    """Episodes played at once; one for a person."""
    seed: int = 0
    """Decides the sampling noise, the environment's own randomness and what is chosen by chance."""

    def __post_init__(self) -> None:
        if min(self.tasks, self.samples, self.slots) < 1 or not (
            0 <= self.temperature < float("inf") and self.seed >= 0
        ):
            raise UsageError("tasks, samples and slots must be at least 1, and temperature and seed at least 0")
        if self.samples > MOST_SAMPLES:
            raise UsageError(f"samples is {self.samples}; at most {MOST_SAMPLES} are played of a task")
        if not 0 <= self.least_success <= 1:
            raise UsageError(f"least_success is {self.least_success}; it must be between 0 and 1")
        if self.out.suffix != self.SUFFIX or self.out.stem.endswith(".played"):
            raise UsageError(f"--out is {self.out}; name a file that ends in {self.SUFFIX}, and not in .played.jsonl")

    @property
    def environment(self) -> dict[str, Any]:
        """What the environment is made with."""
        return {"split": self.split, **from_pairs(self.env_options, "env_options")}

    @property
    def limits(self) -> tuple[int, int]:
        """Most tokens a turn, and a row."""
        return token_limits(self.agent.model, self.max_turn_tokens, self.max_episode_tokens)

    def settings(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """What decides an episode beside environment, agent and seed."""
        settings: dict[str, Any] = {"options": environment}
        if self.agent.base_url is not None or loads_here(self.agent):
            names = ("temperature", "max_turn_tokens", "max_episode_tokens")
            settings |= dict(zip(names, (self.temperature, *self.limits), strict=True))
        if loads_here(self.agent):
            settings["weights"] = _weights(self.agent.model)
        return settings


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What was played, for the command that asked for it."""

    options: RolloutOptions
    env_id: str
    environment: Mapping[str, Any]
    played: Played
    starts: Sequence[Start]
    """All that were asked for, whenever they were played."""
    cost: dict[str, Any] | None
    """Of this call's episodes, where an endpoint played them."""
    console: Console
    figures: dict[str, Any]
    """What is reported."""

    def records(self) -> list[Record]:
        """The episodes that were asked for; what is BROKEN is told."""
        found = self.played.records(self.starts)
        if faults := [record.episode.fault for record in found if record.episode.reward is None]:
            note(f"the same command tries the {len(faults)} BROKEN again; the last broke on: {faults[-1]}")
        return found

    def tell_defects(self) -> None:
        """Say of lines that are no episodes."""
        if self.played.defects:
            show_line(self.console, f"{self.played.defects} lines of {self.played.path} are no episodes")


def run_rollouts(
    options: RolloutOptions, name: str, finish: Callable[[Rollouts], int], stitching: Stitching | None = None
) -> int:
    """Play what is missing, then `finish`; 2 after an error on the way, with words on how to go on.

    With `stitching` its solutions are played, in place of the agent that the options name.
    """
    env_id = resolve(options.env_id)
    with reporting(options.json) as figures, Interrupts() as interrupts, ExitStack() as opened:
        played: Played | None = None
        try:
            environment = options.environment
            if loads_here(options.agent):
                from palaestra.agents.local_model import open_tokenizer

                model = options.agent.model
                environment = read_as(env_id, environment, model, open_tokenizer(model))
            agent, settings = options.agent.model, options.settings(environment)
            if stitching is not None:
                agent, settings = STITCHED, settings | stitching.settings
            played = opened.enter_context(
                Played(options.out, env_id, agent, options.seed, settings, synthetic=stitching is not None)
            )
            for said in played.notes:
                note(said)
            console = Console()
            with blaming():
                starts, cost = _play_missing(options, env_id, environment, played, interrupts, console, stitching)
                return finish(Rollouts(options, env_id, environment, played, starts, cost, console, figures))
        except Interrupted as stop:
            print(f"\ninterrupted; {_way_on(played)}", file=sys.stderr)
            return 128 + stop.number
        except PalaestraError as error:
            if played is None or (isinstance(error, UsageError) and not played.done):
                raise  # The same command would be refused again.
            print(f"palaestra {name}: {error}\n{_way_on(played)}", file=sys.stderr)
            return 2


def _play_missing(
    options: RolloutOptions,
    env_id: str,
    environment: Mapping[str, Any],
    played: Played,
    interrupts: Interrupts,
    console: Console,
    stitching: Stitching | None,
) -> tuple[list[Start], dict[str, Any] | None]:
    """All Starts that were asked for, and what it has cost to play those that were missing."""
    cost = None
    slots = 1 if options.agent.model == HUMAN and options.agent.base_url is None else options.slots
    # Opened even where nothing is missing: it knows how many tasks there are.
    with closing(arena(env_id, slots, **environment)) as places:
        if seats := getattr(places, "seats", ()):
            raise UsageError(
                f"{env_id} is a game of the seats {', '.join(seats)}; name the one that the agent plays, as "
                f"in --env-options seat={seats[0]}, and the others are played by the game's own script"
            )
        tasks: Sequence[int] = range(min(options.tasks, places.task_count))
        samples, count = range(options.samples), len(tasks)
        if stitching is not None:
            tasks = [task for task in tasks if stitching.computes(places, task)]
            if wrong := "" if tasks else stitching.missing():
                raise UsageError(wrong)
            note(f"{len(tasks)} of {count} tasks have a solution that computes something; they are played")
        starts = [start_of(options.seed, task, sample) for task in tasks for sample in samples]
        missing = [start for start in starts if (start.task, start.seed) not in played.done]
        if count < options.tasks:
            note(f"there are only {places.task_count} tasks in the {options.split} split")
        if len(missing) < len(starts):
            note(f"{len(starts) - len(missing)} of {len(starts)} are played already")
        if missing:
            who: AbstractContextManager[Agent]
            if stitching is not None:
                who = nullcontext(stitching.agent(places, env_id, environment))
            else:
                who = open_agent(options.agent, env_id, slots=slots, seed=options.seed, environment=environment)
            with who as agent, closing(_play(options, agent, places, missing, played, interrupts)) as stage:
                try:
                    watch(stage)
                finally:
                    cost = spent(agent)
                    if cost is not None:
                        show_line(console, spending(cost))
    return starts, cost


def _play(
    options: RolloutOptions,
    agent: "Agent",
    places: "Arena",
    starts: Sequence[Start],
    played: Played,
    interrupts: Interrupts,
) -> Generator[Progress, None, None]:
    """Play these, writing each episode down as it ends."""
    from palaestra.agents import TokenLimits, play

    limits, hopeless = TokenLimits(*options.limits), max(_HOPELESS, places.slots)
    scored, successes, broken = 0, 0.0, 0
    episodes = play(agent, places, starts, limits=limits, temperature=options.temperature)
    for number, episode in enumerate(episodes, start=1):
        with interrupts.held():  # An episode that was paid for is not lost between two writes.
            played.add(episode)
        interrupts.check()
        if episode.reward is None:
            broken += 1
        else:
            scored, successes, broken = scored + 1, successes + episode.parts.get("success", 0.0), 0
        mean = {"rewards/success/mean": successes / scored} if scored else {}
        yield Progress("playing", number, len(starts), mean)
        if broken >= hopeless and number < len(starts):
            raise TrainingHalted(f"the last {broken} episodes are all BROKEN; the last one: {episode.fault}")


def _weights(model: str) -> str:
    """By which the weights are known again: a folder's may change under its name, and so may a hub's."""
    if Path(model).is_dir():
        return weights_of(Path(model))
    from palaestra.agents.local_model import commit_of

    return commit_of(model)


def _way_on(played: Played | None) -> str:
    """One line: what is safe, and how to go on."""
    if played is None or not played.done:
        return "no episode is scored yet; the same command plays them"
    kept = f"{len(played.done)} episodes are in {shlex.quote(str(played.path))}"
    return f"{kept}; the same command plays the rest"
