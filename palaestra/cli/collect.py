"""`palaestra collect ID --out FILE.jsonl`: a teacher plays, and its best episodes are kept for `palaestra sft`.

    play  ->  FILE.played.jsonl, an episode a line as it ends  ->  selection  ->  FILE.jsonl, whole or not at all

The same command again goes on where the last one stopped. Left out: the rules of the selection (`trainers.selection`),
and what is on disk while it plays (`played`).
"""

import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from palaestra.cli.agents import HUMAN, AgentOptions, loads_here, open_agent, read_as, spending, spent, token_limits
from palaestra.cli.blame import blaming
from palaestra.cli.display import note, show_line, table, watch
from palaestra.cli.ids import resolve
from palaestra.cli.output import Reported, reporting
from palaestra.cli.played import MOST_SAMPLES, Played, start_of
from palaestra.episode import Start
from palaestra.errors import PalaestraError, TrainingHalted, UsageError
from palaestra.plain import from_pairs
from palaestra.record import write
from palaestra.registry import arena
from palaestra.trainers.interrupts import Interrupted, Interrupts
from palaestra.trainers.progress import Progress
from palaestra.trainers.selection import Selection, select

if TYPE_CHECKING:
    from palaestra.agents import Agent
    from palaestra.protocols import Arena

_HOPELESS = 16
"""When so many episodes in a row, and all that play at once, are BROKEN, going on would only cost."""
_COLUMNS = ("played", "BROKEN", "wrong", "duplicates", "beyond top k", "kept")


@dataclass(frozen=True)
class Options(Reported):
    """Let a teacher play, and keep its best episodes.

    Every episode is written to FILE.played.jsonl as it ends. The same command again plays only what is missing there,
    what was BROKEN among it, and chooses anew: more --tasks or --samples, and another choice, may be asked for.
    """

    env_id: Annotated[str, tyro.conf.Positional]
    """Environment, by id."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """File for the episodes that are kept, FILE.jsonl."""
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
    """Episodes with less success are not kept."""
    top_k: int | None = None
    """Keep only so many of each source (`source` or `data_source` of a task, else the environment): those of the
    highest reward, the shorter of equal ones."""
    slots: int = 32
    """Episodes played at once; one for a person."""
    seed: int = 0
    """Decides the sampling noise and the environment's own randomness."""

    def __post_init__(self) -> None:
        if min(self.tasks, self.samples, self.slots) < 1 or not (
            0 <= self.temperature < float("inf") and self.seed >= 0
        ):
            raise UsageError("tasks, samples and slots must be at least 1, and temperature and seed at least 0")
        if self.samples > MOST_SAMPLES:
            raise UsageError(f"samples is {self.samples}; at most {MOST_SAMPLES} are played of a task")
        if self.out.suffix != ".jsonl" or self.out.stem.endswith(".played"):
            raise UsageError(f"--out is {self.out}; name a file that ends in .jsonl, and not in .played.jsonl")
        select((), least_success=self.least_success, top_k=self.top_k)  # Refuses what it cannot choose by.

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
        return settings


