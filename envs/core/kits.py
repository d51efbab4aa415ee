"""The toolkits of one Machine: made when its first episode begins, and kept for the next episodes.

If an episode is dropped while its toolkits may be in use, the next one gets new toolkits. Each method runs a step in
place, or returns the Work that runs it. Left out: the order of steps (`machine`), and the toolkits' base (`toolkit`).
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
from palaestra.envs.core.state import EpisodeState, Expected, Seat
from palaestra.envs.core.toolkit import Toolkit, as_called_by, mode_of
from palaestra.envs.running.work import Pending, Work, WorkMode, warn_late
from palaestra.errors import EnvironmentDefect, MissingExtra, SandboxUnavailable, UsageError

log = logging.getLogger("palaestra.envs")
_PERMANENT = (EnvironmentDefect, UsageError, MissingExtra, SandboxUnavailable)
"""Errors that every episode would meet: the options, the environment or the machine must be changed."""


class Kits:
    """Toolkits of a machine, each with the seat that it belongs to; the seat is None if all seats share the toolkit."""

    __slots__ = ("instances", "spec")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.instances: list[tuple[Seat, Toolkit]] | None = None

    def make(self) -> list[tuple[Seat, Toolkit]]:
        """Create the toolkits on the first call, and return them."""
        if self.instances is None:
            kits: list[tuple[Seat, Toolkit]] = []
            for make in self.spec.toolkits:
                first = make()
                kits.append((self.spec.seats[0] if first.per_seat else None, first))
                if first.per_seat:
                    kits += [(seat, make()) for seat in self.spec.seats[1:]]
            for seat, kit in kits:
                if seat is not None:
                    kit.seat = seat
            self.instances = kits
        return self.instances

    def owners(self) -> Mapping[Seat, Mapping[str, Any]]:
        """Map each seat to its tools: `{seat: {tool name: toolkit}}`."""
        owners: dict[Seat, dict[str, Any]] = {}
        for seat in self.spec.seats:
            kits = [
                kit if of == seat else as_called_by(kit, str(seat)) for of, kit in self.make() if of in (None, seat)
            ]
            owners[seat] = {name: kit for kit in kits for name in kit.tools}
        return owners

    def start(self, at: int, state: EpisodeState, dropped: Callable[[], bool], eager: bool) -> Work | None:
        """Start toolkit number `at`. Run it in place and return None if it only computes; otherwise return the job. If
        the episode was dropped before the start ended (`dropped()` is true), the job also closes the toolkit."""
        _, kit = self.make()[at]
        mode = mode_of(kit, "start")
        run = partial(kit.start, state.problem, state.play.rng)
        if mode is WorkMode.INLINE and eager:
            run()
            return None
        start: Any = _start_or_close_async if mode is WorkMode.ASYNC else _start_or_close
        return self._work(kit, "start", mode, partial(start, kit, run, dropped))

    def declaring(self) -> list[tuple[Seat, Any]]:
        """Return the toolkits that override `final`, each with its seat."""
        return [(seat, kit) for seat, kit in self.instances or () if type(kit).final is not Toolkit.final]

    def finals(self, takers: Sequence[tuple[Seat, Any]], eager: bool) -> list[Work]:
        """Return the jobs that call `final` of these takers; [] if all only compute: the caller then calls them."""
        modes = [
            mode_of(taker, "final")
            if isinstance(taker, Toolkit) or iscoroutinefunction(taker.final)
            else WorkMode.INLINE
            for _, taker in takers
        ]
        if eager and all(mode is WorkMode.INLINE for mode in modes):
            return []
        return [self._work(taker, "final", mode, taker.final) for (_, taker), mode in zip(takers, modes, strict=True)]

    def close(self, eager: bool) -> list[Work]:
        """Close in place the toolkits that only compute, and return the jobs that close the others."""
        works = []
        for _, kit in self.instances or ():
            mode = mode_of(kit, "close")
            if mode is WorkMode.INLINE and eager:
                _close(kit)
            else:
                works.append(self._work(kit, "close", mode, kit.close))
        return works

    def give_up(self, in_use: bool, closing: bool = False) -> list[Pending]:
        """Close the toolkits of a dropped episode, and return the jobs for that, which nobody has to wait for.

        The toolkits are kept only if all of them only compute and no job uses them (`in_use`); otherwise the next
        episode makes new ones. With `closing`, a close has begun: toolkits that only compute are closed, the others may
        still be closing.
        """
        modes = [(kit, mode_of(kit, "close")) for _, kit in self.instances or ()]
        if not in_use and all(mode is WorkMode.INLINE for _, mode in modes):
            self.close(eager=True)
            return []
        self.instances = None
        waiting = [(kit, mode) for kit, mode in modes if mode is not WorkMode.INLINE or not closing]
        works = [self._work(kit, "close", mode, kit.close) for kit, mode in waiting]
        return [Pending(works, Expected("closing", None))] if works else []

    def closed(self, where: str, works: Sequence[Work]) -> None:
        """Log toolkits that failed to close. If one is late, drop all of them, so that the next episode creates new
        ones."""
        warn_late(where, works)
        if any(work.late for work in works):
            self.instances = None
        for work in works:
            if work.error is not None and not work.late:
                log.warning("%s: %s failed: %s: %s", where, work.label, type(work.error).__name__, work.error)

    def _work(self, owner: Any, method: str, mode: WorkMode, run: Callable[[], Any]) -> Work:
        mode = WorkMode.BLOCKING if mode is WorkMode.INLINE else mode
        return Work(f"{type(owner).__name__}.{method}", run, self.spec.conditions[method, mode])


def _start_or_close(kit: Toolkit, start: Callable[[], None], dropped: Callable[[], bool]) -> None:
    start()
    if dropped():
        _close(kit)


async def _start_or_close_async(
    kit: Toolkit, start: Callable[[], Awaitable[None]], dropped: Callable[[], bool]
) -> None:
    """Start a toolkit on the event loop. If the episode was dropped meanwhile, close the toolkit in a thread of its
    own."""
    await start()
    if dropped():
        threading.Thread(target=_close, args=(kit,), name="palaestra-close", daemon=True).start()


def _close(kit: Toolkit) -> None:
    """Close a toolkit; an error is only logged, and changes nothing about the episode."""
    try:
        if iscoroutinefunction(kit.close):  # This runs in its own thread, without a running loop.
            asyncio.run(kit.close())
        else:
            kit.close()
    except Exception as error:
        log.warning("toolkit %s did not close: %s: %s", type(kit).__name__, type(error).__name__, error)


def is_permanent(error: BaseException) -> bool:
    """Return whether the next episode would meet the same error."""
    return isinstance(error, _PERMANENT) or not isinstance(error, Exception)


def start_fault(error: BaseException) -> str:
    """Return the fault text of a start that failed."""
    place = foreign_line(error)
    return f"a toolkit did not start: {type(error).__name__}: {error}" + (f" ({place})" if place else "")
