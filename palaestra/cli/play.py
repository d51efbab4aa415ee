"""`palaestra play ID`: step an environment by hand. A line is the agent's whole turn; a line that starts with / asks.

Turns come from standard input as well: `palaestra play two-hop --seed 1 < turns.txt`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from palaestra.cli.ids import resolve
from palaestra.errors import PalaestraError, UsageError
from palaestra.plain import from_pairs
from palaestra.registry import is_game

if TYPE_CHECKING:
    from palaestra.cli.asking import Asking

QUOTES = '"""'


@dataclass(frozen=True)
class Options:
    """Step an environment by hand, as its agent sees it; of a game every seat, or with --env-options seat=NAME one."""

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV-ID")]
    """Environment, by id."""
    seed: int | None = None
    """The environment's own randomness, and the task where none is given; drawn by default."""
    task: int | None = None
    """Which task."""
    split: str = "train"
    """Of the tasks: train or eval."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE for the environment: tasks=problems.jsonl, or what its class takes."""
    episode: str | None = None
    """FILE or FILE:N: begin where the N-th recorded episode of a file ended; /undo leads back from there."""
    model: str | None = None
    """Folder or hub name whose tokens /tokens shows."""


def run(arguments: Sequence[str]) -> int:
    """Read turns and questions until the input ends; 1 when the episode broke."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra play")
    env_id, console = resolve(options.env_id), Console(highlight=False)
    return _play_game(options, env_id, console) if is_game(env_id) else _play(options, env_id, console)


def _play(options: Options, env_id: str, console: Console) -> int:
    from palaestra.cli.desk import Desk
    from palaestra.envs.core.opening import open_env
    from palaestra.envs.records.by_hand import ByHand

    chosen = {"split": options.split, **from_pairs(options.env_options, "env_options")}
    env = open_env(env_id, chosen)
    desk = Desk(ByHand(env, env_id, chosen), console, options.model, typed=sys.stdin.isatty())
    try:
        if options.episode is not None:
            desk.load(*_place(options.episode))
        else:
            desk.open(options.seed, options.task)
        _converse(desk, console)
    finally:
        env.close()
    return 1 if desk.broken else 0


def _play_game(options: Options, env_id: str, console: Console) -> int:
    if options.episode is not None or options.model is not None:
        raise UsageError(f"{env_id} is a game; --episode and --model are for environments of one seat")
    from palaestra.cli.game_desk import GameDesk
    from palaestra.envs.records.game_by_hand import GameByHand

    chosen = {"split": options.split, **from_pairs(options.env_options, "env_options")}
    desk = GameDesk(GameByHand(env_id, chosen), console, typed=sys.stdin.isatty())
    try:
        desk.open(options.seed, options.task)
        _converse(desk, console)
    finally:
        desk.hand.game.close()
    return 1 if desk.broken else 0


def _converse(desk: "Asking", console: Console) -> None:
    """Answer what is typed or piped, to its end; a mistake is told, and the episode goes on."""
    for text in turns(console):
        try:
            if not desk.take(text):
                return
        except PalaestraError as error:
            console.print(f"{error}", style="red", markup=False, soft_wrap=True)


def turns(console: Console) -> Iterator[str]:
    """What is typed or piped: a line, or several between lines of three quotes."""
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401  (gives input() a history and keys to edit)

        console.print(f"a line is your whole turn; {QUOTES} begins and ends one of several lines; /help, /quit")
    block: list[str] | None = None
    while True:
        try:
            line = input("... " if block is not None else "> ") if interactive else sys.stdin.readline()
        except EOFError:
            break
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not text in {sys.stdin.encoding}: {error}") from error
        if not interactive:
            if not line:
                break
            line = line.removesuffix("\n")
        if line.strip() == QUOTES:
            if block is not None:
                yield "\n".join(block)
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
        elif line.strip():
            yield line
    if block is not None:
        raise UsageError(f"the input ended inside {QUOTES}: {len(block)} lines were not taken as a turn")


def _place(text: str) -> tuple[Path, int]:
    path, _, number = text.rpartition(":")
    if path and number.isdigit():
        return Path(path), int(number)
    return Path(text), 1