def run(arguments: Sequence[str]) -> int:
    """Play what is missing, choose, say what became of each episode; 1 where nothing was kept."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra collect")
    env_id = resolve(options.env_id)
    with reporting(options.json) as figures, Interrupts() as interrupts, ExitStack() as opened:
        played: Played | None = None
        try:
            environment = options.environment
            if loads_here(options.agent):
                from palaestra.agents.local_model import open_tokenizer

                model = options.agent.model
                environment = read_as(env_id, environment, model, open_tokenizer(model))
            played = opened.enter_context(
                Played(options.out, env_id, options.agent.model, options.seed, options.settings(environment))
            )
            with blaming():
                return _Collection(options, env_id, environment, played, interrupts, Console(), figures).run()
        except Interrupted as stop:
            print(f"\ninterrupted; {_way_on(options, played)}", file=sys.stderr)
            return 128 + stop.number
        except PalaestraError as error:
            if played is None or (isinstance(error, UsageError) and not played.done):
                raise  # The same command would be refused again.
            print(f"palaestra collect: {error}\n{_way_on(options, played)}", file=sys.stderr)
            return 2


@dataclass(frozen=True, slots=True)
class _Collection:
    """What is asked for, and where it goes."""

    options: Options
    env_id: str
    environment: Mapping[str, Any]
    played: Played
    interrupts: Interrupts
    console: Console
    figures: dict[str, Any]
    """What is reported of it."""

    def run(self) -> int:
        """Play what is missing, then choose; 1 where nothing was kept."""
        for said in self.played.notes:
            note(said)
        options = self.options
        starts, cost = self._play_missing()
        records = self.played.records(starts)
        chosen = select(records, least_success=options.least_success, top_k=options.top_k)
        _show(chosen, self.env_id, self.console)
        if faults := [record.episode.fault for record in records if record.episode.reward is None]:
            note(f"the same command tries the {len(faults)} BROKEN again; the last broke on: {faults[-1]}")
        counts = {source: asdict(found) for source, found in chosen.by_source.items()}
        rules = {"least_success": options.least_success, "top_k": options.top_k}
        found = {**rules, "counts": asdict(chosen.counts), "by_source": counts, "spent_last": cost}
        self.played.summarise(found)
        self.figures.update({"env_id": self.env_id, "out": str(options.out), **found})
        if not chosen.records:
            show_line(self.console, f"nothing was kept, so {options.out} was not written")
            return 1
        write(options.out, chosen.records)
        show_line(self.console, f"{len(chosen.records)} episodes: {options.out}")
        if self.played.defects:
            show_line(self.console, f"{self.played.defects} lines of {self.played.path} are no episodes")
        return 0

    def _play_missing(self) -> tuple[list[Start], dict[str, Any] | None]:
        """All Starts that were asked for, and what it has cost to play those that were missing."""
        options, cost = self.options, None
        slots = 1 if options.agent.model == HUMAN and options.agent.base_url is None else options.slots
        # Opened even where nothing is missing: it knows how many tasks there are.
        with closing(arena(self.env_id, slots, **self.environment)) as places:
            if seats := getattr(places, "seats", ()):
                raise UsageError(
                    f"{self.env_id} is a game of the seats {', '.join(seats)}; name the one that the teacher plays, as "
                    f"in --env-options seat={seats[0]}, and the others are played by the game's own script"
                )
            tasks, samples = range(min(options.tasks, places.task_count)), range(options.samples)
            starts = [start_of(options.seed, task, sample) for task in tasks for sample in samples]
            missing = [start for start in starts if (start.task, start.seed) not in self.played.done]
            if len(tasks) < options.tasks:
                note(f"there are only {places.task_count} tasks in the {options.split} split")
            if len(missing) < len(starts):
                note(f"{len(starts) - len(missing)} of {len(starts)} are played already")
            if missing:
                who = open_agent(
                    options.agent, self.env_id, slots=slots, seed=options.seed, environment=self.environment
                )
                with who as agent, closing(self._play(agent, places, missing, max(_HOPELESS, slots))) as stage:
                    try:
                        watch(stage)
                    finally:
                        cost = spent(agent)
                        if cost is not None:
                            show_line(self.console, spending(cost))
        return starts, cost

    def _play(
        self, agent: "Agent", places: "Arena", starts: Sequence[Start], hopeless: int
    ) -> Generator[Progress, None, None]:
        """Play these, writing each episode down as it ends."""
        from palaestra.agents import TokenLimits, play

        limits = TokenLimits(*self.options.limits)
        scored, successes, broken = 0, 0.0, 0
        episodes = play(agent, places, starts, limits=limits, temperature=self.options.temperature)
        for number, episode in enumerate(episodes, start=1):
            with self.interrupts.held():  # An episode that was paid for is not lost between two writes.
                self.played.add(episode)
            self.interrupts.check()
            if episode.reward is None:
                broken += 1
            else:
                scored, successes, broken = scored + 1, successes + episode.parts.get("success", 0.0), 0
            mean = {"rewards/success/mean": successes / scored} if scored else {}
            yield Progress("collecting", number, len(starts), mean)
            if broken >= hopeless and number < len(starts):
                raise TrainingHalted(f"the last {broken} episodes are all BROKEN; the last one: {episode.fault}")


def _show(chosen: Selection, env_id: str, console: Console) -> None:
    rows = dict(chosen.by_source)
    if len(rows) > 1:
        rows["all"] = chosen.counts
    # The title names the environment already, and a row has little room for words.
    shown = {
        "episodes" if source == env_id else source: tuple(str(value) for value in asdict(counts).values())
        for source, counts in rows.items()
    }
    console.print(table(f"Episodes of {env_id.rpartition(':')[2]}", shown, _COLUMNS))


def _way_on(options: Options, played: Played | None) -> str:
    """One line: what is safe, and how to go on."""
    if played is None or not played.done:
        return "no episode is scored yet; the same command plays them"
    kept = f"{len(played.done)} episodes are in {shlex.quote(str(played.path))}"
    return f"{kept}; the same command plays the rest"
