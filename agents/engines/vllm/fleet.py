"""Use several vLLM servers as one: give each turn to a server, retry turns, and record each server's weights.

Only servers with the newest weights get turns; `routing` chooses one of them. A server that does not answer, or answers
with other weights, gets no turns until it has the newest weights; its turns are retried on any ready server. A turn
fails with a fault after too many tries or too much time. All of this runs on one event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

from palaestra.agents.engines.vllm.answer import Wrong, read
from palaestra.agents.engines.vllm.replica import LOAD_SECONDS, Lost, Replica, RequestRejected
from palaestra.agents.engines.vllm.routing import PendingRequest, StickyRoutes
from palaestra.endpoint.config import Secret
from palaestra.errors import Broken, TrainingHalted
from palaestra.protocols import Completion, PauseMode

log = logging.getLogger("palaestra.engines")

TRIES = 4
"""Number of tries of a turn before it gets a fault; waiting for a server is not a try."""
_SETTLE_SECONDS = 2.0
"""Seconds to wait for the answers of turns that a pause has ended."""
_ABORT_SECONDS = 2.0
"""Seconds for a server to end a cancelled turn before its connection is closed."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 2.0
"""Seconds between two checks of a server that is away."""


class Fleet:
    """All servers of an engine. Its coroutines must run on one event loop."""

    def __init__(self, urls: Collection[str], secret: Secret, answer_seconds: float, restart_seconds: float) -> None:
        self.replicas = [Replica(url, secret) for url in urls]
        self.sampled = 0
        self.numbers: dict[str, tuple[int, int]] = {}
        """Serial number and version of the weights, by the name that the servers know them by."""
        self._answer_seconds, self._restart_seconds = answer_seconds, restart_seconds
        self._give: Callable[[Replica], Awaitable[None]] | None = None
        """Gives a server the newest weights; None if the server must wait for the next update."""
        self._tag = ""
        self._open, self._up = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._pauses = 0
        self._released = False
        self._routes = StickyRoutes()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def answer(self, turn: PendingRequest, stops: Collection[int], words: int) -> Completion | None:
        """Return the completion of a turn, which holds a fault if all tries failed; None if the turn was cancelled."""
        tries, reason = 0, ""
        self._note(asyncio.current_task())
        while tries < TRIES:
            replica = await self._free(turn.row)
            if replica is None:
                waited = f"no server was ready within {self._restart_seconds:g} s"
                return Completion(turn.ticket, fault=f"{waited}: {reason or self._reasons()}")
            turn.at, pauses, newest = replica, self._pauses, self.numbers[self._tag][0]
            tries, replica.load = tries + 1, replica.load + 1
            try:
                request = turn.body | {"request_id": turn.name}
                document = await self._patiently(replica.generate(request, turn.max_tokens))
                sampled_turn = read(document, max_tokens=turn.max_tokens, stops=stops, words=words)
                self.sampled += len(sampled_turn.ids)
                if turn.cancelled:
                    return None
                tag_numbers = [self.numbers.get(tag, (-1, -1)) for tag in sampled_turn.tags]
                if sampled_turn.aborted:
                    tries -= pauses != self._pauses
                    reason = f"{replica.url} ended the turn by itself"
                elif min(tag_numbers)[0] < newest:
                    raise Lost(f"{replica.url} answered from weights that it was not given; was it started anew?")
                else:
                    versions, cut = [version for _, version in tag_numbers], sampled_turn.ids[-1] not in stops
                    return Completion(turn.ticket, sampled_turn.ids, sampled_turn.logprobs, versions, cut=cut)
            except Lost as error:
                reason = str(error)
                if pauses == self._pauses:
                    self._set_aside(replica, reason)
                else:  # A server refuses turns in a pause; if it is gone, the next try shows that.
                    tries -= 1
            except Wrong as error:
                reason = f"{replica.url} answered wrongly: {error}"
            except RequestRejected as error:
                return Completion(turn.ticket, fault=str(error))
            finally:
                replica.load -= 1
                turn.at, turn.name = None, uuid4().hex
        return Completion(turn.ticket, fault=f"given up after {tries} tries: {reason}")

    async def cancel(self, turn: PendingRequest, task: "Future[None]") -> None:
        """Make the server end a turn and report its tokens. If that takes too long, close the connection."""
        turn.cancelled = True
        try:
            if turn.at is not None:
                await turn.at.abort(turn.name)
                await asyncio.wait({asyncio.wrap_future(task)}, timeout=_ABORT_SECONDS)
        except (Lost, RequestRejected):
            pass
        finally:
            task.cancel()

    async def update(self, tag: str, version: int, give: Callable[[Replica], Awaitable[None]], keeps: bool) -> None:
        """Give new weights to all servers; raise `Broken` if none takes them. `keeps` allows a later call of `give`."""
        self._tag, self.numbers[tag] = tag, (len(self.numbers), version)
        self._give = give
        for replica in self.replicas:
            replica.ready = False
        self._up.clear()
        try:
            await asyncio.gather(*(self._give_weights(replica) for replica in self.replicas))
        finally:
            self._give = give if keeps else None
        for replica in self.replicas:
            if not replica.ready:
                self._set_aside(replica, replica.reason)
        try:
            async with asyncio.timeout(self._restart_seconds):
                await self._up.wait()
        except TimeoutError:
            raise Broken(
                f"no server took the weights of step {version} within {self._restart_seconds:g} s: {self._reasons()}"
            ) from None

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling on all servers until `resume`."""
        self._open.clear()
        self._pauses += 1
        seconds = self._answer_seconds if mode == "wait" else LOAD_SECONDS
        await self._all(lambda replica: replica.pause(mode, seconds), self._ready)
        await self._settle(mode != "keep")

    async def resume(self) -> None:
        """End a pause: sampling continues, unless the servers' memory is released."""
        if not self._released:
            paused = self._ready
            while paused:  # A server that was given its weights meanwhile was left paused.
                await self._all(Replica.resume, paused)
                paused = [replica for replica in self._ready if replica.paused]
            self._open.set()

    async def release(self) -> None:
        """Make the servers free memory. Their running turns end, and begin again after `reclaim`.

        A server that is lost gets weights at the next update: until then the trainer may need the memory, and change
        the weights that would be sent.
        """
        self._open.clear()
        self._pauses += 1
        self._released, self._give = True, None

        async def sleep(replica: Replica) -> None:
            async with replica.lock:  # Weights that it is being given arrive first.
                await replica.sleep()

        await self._all(sleep, self.replicas)
        await self._settle(True)

    async def reclaim(self, paused: bool) -> None:
        """Make the servers allocate their memory again. Sampling continues, unless `paused`."""
        if not self._released:
            return
        self._released = False  # From here on, a server that gets its weights wakes up by itself.
        await self._all(Replica.wake_up, self.replicas)
        if not paused:
            await self.resume()

    async def stop(self) -> None:
        """Cancel all tasks and wait for them, so that no connection is left half open."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_ABORT_SECONDS)

    async def aclose(self) -> None:
        """Close all connections."""
        for replica in self.replicas:
            await replica.aclose()

    @property
    def _ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.ready]

    @property
    def busy(self) -> bool:
        """Return whether there are tasks for `stop` to cancel."""
        return bool(self._tasks)

    def _note(self, task: "asyncio.Task[Any] | None") -> None:
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _free(self, row: int) -> Replica | None:
        """Return a ready server for this row. Return None if none becomes ready in time, pauses excluded."""
        while True:
            # The caller raises the load before any other task looks: nothing is awaited in between.
            if self._open.is_set() and (ready := self._ready):
                return self._routes.choose(row, ready)
            try:
                await self._patiently(asyncio.gather(self._up.wait(), self._open.wait()), self._restart_seconds)
            except Lost:
                return None

    async def _patiently(self, work: Awaitable[Any], seconds: float | None = None) -> Any:
        """Await work. Raise `Lost` after the timeout, which does not count the time in which the engine is paused."""
        task, remaining_seconds = asyncio.ensure_future(work), seconds or self._answer_seconds
        clock = asyncio.get_running_loop().time
        try:
            while not task.done() and remaining_seconds > 0:
                began, runs, pauses = clock(), self._open.is_set(), self._pauses
                await asyncio.wait({task}, timeout=min(remaining_seconds, 1.0))
                remaining_seconds -= (clock() - began) * (runs and pauses == self._pauses)
            if not task.done():
                raise Lost(f"no answer within {seconds or self._answer_seconds:g} s")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_ABORT_SECONDS)

    async def _give_weights(self, replica: Replica) -> bool:
        """Pause a server, give it the newest weights, and continue. Return whether the server now has them."""
        async with replica.lock:
            tag, give = self._tag, self._give
            try:
                if replica.ready or give is None or not await replica.healthy():
                    return replica.ready
                if self._released:
                    await replica.wake_up("weights")
                elif replica.reviving:  # It may have been lost before it woke up.
                    await replica.wake_up()
                await replica.pause("keep", LOAD_SECONDS)
                await give(replica)
                await replica.renamed(tag)
                if self._open.is_set():
                    await replica.resume()
            except Lost as error:
                replica.reason = str(error)
                return False
            except RequestRejected as error:
                replica.reason = str(error)
                raise TrainingHalted(f"a server did not take the weights: {error}") from None
            if tag == self._tag:
                replica.ready = True
                self._up.set()
            return replica.ready

    def _set_aside(self, replica: Replica, reason: str) -> None:
        """Send a server no more turns, and try again and again to give it the newest weights, until it takes them."""
        replica.ready, replica.reason = False, reason
        if not self._ready:
            self._up.clear()
        if not replica.reviving:
            replica.reviving = True
            log.warning("%s; its turns are asked anew", reason or replica.url)
            self._note(asyncio.ensure_future(self._revive(replica)))

    async def _revive(self, replica: Replica) -> None:
        wait = _FIRST_WAIT_SECONDS
        try:
            while not replica.ready:
                try:
                    if await self._give_weights(replica):
                        log.warning("%s is back", replica.url)
                        return
                except TrainingHalted as error:
                    log.warning("%s", error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        finally:
            replica.reviving = False

    async def _all(self, work: Callable[[Replica], Awaitable[None]], replicas: Collection[Replica]) -> None:
        """Call `work` for these servers. One for which it fails gets no more turns until it answers again."""

        async def attempt(replica: Replica) -> None:
            try:
                await work(replica)
            except (Lost, RequestRejected) as error:
                self._set_aside(replica, str(error))

        await asyncio.gather(*map(attempt, replicas))

    async def _settle(self, ends: bool) -> None:
        """Wait a moment for answers that were sent before a pause. If the pause `ends` turns, wait for all turns."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _SETTLE_SECONDS
        await asyncio.sleep(0.05)
        while ends and any(replica.load for replica in self.replicas) and clock() < deadline:
            await asyncio.sleep(0.01)

    def _reasons(self) -> str:
        reasons = {replica.reason for replica in self.replicas if replica.reason}
        return "; ".join(sorted(reasons)) or "no reason is known"
