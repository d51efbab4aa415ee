"""Play episodes of each task into a file that survives interruptions: the first part of `collect` and `curate`.

    play  ->  FILE.played.jsonl, one line when an episode ends  ->  the further work of the command

The same command again resumes where the last one stopped. Left out: the files on disk (`rollout_file`), and the further
use of the episodes.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from rich.console import Console

from palaestra.causes import BROKEN, Causes
from palaestra.cli.agents import (
    HUMAN,
    agent_cost,
    cost_text,
    loads_here,
    open_agent,
    read_as,
)
from palaestra.cli.blame import blaming
from palaestra.cli.display import display, note, show_line
from palaestra.cli.ids import resolve
from palaestra.cli.output import reporting, say_error
from palaestra.cli.rollout_file import MOST_SAMPLES, RolloutFile, start_of
from palaestra.cli.shared_options import EpisodeOptions
from palaestra.cli.stitching import NAME as STITCHED
from palaestra.cli.stitching import Stitching
from palaestra.episode import Start
from palaestra.errors import PalaestraError, TrainingHalted, UsageError
from palaestra.record import Record
from palaestra.registry import arena
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.run.progress import OnProgress, Progress

if TYPE_CHECKING:
    from palaestra.agents import Agent
    from palaestra.protocols import Arena

_HOPELESS = 16
"""Number of BROKEN episodes in a row (at least one for each slot) after which the run stops."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions(EpisodeOptions):
    """The options of the commands that play into a file."""

    SUFFIX: ClassVar[str] = ".jsonl"
    """Suffix of the output file."""

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Output file of the command; the episodes themselves are written to FILE.played.jsonl beside it."""
    least_success: float = 1.0
    """An episode with less success counts as wrong."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples > MOST_SAMPLES:
            raise UsageError(f"samples is {self.samples}; at most {MOST_SAMPLES} are played of a task")
        if not 0 <= self.least_success <= 1:
            raise UsageError(f"least_success is {self.least_success}; it must be between 0 and 1")
        if self.out.suffix != self.SUFFIX or self.out.stem.endswith(".played"):
            raise UsageError(f"--out is {self.out}; name a file that ends in {self.SUFFIX}, and not in .played.jsonl")


