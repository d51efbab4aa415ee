"""`palaestra play ID`: step an environment by hand, or with `--model M` let a model play one episode.

A line is the agent's whole turn, or a command if it starts with /.

A turn that begins with a Markdown fence ends where the fence is closed, so it can hold a program. Turns can also come
from a file: `palaestra play two-hop --seed 1 < turns.txt`.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.agents import DEMONSTRATOR, HUMAN, AgentOptions, GuardOptions
from palaestra.cli.blame import blaming
from palaestra.cli.ids import resolve
from palaestra.cli.shared_options import EnvironmentOptions
from palaestra.errors import EnvironmentDefect, PalaestraError, UsageError
from palaestra.registry import check_options
from palaestra.trainers.config.sections_config import PromptConfig

if TYPE_CHECKING:
    from palaestra.cli.desk import PlayConsole

QUOTES = '"""'
_OPENING = re.compile(r'\s*("""(?=\s*$)|`{3,}(?!.*`)|~{3,})')
"""A line that opens a turn of several lines: three quotes alone, or a Markdown fence."""


@dataclass(frozen=True, kw_only=True)
class PlayOptions(PromptConfig, EnvironmentOptions, GuardOptions):
    """Step an environment by hand, as its agent sees it; of a game every seat, or with --env-options seat=NAME one.

    With --model a model of yours plays one episode, which is printed.
    """

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV-ID")]
    """Environment, by id."""
    seed: int | None = None
    """The environment's own randomness, and the task where none is given; drawn by default."""
    task: int | None = None
    """Index of the task."""
    episode: str | None = None
    """FILE or FILE:N: begin where the N-th recorded episode of a file ended; /undo leads back from there. A game is
    taken up with all of its seats."""
    model: str | None = None
    """Folder or hub name of a model that plays one episode in your place."""
    show_prompt: bool = False
    """Print the prompt as the model sees it, with special tokens, and at each turn what is new."""
    temperature: float = 0.0
    """Sampling temperature of the model. 0 means greedy decoding."""
    max_turn_tokens: int | None = None
    """A turn of the model that is cut here ends the episode; as in its run, else 4096."""
    max_episode_tokens: int | None = None
    """Longest row of the model; as in its run, else 23,040."""
    device: str = "auto"
    """Device of the model: `cpu`, `cuda`, or `auto`."""

    def __post_init__(self) -> None:
        self.require_loaded(self.model is not None)
        if self.model in (DEMONSTRATOR, HUMAN):
            raise UsageError(f"--model is {self.model!r}; without --model you play, and /script lets the demonstrator")
        if self.model is None and self.show_prompt:
            raise UsageError("--show-prompt shows what a model sees; name it with --model")
        if self.model is not None and (self.episode is not None or self.guard_url is not None):
            raise UsageError("--episode and --guard-url are for play by hand; leave out --model")
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}; expected 0 or more")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"seed is {self.seed}; expected 0 or more")


def run(arguments: Sequence[str]) -> int:
    """Read turns and commands until the input ends. Return 1 if the episode broke or the environment had an error."""
    options = tyro.cli(PlayOptions, args=list(arguments), prog="palaestra play")
    env_id, console = resolve(options.env_id), Console(highlight=False)
    from palaestra.cli.desk import PlayConsole
    from palaestra.envs.records.by_hand import open_by_hand

    check_options(env_id, options.environment)
    if options.model is not None:
        return _watched(options, options.model, env_id, console)
    guard = options.open_guard()
    hand = open_by_hand(env_id, options.environment)
    desk = PlayConsole(hand, console, typed=sys.stdin.isatty(), guard=guard)
    try:
        if options.episode is not None:
            desk.load(*_place(options.episode))
        else:
            desk.open(options.seed, options.task)
        _converse(desk, console)
    finally:
        hand.close()
        if guard is not None:
            guard.close()
    return 1 if desk.broken else 0


def _watched(options: PlayOptions, model: str, env_id: str, console: Console) -> int:
    """Let a model play one episode. Return 1 if the episode broke."""
    from palaestra.cli.watched_episode import watch

    changes: dict[str, Any] = {"chat_template": options.chat_template, "system": options.system}
    episode = watch(
        env_id,
        options.environment,
        AgentOptions(model, device=options.device, **changes),
        console,
        task=options.task,
        seed=options.seed,
        temperature=options.temperature,
        limits=(options.max_turn_tokens, options.max_episode_tokens),
        show_prompt=options.show_prompt,
    )
    return 1 if episode.reward is None else 0


def _converse(desk: "PlayConsole", console: Console) -> None:
    """Process turns and commands until the input ends. Print errors, also the environment's, and continue."""
    for text in turns(console):
        try:
            with blaming():
                if not desk.take(text):
                    return
        except PalaestraError as error:
            desk.broken = desk.broken or isinstance(error, EnvironmentDefect)
            console.print(f"{error}", style="red", markup=False, soft_wrap=True)


def turns(console: Console) -> Iterator[str]:
    """Yield each input: a line, or the lines within a Markdown fence or between two lines of three quotes."""
    block: list[str] = []
    """A turn of several lines, with the line that opened it."""
    closing = ""
    for line in _lines(console, block):
        if block:
            block.append(line)
            if _closes(line, closing):
                yield "\n".join(block[1:-1] if closing == QUOTES else block)
                block.clear()
        elif opened := _OPENING.match(line):
            closing = opened[1]
            block.append(line)
        elif line.strip():
            yield line
    if block:
        raise UsageError(f"the input ended inside {closing}: {len(block) - 1} lines were not taken as a turn")


def _closes(line: str, opening: str) -> bool:
    """Return whether a line closes a block. Three quotes close three quotes; a fence is closed by a line of its own
    sign that is at least as long.
    """
    if opening == QUOTES:
        return line.strip() == QUOTES
    return len(line.strip()) >= len(opening) and not line.strip().strip(opening[0])


def _lines(console: Console, block: Sequence[str]) -> Iterator[str]:
    """Yield the lines that are typed or piped. While `block` holds an unfinished turn, the prompt is `...`."""
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401  (gives input() a history and keys to edit)

        console.print(f"a line is your whole turn; {QUOTES} or a ``` fence holds several; /help, /quit", markup=False)
    while True:
        try:
            line = input("... " if block else "> ") if interactive else sys.stdin.readline()
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not text in {sys.stdin.encoding}: {error}") from error
        if not interactive:
            if not line:
                return
            line = line.removesuffix("\n")
        yield line


def _place(text: str) -> tuple[Path, int]:
    path, _, number = text.rpartition(":")
    if path and number.isdecimal():
        return Path(path), int(number)
    return Path(text), 1
