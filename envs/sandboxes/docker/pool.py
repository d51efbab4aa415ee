"""Containers kept warm, and when one is used again.

A stateful session gets a container that nobody has used, and nobody gets it afterwards. One-shot runs share: a
container serves many of them, one after another, until it has served `runs` of them or lived for `seconds`, or until
anything out of the ordinary happens in it. What is thrown away is replaced in the background.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from palaestra.envs.sandboxes.docker.containers import Container
from palaestra.envs.sandboxes.limits import Limits
from palaestra.errors import Broken, PalaestraError, UsageError

LOOK_SECONDS = 20.0
"""How often the keeper looks for containers that have lived long enough."""
CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Policy:
    """How many containers there are, and how long each is used."""

    warm: int = 2
    """Unused ones held ready."""
    most: int = 64
    """Alive at once; whoever wants one more waits."""
    runs: int = 200
    """One-shot runs in one container."""
    seconds: float = 600.0
    """How long one container serves one-shot runs."""
    wait_seconds: float = 120.0
    """How long a caller waits when all are taken."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, whole = getattr(self, field.name), field.type is int
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise UsageError(f"{field.name} is {value!r}; expected a {'whole ' * whole}number")
            if field.name != "warm" and not value > 0:
                raise UsageError(f"{field.name} is {value!r}; expected a positive number")
        if not 0 <= self.warm <= self.most:
            raise UsageError(f"warm is {self.warm!r}; expected 0 to {self.most} (most)")

    @classmethod
    def of(cls, given: "Policy | Mapping[str, Any] | None") -> "Policy":
        """A policy as a caller gives it; the fields that a mapping leaves out keep their defaults."""
        if given is None or isinstance(given, Policy):
            return given or cls()
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise UsageError(f"policy is {given!r}; expected a Policy, or a mapping with {', '.join(known)}")
        for name in given:
            if name not in known:
                close = get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
                raise UsageError(f"policy has no {name!r}; did you mean {close!r}? known: {', '.join(known)}")
        return cls(**given)


