"""Play episodes of each task into a file that survives interruptions: the first part of `collect` and `curate`.

    play  ->  FILE.played.jsonl, an episode a line as it ends  ->  whatever the command makes of them

The same command again resumes where the last one stopped. Left out: the files on disk while it plays (`played`), and
the further use of the episodes.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console

from palaestra.cli.agents import HUMAN, AgentOptions, loads_here, open_agent, read_as, spending, spent, token_limits
from palaestra.cli.blame import blaming
from palaestra.cli.display import display, note, show_line
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
from palaestra.trainers.config.env_config import EnvId
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.run.progress import OnProgress, Progress
from palaestra.trainers.run.versions import weights_of

if TYPE_CHECKING:
    from palaestra.agents import Agent
    from palaestra.protocols import Arena

_HOPELESS = 16
"""Number of BROKEN episodes in a row (at least one for each slot) after which the run stops."""


@dataclass(frozen=True)
class RolloutOptions(Reported):
    """What is played, and by whom."""

    SUFFIX: ClassVar[str] = ".jsonl"
    """Suffix of the output file."""

    env_id: EnvId
    """Environment, by id."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """File for what is made of the episodes; they themselves go to FILE.played.jsonl beside it."""
    agent: Annotated[AgentOptions, tyro.conf.arg(name="")]
    tasks: int = 256
    """Tasks, the first of the split."""
    samples: int = 1
    """Episodes a task."""
    split: Literal["train", "eval", "all"] = "train"
    """Which tasks; `all` is the whole of a file."""
    temperature: float = 1.0
    """Sampling temperature. 0 means greedy decoding."""
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
        """Options of the environment."""
        return {"split": self.split, **from_pairs(self.env_options, "env_options")}

    @property
    def limits(self) -> tuple[int, int]:
        """Maximum tokens of a turn, and of a row."""
        return token_limits(self.agent.model, self.max_turn_tokens, self.max_episode_tokens)

    def settings(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that decide an episode, besides environment, agent and seed."""
        settings: dict[str, Any] = {"options": environment}
        if self.agent.base_url is not None or loads_here(self.agent):
            names = ("temperature", "max_turn_tokens", "max_episode_tokens")
            settings |= dict(zip(names, (self.temperature, *self.limits), strict=True))
        if loads_here(self.agent):
            settings["weights"] = _weights(self.agent.model)
        return settings


@dataclass(frozen=True, slots=True)
class PlayedRollouts:
    """The episodes that were played, for the command that requested them."""

    options: RolloutOptions
    env_id: str
    environment: Mapping[str, Any]
    played: Played
    starts: Sequence[Start]
    """All requested starts, played in this call or before."""
    cost: dict[str, Any] | None
    """Cost of this call's episodes; None if no endpoint played them."""
    console: Console
    figures: dict[str, Any]
    """Figures that are reported as JSON."""

    def records(self) -> list[Record]:
        """Return the requested episodes. A note tells how many are BROKEN."""
        requested = self.played.records(self.starts)
        if faults := [record.episode.fault for record in requested if record.episode.reward is None]:
            note(f"the same command tries the {len(faults)} BROKEN again; the last broke on: {faults[-1]}")
        return requested

    def tell_defects(self) -> None:
        """Print how many lines of the file are not episodes."""
        if self.played.defects:
            show_line(self.console, f"{self.played.defects} lines of {self.played.path} are no episodes")


def run_rollouts(
    options: RolloutOptions, name: str, finish: Callable[[PlayedRollouts], int], stitching: Stitching | None = None
) -> int:
    """Play the missing episodes, then call `finish`. Return 2 after an error, with a text on how to resume.

    With `stitching` its solutions are played in place of the agent that the options name.
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
            for played_note in played.notes:
                note(played_note)
            console = Console()
            with blaming():
                starts, cost = _play_missing(options, env_id, environment, played, interrupts, console, stitching)
                return finish(PlayedRollouts(options, env_id, environment, played, starts, cost, console, figures))
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
    """Return all requested Starts, and the cost of playing the missing ones."""
    cost = None
    slots = 1 if options.agent.model == HUMAN and options.agent.base_url is None else options.slots
    # The arena is opened even if nothing is missing, for its number of tasks.
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
            with who as agent, display() as on_progress:
                try:
                    _play(options, agent, places, missing, played, interrupts, on_progress)
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
    on_progress: OnProgress,
) -> None:
    """Play these starts, and write each episode to the file as it ends."""
    from palaestra.agents import TokenLimits, play

    limits, hopeless = TokenLimits(*options.limits), max(_HOPELESS, places.slots)
    scored, successes, broken = 0, 0.0, 0
    episodes = play(agent, places, starts, limits=limits, temperature=options.temperature)
    for number, episode in enumerate(episodes, start=1):
        with interrupts.hold():  # An episode that was paid for is not lost between two writes.
            played.add(episode)
        interrupts.check()
        if episode.reward is None:
            broken += 1
        else:
            scored, successes, broken = scored + 1, successes + episode.parts.get("success", 0.0), 0
        mean = {"rewards/success/mean": successes / scored} if scored else {}
        on_progress(Progress("playing", number, len(starts), mean))
        if broken >= hopeless and number < len(starts):
            raise TrainingHalted(f"the last {broken} episodes are all BROKEN; the last one: {episode.fault}")


def _weights(model: str) -> str:
    """Return an identifier of the weights, because the content of a folder or hub name can change."""
    if Path(model).is_dir():
        return weights_of(Path(model))
    from palaestra.agents.local_model import commit_of

    return commit_of(model)


def _way_on(played: Played | None) -> str:
    """Return one line: which episodes are saved, and how to resume."""
    if played is None or not played.done:
        return "no episode is scored yet; the same command plays them"
    location = f"{len(played.done)} episodes are in {shlex.quote(str(played.path))}"
    return f"{location}; the same command plays the rest"
