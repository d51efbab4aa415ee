"""RayArena: an arena whose episodes are played by Ray actors, on this computer or on others.

Every worker is an actor that has an arena with as many slots as this one. An episode goes to the worker that has the
fewest; all seats of a game go to the same worker. An episode depends only on its Start, not on its worker. A worker
that has died or does not answer is replaced; its episodes end BROKEN. Commands are sent without waiting for a result;
that of `begin` is sent with the next `send` or `recv`. `recv` raises the error of an author's code or of a refused
start.

Left out: the actor (`ray_worker`), and the calls of Ray itself (`ray_cluster`).
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.envs.arena.ray_cluster import START_SECONDS, Remote, end, error_text, join, leave
from palaestra.envs.arena.ray_worker import WorkerCommand, WorkerInfo
from palaestra.envs.arena.tables import ArenaSlots, RunningGame, SlotState
from palaestra.episode import Attempt, Ending, Event, Message, Start, Task
from palaestra.errors import Broken, PalaestraError, UsageError
from palaestra.mixture import read_mixture

log = logging.getLogger("palaestra.envs")


@dataclass(slots=True)
class _Episode:
    """Episode that runs in a slot."""

    ticket: int
    start: Start
    table: RunningGame
    worker: Remote | None
    """Worker that plays it; None once that has died."""
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    fault: str = ""
    """Reason why it is BROKEN, until that is reported."""


class RayArena(ArenaSlots):
    """Arena with `slots` slots, played by `workers` actors."""

    def __init__(self, env_id: str, slots: int, workers: int, address: str = "", **options: Any) -> None:
        """`address` is that of a running Ray cluster, or "auto" for the one on this computer; "" starts a new one."""
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise UsageError(f"workers is {workers!r}; expected how many rollout workers to start, such as 4")
        self._ray = join(address)
        self._opened_with = env_id, slots, options
        self._workers: list[Remote] = []
        try:
            self._workers = [Remote(self._ray, number, self._opened_with) for number in range(workers)]
            facts = self._started()
            ArenaSlots.__init__(self, facts.name, facts.seats, slots, facts.hint, options.get("timeout", 60.0))
        except BaseException:  # After any error or interrupt: started workers must not outlive a failed start.
            end(self._ray, self._workers)
            leave(self._ray)
            raise
        self.task_count, self.ordered = facts.task_count, facts.ordered
        self.mixture, self.task_counts = read_mixture(env_id), facts.task_counts
        self._episodes: list[_Episode | None] = [None] * slots
        self._tickets = 0
        self._closed = False

    def begin(self, slot: int, start: Start) -> None:
        """Open an episode; its worker gets the command at the next `send` or `recv`.

        If the slot is in use, its episode is discarded.
        """
        self._require_slot(slot)
        self._require_seat(start.seat)
        if not self._workers:
            raise Broken(f"{self.name}: no rollout worker is left")
        self._discard(slot)
        table = self._table(slot, start)
        others = [episode for other in table.slots.values() if other != slot and (episode := self._episodes[other])]
        worker = others[0].worker if others else self._freest()
        assert worker is not None, "a table whose worker has died gathers nobody"
        self._tickets += 1
        self._episodes[slot] = _Episode(self._tickets, start, table, worker)
        self._standing[slot] = SlotState.BUSY
        worker.orders.append(WorkerCommand("begin", (slot, start), self._tickets))

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn, without waiting."""
        self._require_turns(actions)
        shares: dict[int, dict[int, str]] = {}
        for slot, text in actions.items():
            if (worker := self._spoken(slot, text)) is not None:
                shares.setdefault(worker.number, {})[slot] = text
        for worker in self._workers:
            if worker.number in shares:
                worker.orders.append(WorkerCommand("send", (shares[worker.number],)))
        self._flush()

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """End an episode from outside; `recv` returns the event."""
        self._require_finish(slot, ending)
        if (worker := self._spoken(slot, text)) is not None:
            worker.orders.append(WorkerCommand("finish", (slot, ending, text)))

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """Return at least `min_ready` events, or fewer if the timeout passes or the caller must act first.

        If `ordered`, return all outstanding events in slot order, or none if `timeout` (in seconds, None: no limit)
        passes.
        """
        self._flush()
        until = None if timeout is None else time.monotonic() + timeout
        looked = False
        while out := self._outstanding():
            missing = out if self.ordered else max(min_ready, 1) - len(self._ready)
            if self._errors or (looked and missing <= 0):
                break
            received = self._hear(until if missing > 0 else 0.0)
            looked = True
            if not received and until is not None and time.monotonic() >= until:
                if self.ordered and not self._errors and self._outstanding():
                    return []
                break
        events = self._report(out, timeout)
        for event in events:
            if event.ending is not None:
                self._episodes[event.slot] = None
        return events

    def close(self) -> None:
        """Discard running episodes, let the workers release their resources, and end the workers."""
        if self._closed:
            return
        self._closed = True
        try:
            end(self._ray, self._workers)
        finally:
            leave(self._ray)
        self._workers, self._episodes, self._ready = [], [None] * self.slots, {}
        self._gathering.clear()
        self._standing = [SlotState.CLOSED] * self.slots

    # Private methods: workers start, answer and end.

    def _started(self) -> WorkerInfo:
        """Wait until all workers have opened the environment, and return its properties. Raise UsageError if the
        workers report different ones."""
        all_facts: list[WorkerInfo] = []
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
                    f"{worker.where} did not start ({error_text(error)}); expected the same versions of Python, Ray "
                    "and palaestra on every machine of the cluster"
                ) from error
            assert worker.facts is not None
            all_facts.append(worker.facts)
        for facts in all_facts:
            if replace(facts, host="") != replace(all_facts[0], host=""):
                raise UsageError(f"workers have opened different environments: {all_facts[0]} and {facts}")
        return all_facts[0]

    def _hear(self, until: float | None) -> bool:
        """Wait for reports of any worker and store them; return False if the time `until` came first."""
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
        """Store what a worker has reported."""
        try:
            events, errors = worker.take()
        except self._ray.exceptions.RayError as error:
            self._lose(worker, error_text(error))
            return
        except PalaestraError as error:  # The replacement cannot open the environment.
            self._lose(worker, str(error))
            return
        self._errors += errors
        for ticket, event in events:
            episode = self._episodes[event.slot]
            if episode is not None and episode.ticket == ticket:
                self._ready[event.slot] = event
                episode.messages += event.messages

    def _lose(self, worker: Remote, why: str) -> None:
        """Handle the death of a worker: end its episodes BROKEN, and start another worker, unless the dead one never
        started."""
        log.warning("%s: %s is gone: %s", self.name, worker.where, why)
        worker.kill()
        at = self._workers.index(worker)
        self._workers[at : at + 1] = [Remote(self._ray, worker.number, self._opened_with)] if worker.facts else []
        for slot, episode in enumerate(self._episodes):
            if episode is None or episode.worker is not worker:
                continue
            self._gathering.leave(episode.table)
            episode.worker, episode.fault = None, f"{worker.where} is gone: {why}"
            # Events that came before its death are reported first.
            if self._standing[slot] is SlotState.BUSY and slot not in self._ready:
                self._ready[slot] = _broken(slot, episode)

    def _freest(self) -> Remote:
        """Return the worker with the fewest episodes; one that is still starting only if there is no other."""
        counts = dict.fromkeys(self._workers, 0)
        for episode in self._episodes:
            if episode is not None and episode.worker is not None:
                counts[episode.worker] += 1
        freest = min(counts, key=lambda worker: (worker.facts is None, counts[worker]))
        if freest.facts is None:
            freest.deadline = max(freest.deadline, time.monotonic() + START_SECONDS)
        return freest

    # Private methods: slots.

    def _flush(self) -> None:
        for worker in self._workers:
            worker.flush()

    def _outstanding(self) -> int:
        """Return the number of events that workers can still report before the caller acts."""
        return sum(
            episode is not None
            and self._standing[slot] is SlotState.BUSY
            and slot not in self._ready
            and episode.worker is not None
            and episode.worker.busy
            for slot, episode in enumerate(self._episodes)
        )

    def _spoken(self, slot: int, text: str) -> Remote | None:
        """Record a turn, and return the slot's worker. If that has died, add a BROKEN event and return None."""
        episode = self._episodes[slot]
        assert episode is not None
        self._standing[slot] = SlotState.BUSY
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
            episode.worker.orders.append(WorkerCommand("discard", (slot,)))
        if len(episode.table.slots) == 1:
            self._gathering.leave(episode.table)
        episode.table.slots.pop(episode.start.seat, None)
        episode.table.starts.pop(episode.start.seat, None)


def _broken(slot: int, episode: _Episode) -> Event:
    """Return the end of an episode whose worker has died, with the messages so far."""
    prompt = next((str(message["content"]) for message in episode.messages if message["role"] == "user"), "")
    seat = episode.start.seat
    attempt = Attempt(Task(prompt), episode.start.without_prefix(episode.messages), None, (), episode.turns, seat=seat)
    return Event(slot, episode.start, ending=Ending.BROKEN, attempt=attempt, fault=episode.fault)