class Pool:
    """Takers, and one thread that makes and ends containers behind their backs."""

    def __init__(
        self, launch: Callable[[Limits], Container], end: Callable[[Container], None], limits: Limits, policy: Policy
    ) -> None:
        self.policy, self._limits = policy, limits
        self._launch, self._end = launch, end
        self._change = threading.Condition()
        self._fresh: deque[Container] = deque()
        self._used: list[Container] = []
        self._taken: set[Container] = set()
        self._making = 0
        self._closed = False
        self._ends: queue.SimpleQueue[Container | None] = queue.SimpleQueue()
        """What the keeper is to end; None only wakes it."""
        self._kept = True
        self._keeper = threading.Thread(target=self._keep, name="palaestra-docker-pool", daemon=True)
        self._keeper.start()

    def add(self, container: Container) -> None:
        """One that was launched elsewhere, and not used."""
        with self._change:
            self._fresh.append(container)
        self._ends.put(None)

    def take(self, *, fresh: bool, limits: Limits | None = None) -> Container:
        """A container of the caller's own until it is given back or thrown away.

        `fresh`: one that nobody has used. `limits`: one that is made for this caller, with limits of its own.
        """
        deadline = time.monotonic() + self.policy.wait_seconds
        while True:
            if limits is None and (found := self.take_ready(fresh=fresh)) is not None:
                return found
            with self._change:
                self._refuse_when_closed()
                if limits is None and (self._fresh or (self._used and not fresh)):
                    continue  # It has come to be ready meanwhile.
                full = self._alive() >= self.policy.most
                if not full or self._used:
                    if full:  # one that only waits for one-shot runs makes room
                        self._ends.put(self._used.pop())
                    self._making += 1
                    break
                if not self._change.wait(deadline - time.monotonic()):
                    raise Broken(f"all {self.policy.most} containers were taken for {self.policy.wait_seconds} s")
        return self._make(limits or self._limits)

    def take_ready(self, *, fresh: bool) -> Container | None:
        """One for which nothing has to be waited, else None."""
        while True:
            with self._change:
                self._refuse_when_closed()
                found = self._pick(fresh)
            if found is None:
                return None
            self._ends.put(None)
            if found.is_quiet():
                return found
            self.discard(found)

    def give_back(self, container: Container) -> None:
        """After an ordinary one-shot run: for the next one."""
        container.runs += 1
        with self._change:
            if not self._closed and not self._is_spent(container):
                self._taken.discard(container)
                self._used.append(container)
                self._change.notify()
                return
        self.discard(container)

    def discard(self, container: Container) -> None:
        """End a container: the stream at once, which kills what runs in it, the rest in the background."""
        container.socket.let_go()
        with self._change:
            if container not in self._taken:  # The pool was closed, and ended it.
                return
            self._taken.remove(container)
            self._change.notify()
            if self._kept:
                self._ends.put(container)
                return
        self._finish(container)  # One that was still being made when the pool closed.

    def close(self) -> None:
        """End them all; returns when they are gone. May come twice."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            left = self._emptied()
            self._change.notify_all()
            for container in left:  # first all the streams: then they die side by side
                container.socket.let_go()
            for container in left:
                self._ends.put(container)
            self._ends.put(None)
        self._keeper.join(CLOSE_SECONDS)

    def forget(self) -> None:
        """In a forked child: everything is the parent's, whose streams stay open."""
        self._change = threading.Condition()
        for container in self._emptied():
            container.socket.close()
        self._closed, self._kept = True, False

    def _emptied(self) -> list[Container]:
        left = [*self._fresh, *self._used, *self._taken]
        for kept in (self._fresh, self._used, self._taken):
            kept.clear()
        return left

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise UsageError("this sandbox is closed")

    def _alive(self) -> int:
        return len(self._fresh) + len(self._used) + len(self._taken) + self._making

    def _is_spent(self, container: Container) -> bool:
        age = time.monotonic() - container.born
        return container.runs >= self.policy.runs or age > self.policy.seconds

    def _pick(self, fresh: bool) -> Container | None:
        """With the lock held: one that is ready; a one-shot run takes a used one first."""
        while self._used and not fresh:
            found = self._used.pop()
            if not self._is_spent(found):
                self._taken.add(found)
                return found
            self._ends.put(found)
        if self._fresh:
            found = self._fresh.popleft()
            self._taken.add(found)
            return found
        return None

    def _make(self, limits: Limits) -> Container:
        """Launch one for the caller, who has already been counted."""
        made = None
        try:
            made = self._launch(limits)
        finally:
            with self._change:
                self._making -= 1
                if made is not None:
                    self._taken.add(made)
                closed = self._closed
                self._change.notify()
        if closed:
            self.discard(made)
            raise UsageError("this sandbox was closed meanwhile")
        return made

    def _keep(self) -> None:
        while True:
            try:
                container = self._ends.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                container = None
            if container is not None:
                self._finish(container)
                continue  # ends first: they are quick, and they make room
            with self._change:
                if not self._ends.empty():
                    continue
                if self._closed:
                    self._kept = False
                    return
                spent = [one for one in self._used if self._is_spent(one)]
                self._used = [one for one in self._used if one not in spent]
            for one in spent:
                self._ends.put(one)
            self._refill()

    def _finish(self, container: Container) -> None:
        container.socket.end()
        with contextlib.suppress(Broken):  # an engine that fails; the container has lost its stream, and dies
            self._end(container)

    def _refill(self) -> None:
        """Make one container if one is wanted, and come again for the next."""
        with self._change:
            if self._closed or len(self._fresh) >= self.policy.warm or self._alive() >= self.policy.most:
                return
            self._making += 1
        with contextlib.suppress(PalaestraError):  # whoever takes next makes one itself, and is told why it fails
            made = self._make(self._limits)
            with self._change:
                if made in self._taken:
                    self._taken.remove(made)
                    self._fresh.append(made)
                    self._change.notify()
            self._ends.put(None)