@dataclass(slots=True)
class EpisodeCollection:
    """The episodes of one collection, and the options that they are played with."""

    options: RolloutOptions
    env_id: str
    environment: Mapping[str, Any]
    file: RolloutFile
    stitching: Stitching | None
    """Solutions that are played in place of the agent; None for the agent that the options name."""
    figures: dict[str, Any]
    """Figures that are reported as JSON."""
    console: Console = field(default_factory=Console)
    starts: list[Start] = field(default_factory=list)
    """All requested starts, played in this call or before."""
    cost: dict[str, Any] | None = None
    """Cost of this call's episodes; None if no endpoint played them."""

    def records(self) -> list[Record]:
        """Return the requested episodes, and tell why some failed."""
        requested = self.file.records(self.starts)
        self.print_causes(Causes.of(record.episode for record in requested))
        return requested

    def print_causes(self, causes: Causes) -> None:
        """Print and report why episodes failed, if some did."""
        for line in causes.lines():
            note(line)
        self.figures["causes"] = counted = causes.as_dict()
        if BROKEN in counted:
            note(f"the same command tries the {sum(counted[BROKEN].values())} BROKEN again")

    def print_defects(self) -> None:
        """Print how many lines of the file are not episodes."""
        if self.file.defects:
            show_line(self.console, f"{self.file.defects} lines of {self.file.path} are no episodes")

    def play_missing(self, interrupts: Interrupts) -> None:
        """Play the requested episodes that the file lacks."""
        options, env_id = self.options, self.env_id
        slots = 1 if options.agent.model == HUMAN and options.agent.base_url is None else options.slots
        # The arena is opened even if nothing is missing, for its number of tasks.
        with closing(arena(env_id, slots, **self.environment)) as places:
            if seats := getattr(places, "seats", ()):
                raise UsageError(
                    f"{env_id} is a game of the seats {', '.join(seats)}; name the one that the agent plays, as "
                    f"in --env-options seat={seats[0]}, and the others are played by the game's own script"
                )
            tasks = self._tasks(places)
            self.starts = [start_of(options.seed, task, sample) for task in tasks for sample in range(options.samples)]
            missing = [start for start in self.starts if (start.task, start.seed) not in self.file.done]
            if places.task_count < options.tasks:
                note(f"there are only {places.task_count} tasks in the {options.split} split")
            if len(missing) < len(self.starts):
                note(f"{len(self.starts) - len(missing)} of {len(self.starts)} are played already")
            if not missing:
                return
            opened: AbstractContextManager[Agent]
            if self.stitching is not None:
                opened = nullcontext(self.stitching.agent(places, env_id, self.environment))
            else:
                how: dict[str, Any] = {"slots": slots, "seed": options.seed, "environment": self.environment}
                opened = open_agent(options.agent, env_id, **how)
            with opened as agent, display() as on_progress:
                try:
                    self._play(agent, places, missing, interrupts, on_progress)
                finally:
                    self.cost = agent_cost(agent)
                    if self.cost is not None:
                        show_line(self.console, cost_text(self.cost))

    def _tasks(self, places: "Arena") -> Sequence[int]:
        tasks = range(min(self.options.tasks, places.task_count))
        if self.stitching is None:
            return tasks
        solved = [task for task in tasks if self.stitching.computes(places, task)]
        if wrong := "" if solved else self.stitching.missing():
            raise UsageError(wrong)
        note(f"{len(solved)} of {len(tasks)} tasks have a solution that computes something; they are played")
        return solved

    def _play(
        self,
        agent: "Agent",
        places: "Arena",
        starts: Sequence[Start],
        interrupts: Interrupts,
        on_progress: OnProgress,
    ) -> None:
        """Play these starts, and write each episode to the file as it ends."""
        from palaestra.agents import TokenLimits, play

        limits, hopeless = TokenLimits(*self.options.limits), max(_HOPELESS, places.slots)
        scored, successes, broken, causes = 0, 0.0, 0, Causes()
        episodes = play(agent, places, starts, limits=limits, temperature=self.options.temperature)
        for number, episode in enumerate(episodes, start=1):
            with interrupts.hold():  # An episode that was paid for is not lost between two writes.
                self.file.add(episode)
            interrupts.check()
            if episode.reward is None:
                broken += 1
                causes.add_episode(episode)
            else:
                scored, successes, broken = scored + 1, successes + episode.parts.get("success", 0.0), 0
                causes = Causes()
            mean = {"rewards/success/mean": successes / scored} if scored else {}
            on_progress(Progress("playing", number, len(starts), mean))
            if broken >= hopeless and number < len(starts):
                raise TrainingHalted(f"the last {broken} episodes are all BROKEN: {causes.of_kind(BROKEN)}")


def run_rollouts(
    options: RolloutOptions, name: str, finish: Callable[[EpisodeCollection], int], stitching: Stitching | None = None
) -> int:
    """Play the missing episodes, then call `finish`. Return 2 after an error, with a text on how to resume."""
    env_id = resolve(options.env_id)
    with reporting(options.json) as figures, Interrupts() as interrupts, ExitStack() as opened:
        file: RolloutFile | None = None
        try:
            environment = options.environment
            if loads_here(options.agent):
                from palaestra.agents.local_model import open_tokenizer

                model = options.agent.model
                tokenizer = open_tokenizer(model, options.agent.chat_template, options.agent.system)
                environment = read_as(env_id, environment, model, tokenizer)
            agent, settings = options.agent.model, options.settings(environment)
            if stitching is not None:
                agent, settings = STITCHED, settings | stitching.settings
            file = opened.enter_context(
                RolloutFile(options.out, env_id, agent, options.seed, settings, synthetic=stitching is not None)
            )
            for file_note in file.notes:
                note(file_note)
            rollouts = EpisodeCollection(options, env_id, environment, file, stitching, figures)
            with blaming():
                rollouts.play_missing(interrupts)
                return finish(rollouts)
        except Interrupted as stop:
            print(f"\ninterrupted; {_resume_hint(file)}", file=sys.stderr)
            return 128 + stop.number
        except PalaestraError as error:
            if file is None or (isinstance(error, UsageError) and not file.done):
                raise  # The same command would be refused again.
            say_error(f"palaestra {name}: {error}\n{_resume_hint(file)}")
            return 2


def _resume_hint(file: RolloutFile | None) -> str:
    """Return one line of text: how many episodes are saved, and how to resume."""
    if file is None or not file.done:
        return "no episode is scored yet; the same command plays them"
    return f"{len(file.done)} episodes are in {shlex.quote(str(file.path))}; the same command plays the rest"
