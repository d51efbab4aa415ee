"""RayArena: an arena whose episodes are played by Ray actors, on this machine or on others.

Every worker holds an arena with all slots, and an episode goes to the worker that has the fewest, the seats of a game
to the same one. So what an episode is depends on its Start alone, and workers may come and go: one that has died, or
is silent for long, is replaced; its episodes end BROKEN. Orders are sent and not waited for; `begin` goes out with the
next `send` or `recv`. An author's error, and a start that is refused, are raised by `recv`.

Left out: the actor (`ray_worker`), and what Ray itself is told (`ray_cluster`).
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.envs.arena.ray_cluster import START_SECONDS, Remote, end, join, leave, said
from palaestra.envs.arena.ray_worker import Begin, Discard, Facts, Finish, Send
from palaestra.envs.arena.tables import Gathering, Places, Standing, Table
from palaestra.episode import Attempt, Ending, Event, Message, Start, Task
from palaestra.errors import Broken, PalaestraError, UsageError
from palaestra.mixture import read_mixture

log = logging.getLogger("palaestra.envs")


@dataclass(slots=True)
class _Episode:
    """What runs in a slot."""

    ticket: int
    start: Start
    table: Table
    worker: Remote | None
    """None once it has died."""
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    fault: str = ""
    """Why it is BROKEN, until that is reported."""


class RayArena(Places):
    """`slots` places, played by `workers` actors."""

    def __init__(self, env_id: str, slots: int, workers: int, address: str = "", **options: Any) -> None:
        """`address` is that of a running cluster, "auto" for the one of this machine; without it one is started."""
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise UsageError(f"workers is {workers!r}; expected how many rollout workers to start, such as 4")
        self._ray = join(address)
        self._opened_with = env_id, slots, options
        self._workers: list[Remote] = []
        try:
            self._workers = [Remote(self._ray, number, self._opened_with) for number in range(workers)]
            facts = self._started()
            Places.__init__(self, facts.name, facts.seats, slots, facts.hint)
            self._gathering = Gathering(facts.name, facts.seats, options.get("timeout", 60.0))
        except BaseException:  # An interrupt too: workers that have started must not outlive a start that failed.
            end(self._ray, self._workers)
            leave(self._ray)
            raise
        self.task_count, self.ordered = facts.task_count, facts.ordered
        self.mixture, self.task_counts = read_mixture(env_id), facts.task_counts
        self._episodes: list[_Episode | None] = [None] * slots
        self._ready: dict[int, Event] = {}
        self._errors: list[PalaestraError] = []
        self._tickets = 0
        self._closed = False

    def begin(self, slot: int, start: Start) -> None:
        """Open an episode, as soon as `send` or `recv` is called. On a live slot the running one is discarded."""
        self._require_slot(slot)
        if start.seat not in self._seats:
            raise self._no_such_seat(start.seat)
        if not self._workers:
            raise Broken(f"{self.name}: no rollout worker is left")
        self._discard(slot)
        table = Table(start.seat, slot, start)
        if not self._alone:
            table = self._gathering.seated(start.seat, slot, start)
        others = [found for other in table.slots.values() if other != slot and (found := self._episodes[other])]
        worker = others[0].worker if others else self._freest()
        assert worker is not None, "a table whose worker has died gathers nobody"
        self._tickets += 1
        self._episodes[slot] = _Episode(self._tickets, start, table, worker)
        self._standing[slot] = Standing.BUSY
        worker.orders.append(Begin(slot, self._tickets, start))

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn. Nothing is waited for."""
        self._require_asked("send", tuple(actions))
        shares: dict[int, dict[int, str]] = {}
        for slot, text in actions.items():
            if not isinstance(text, str):
                raise UsageError(f"send: slot {slot} got {type(text).__name__}; expected str, the agent's whole turn")
            if (worker := self._spoken(slot, text)) is not None:
                shares.setdefault(worker.number, {})[slot] = text
        for worker in self._workers:
            if worker.number in shares:
                worker.orders.append(Send(shares[worker.number]))
        self._flush()

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """Close an episode from outside; the event comes through `recv`."""
        self._require_asked("finish", (slot,))
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with send")
        if (worker := self._spoken(slot, text)) is not None:
            worker.orders.append(Finish(slot, ending, text))

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """At least `min_ready` events, unless the timeout passes or no more can come before somebody acts.

        When `ordered`, a barrier: every outstanding event in slot order, or none where the timeout passes first.
        """
        self._flush()
        until = None if timeout is None else time.monotonic() + timeout
        looked = False
        while out := self._outstanding():
            missing = out if self.ordered else max(min_ready, 1) - len(self._ready)
            if self._errors or (looked and missing <= 0):
                break
            heard = self._hear(until if missing > 0 else 0.0)
            looked = True
            if not heard and until is not None and time.monotonic() >= until:
                if self.ordered and not self._errors and self._outstanding():
                    return []
                break
        if self._errors:
            raise self._errors.pop(0)
        if not self._ready and not out and self._gathering and Standing.ASKED not in self._standing:
            self._gathering.rest(Standing.FREE not in self._standing, timeout)
        events = [self._ready[slot] for slot in sorted(self._ready)]
        self._ready = {}
        for event in events:
            self._standing[event.slot] = Standing.ASKED if event.ending is None else Standing.FREE
            if event.ending is not None:
                self._episodes[event.slot] = None
        return events

    def close(self) -> None:
        """Discard what runs, have the workers release what they hold, and end them."""
        if self._closed:
            return
        self._closed = True
        try:
            end(self._ray, self._workers)
        finally:
            leave(self._ray)
        self._workers, self._episodes, self._ready = [], [None] * self.slots, {}
        self._gathering.clear()
        self._standing = [Standing.CLOSED] * self.slots

    # Inside: workers start, answer and die.

    def _started(self) -> Facts:
        """What the workers have opened, once all have. They must agree."""
        found: list[Facts] = []
        for worker in self._workers:
            left = max(worker.deadline - time.monotonic(), 0.0)
            if not self._ray.wait([worker.reply], timeout=left)[0]:
                raise Broken(
                    f"{worker.where} has not started within {START_SECONDS:g} s; expected a free CPU of the cluster "
                    "for each worker, and an environment that opens in that time"
                )
            try:
                worker.take()
            except self._ray.exceptions.RayError as error:
                raise Broken(
                    f"{worker.where} did not start ({said(error)}); expected the same versions of Python, Ray and "
                    "palaestra on every machine of the cluster"
                ) from error
            assert worker.facts is not None
            found.append(worker.facts)
        for facts in found:
            if replace(facts, host="") != replace(found[0], host=""):
                raise UsageError(f"workers have opened different environments: {found[0]} and {facts}")
        return found[0]

    def _hear(self, until: float | None) -> bool:
        """Wait for news of any worker and take them in; False where `until` came first."""
        for worker in self._workers:
            worker.ask()
        owed = {episode.worker for episode in self._episodes if episode is not None and episode.worker is not None}
        ends = [worker.deadline for worker in owed] + ([] if until is None else [until])
        by_reply = {worker.reply: worker for worker in self._workers}
        if not by_reply:
            return False
        replies = list(by_reply)
        done, _ = self._ray.wait(replies, timeout=max(min(ends) - time.monotonic(), 0.0) if ends else None)
        if done:
            done, _ = self._ray.wait(replies, num_returns=len(replies), timeout=0)
        for reply in done:
            self._take(by_reply[reply])
        late = [worker for worker in owed if worker.reply not in done and worker.deadline < time.monotonic()]
        for worker in late:
            if worker in self._workers and worker.reply is not None:
                self._lose(worker, "it has not answered in time")
        return bool(done or late)

    def _take(self, worker: Remote) -> None:
        """Take in what a worker has reported."""
        try:
            events, errors = worker.take()
        except self._ray.exceptions.RayError as error:
            self._lose(worker, said(error))
            return
        except PalaestraError as error:  # A replacement that cannot open the environment.
            self._lose(worker, str(error))
            return
        self._errors += errors
        for ticket, event in events:
            episode = self._episodes[event.slot]
            if episode is not None and episode.ticket == ticket:
                self._ready[event.slot] = event
                episode.messages += event.messages

    def _lose(self, worker: Remote, why: str) -> None:
        """A worker has died: its episodes are BROKEN, and another takes its place; one that never started has none."""
        log.warning("%s: %s is gone: %s", self.name, worker.where, why)
        worker.kill()
        at = self._workers.index(worker)
        self._workers[at : at + 1] = [Remote(self._ray, worker.number, self._opened_with)] if worker.facts else []
        for slot, episode in enumerate(self._episodes):
            if episode is None or episode.worker is not worker:
                continue
            self._gathering.leave(episode.table)
            episode.worker, episode.fault = None, f"{worker.where} is gone: {why}"
            # Events that came before its death are told first.
            if self._standing[slot] is Standing.BUSY and slot not in self._ready:
                self._ready[slot] = _broken(slot, episode)

    def _freest(self) -> Remote:
        """The worker that has the fewest episodes; one that is still starting only where no other is there."""
        counts = dict.fromkeys(self._workers, 0)
        for episode in self._episodes:
            if episode is not None and episode.worker is not None:
                counts[episode.worker] += 1
        found = min(counts, key=lambda worker: (worker.facts is None, counts[worker]))
        if found.facts is None:
            found.deadline = max(found.deadline, time.monotonic() + START_SECONDS)
        return found

    # Inside: slots.

    def _flush(self) -> None:
        for worker in self._workers:
            worker.flush()

    def _outstanding(self) -> int:
        """Events that can come before somebody acts."""
        return sum(
            episode is not None
            and self._standing[slot] is Standing.BUSY
            and slot not in self._ready
            and episode.worker is not None
            and episode.worker.busy
            for slot, episode in enumerate(self._episodes)
        )

    def _spoken(self, slot: int, text: str) -> Remote | None:
        """The worker that plays a slot, to be told what its agent has said; None where it has died, which is news."""
        episode = self._episodes[slot]
        assert episode is not None
        self._standing[slot] = Standing.BUSY
        if text:
            episode.messages.append({"role": "assistant", "content": text})
            episode.turns += 1
        if episode.worker is None:
            self._ready[slot] = _broken(slot, episode)
        return episode.worker

    def _discard(self, slot: int) -> None:
        episode, self._episodes[slot] = self._episodes[slot], None
        self._ready.pop(slot, None)
        if episode is None:
            return
        if episode.worker is not None:
            episode.worker.orders.append(Discard(slot))
        if len(episode.table.slots) == 1:
            self._gathering.leave(episode.table)
        episode.table.slots.pop(episode.start.seat, None)
        episode.table.starts.pop(episode.start.seat, None)


def _broken(slot: int, episode: _Episode) -> Event:
    """The end of an episode whose worker has died, with what was heard of it."""
    asked = next((str(one["content"]) for one in episode.messages if one["role"] == "user"), "")
    seat = episode.start.seat
    attempt = Attempt(Task(asked), episode.start.own(episode.messages), None, (), episode.turns, seat=seat)
    return Event(slot, episode.start, ending=Ending.BROKEN, attempt=attempt, fault=episode.fault)
