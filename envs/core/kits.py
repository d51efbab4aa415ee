"""The toolkits of one machine: made when its first episode begins, kept for the next ones, given up while in use.

Each method says what is to be done, in place or as Work. Left out: when (`machine`), and what a toolkit is (`toolkit`).
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from palaestra.authorship import foreign_line
from palaestra.envs.core.spec import Spec
from palaestra.envs.core.state import Seat, State
from palaestra.envs.core.toolkit import Toolkit, mode_of
from palaestra.envs.running.work import Mode, Work, warn_late
from palaestra.errors import EnvironmentDefect, MissingExtra, SandboxUnavailable, UsageError

log = logging.getLogger("palaestra.envs")
_PERMANENT = (EnvironmentDefect, UsageError, MissingExtra, SandboxUnavailable)
"""Somebody has to change the options, the environment or the machine."""


class Kits:
    """A machine's toolkits, each with the seat that it belongs to; None where all seats share it."""

    __slots__ = ("made", "spec")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.made: list[tuple[Seat, Toolkit]] | None = None

    def make(self) -> list[tuple[Seat, Toolkit]]:
        """Those of this episode."""
        if self.made is None:
            made: list[tuple[Seat, Toolkit]] = []
            for make in self.spec.author.toolkits:
                first = make()
                made.append((self.spec.seats[0] if first.per_seat else None, first))
                if first.per_seat:
                    made += [(seat, make()) for seat in self.spec.seats[1:]]
            self.made = made
        return self.made

    def owners(self) -> Mapping[Seat, Mapping[str, Any]]:
        """For each seat, whose method a tool of a toolkit is."""
        return {
            seat: {name: kit for of, kit in self.make() if of is None or of == seat for name in kit.tools}
            for seat in self.spec.seats
        }

    def start(self, at: int, state: State, dropped: Callable[[], bool], eager: bool) -> Work | None:
        """Start one toolkit, in place where it only computes. One that comes through when nobody waits any more is
        closed once more."""
        _, kit = self.make()[at]
        mode = mode_of(kit, "start")
        run = partial(kit.start, state.problem, state.play.rng)
        if mode is Mode.INLINE and eager:
            run()
            return None
        start: Any = _start_or_close_async if mode is Mode.ASYNC else _start_or_close
        return self._work(kit, "start", mode, partial(start, kit, run, dropped))

    def declaring(self) -> list[tuple[Seat, Any]]:
        """Those that declare something of their final state."""
        return [(seat, kit) for seat, kit in self.made or () if type(kit).final is not Toolkit.final]

    def finals(self, takers: Sequence[tuple[Seat, Any]], eager: bool) -> list[Work]:
        """The works that ask what these declare; none where that only computes."""
        modes = [
            mode_of(one, "final") if isinstance(one, Toolkit) or iscoroutinefunction(one.final) else Mode.INLINE
            for _, one in takers
        ]
        if eager and all(mode is Mode.INLINE for mode in modes):
            return []
        return [self._work(one, "final", mode, one.final) for (_, one), mode in zip(takers, modes, strict=True)]

    def close(self, eager: bool) -> list[Work]:
        """Close in place what only computes; the works that close the others."""
        works = []
        for _, kit in self.made or ():
            mode = mode_of(kit, "close")
            if mode is Mode.INLINE and eager:
                _close(kit)
            else:
                works.append(self._work(kit, "close", mode, kit.close))
        return works

    def give_up(self, in_use: bool, closing: bool = False) -> list[Work]:
        """Close those of an episode that nobody waits for. Works are run aside, and the next episode makes new ones.

        `closing`: what only computes is closed, and the others may not have come to the end of it.
        """
        if not self.made or (not in_use and all(mode_of(kit, "close") is Mode.INLINE for _, kit in self.made)):
            return self.close(eager=True)
        modes = [(kit, mode_of(kit, "close")) for _, kit in self.made]
        works = [
            self._work(kit, "close", mode, kit.close) for kit, mode in modes if mode is not Mode.INLINE or not closing
        ]
        self.made = None
        return works

    def closed(self, where: str, works: Sequence[Work]) -> None:
        """Those that did not close in time are left to themselves, and the next episode makes new ones."""
        warn_late(where, works)
        if any(work.late for work in works):
            self.made = None
        for work in works:
            if work.error is not None and not work.late:
                log.warning("%s: %s failed: %s: %s", where, work.label, type(work.error).__name__, work.error)

    def _work(self, owner: Any, method: str, mode: Mode, run: Callable[[], Any]) -> Work:
        mode = Mode.BLOCKING if mode is Mode.INLINE else mode
        return Work(f"{type(owner).__name__}.{method}", run, self.spec.conditions[method, mode])


def _start_or_close(kit: Toolkit, start: Callable[[], None], dropped: Callable[[], bool]) -> None:
    start()
    if dropped():
        _close(kit)


async def _start_or_close_async(
    kit: Toolkit, start: Callable[[], Awaitable[None]], dropped: Callable[[], bool]
) -> None:
    """On the loop, which a start that is cancelled may have held until it was done."""
    await start()
    if dropped():
        threading.Thread(target=_close, args=(kit,), name="palaestra-close", daemon=True).start()


def _close(kit: Toolkit) -> None:
    """Close a toolkit; one that fails to close changes nothing about the episode."""
    try:
        if iscoroutinefunction(kit.close):  # In a thread of its own.
            asyncio.run(kit.close())
        else:
            kit.close()
    except Exception as error:
        log.warning("toolkit %s did not close: %s: %s", type(kit).__name__, type(error).__name__, error)


def is_permanent(error: BaseException) -> bool:
    """Whether the next episode would meet it too."""
    return isinstance(error, _PERMANENT) or not isinstance(error, Exception)


def start_fault(error: BaseException) -> str:
    """What to say of a start that failed."""
    place = foreign_line(error)
    return f"a toolkit did not start: {type(error).__name__}: {error}" + (f" ({place})" if place else "")
