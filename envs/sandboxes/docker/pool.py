"""A pool of warm containers, and the rules for using one again.

A stateful session gets an unused container, which is thrown away afterwards. One-shot runs share: a
container serves many of them, one after another, until it has served `runs` of them or lived for `seconds`, or until
anything unusual happens in it. Containers that are thrown away are replaced in the background.
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
"""Seconds between checks for containers that are too old."""
CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Policy:
    """How many containers there are, and how long each is used."""

    warm: int = 2
    """Number of unused containers to keep ready."""
    most: int = 64
    """Maximum number of live containers; further callers wait."""
    runs: int = 200
    """Maximum number of one-shot runs in one container."""
    seconds: float = 600.0
    """Seconds for which one container serves one-shot runs."""
    wait_seconds: float = 120.0
    """Seconds that a caller waits when all containers are taken."""

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
        """Return the policy of a caller; fields that a mapping leaves out keep their defaults."""
        if given is None or isinstance(given, Policy):
            return given or cls()
        names = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise UsageError(f"policy is {given!r}; expected a Policy, or a mapping with {', '.join(names)}")
        for name in given:
            if name not in names:
                close = get_close_matches(str(name), names, n=1, cutoff=0.0)[0]
                raise UsageError(f"policy has no {name!r}; did you mean {close!r}? known: {', '.join(names)}")
        return cls(**given)


class ContainerPool:
    """A pool of containers, with one thread that launches and ends them in the background."""

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
        """Containers that the keeper thread must end; None only wakes it."""
        self._kept = True
        self._keeper = threading.Thread(target=self._keep, name="palaestra-docker-pool", daemon=True)
        self._keeper.start()

    def add(self, container: Container) -> None:
        """Add an unused container that was launched elsewhere."""
        with self._change:
            self._fresh.append(container)
        self._ends.put(None)

    def take(self, *, fresh: bool, limits: Limits | None = None) -> Container:
        """Return a container that only the caller uses until it gives it back or discards it.

        `fresh`: an unused one. `limits`: one that is launched for this caller, with these limits.
        """
        deadline = time.monotonic() + self.policy.wait_seconds
        while True:
            if limits is None and (ready := self.take_ready(fresh=fresh)) is not None:
                return ready
            with self._change:
                self._refuse_when_closed()
                if limits is None and (self._fresh or (self._used and not fresh)):
                    continue  # One has become ready meanwhile.
                full = self._alive() >= self.policy.most
                if not full or self._used:
                    if full:  # end an idle one-shot container to make room
                        self._ends.put(self._used.pop())
                    self._making += 1
                    break
                if not self._change.wait(deadline - time.monotonic()):
                    raise Broken(f"all {self.policy.most} containers were taken for {self.policy.wait_seconds} s")
        return self._make(limits or self._limits)

    def take_ready(self, *, fresh: bool) -> Container | None:
        """Return a container without waiting, or None."""
        while True:
            with self._change:
                self._refuse_when_closed()
                container = self._pick(fresh)
            if container is None:
                return None
            self._ends.put(None)
            if container.is_quiet():
                return container
            self.discard(container)

    def give_back(self, container: Container) -> None:
        """Return a container to the pool after a one-shot run."""
        container.runs += 1
        with self._change:
            if not self._closed and not self._is_spent(container):
                self._taken.discard(container)
                self._used.append(container)
                self._change.notify()
                return
        self.discard(container)

    def discard(self, container: Container) -> None:
        """End a container. Its stream ends at once, which kills its processes; the rest happens in the background."""
        container.socket.let_go()
        with self._change:
            if container not in self._taken:  # The pool was closed and has ended it.
                return
            self._taken.remove(container)
            self._change.notify()
            if self._kept:
                self._ends.put(container)
                return
        self._finish(container)  # It was still being launched when the pool closed.

    def close(self) -> None:
        """End all containers, and return when they are gone. It may be called twice."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            left = self._emptied()
            self._change.notify_all()
            for container in left:  # first all streams, so that they die in parallel
                container.socket.let_go()
            for container in left:
                self._ends.put(container)
            self._ends.put(None)
        self._keeper.join(CLOSE_SECONDS)

    def forget(self) -> None:
        """Drop everything in a forked child process. The streams of the parent stay open."""
        self._change = threading.Condition()
        for container in self._emptied():
            container.socket.close()
        self._closed, self._kept = True, False

    def _emptied(self) -> list[Container]:
        left = [*self._fresh, *self._used, *self._taken]
        for containers in (self._fresh, self._used, self._taken):
            containers.clear()
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
        """Return a container that is ready, or None. One-shot runs take a used one first. The lock must be held."""
        while self._used and not fresh:
            container = self._used.pop()
            if not self._is_spent(container):
                self._taken.add(container)
                return container
            self._ends.put(container)
        if self._fresh:
            container = self._fresh.popleft()
            self._taken.add(container)
            return container
        return None

    def _make(self, limits: Limits) -> Container:
        """Launch a container for the caller, who has already been counted."""
        container = None
        try:
            container = self._launch(limits)
        finally:
            with self._change:
                self._making -= 1
                if container is not None:
                    self._taken.add(container)
                closed = self._closed
                self._change.notify()
        if closed:
            self.discard(container)
            raise UsageError("this sandbox was closed meanwhile")
        return container

    def _keep(self) -> None:
        while True:
            try:
                container = self._ends.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                container = None
            if container is not None:
                self._finish(container)
                continue  # end containers first: that is quick and makes room
            with self._change:
                if not self._ends.empty():
                    continue
                if self._closed:
                    self._kept = False
                    return
                spent_containers = [used_container for used_container in self._used if self._is_spent(used_container)]
                self._used = [used_container for used_container in self._used if used_container not in spent_containers]
            for used_container in spent_containers:
                self._ends.put(used_container)
            self._refill()

    def _finish(self, container: Container) -> None:
        container.socket.end()
        with contextlib.suppress(Broken):  # an engine that fails; the container has lost its stream, and dies
            self._end(container)

    def _refill(self) -> None:
        """Launch one container if one is missing, then wake the keeper thread for the next."""
        with self._change:
            if self._closed or len(self._fresh) >= self.policy.warm or self._alive() >= self.policy.most:
                return
            self._making += 1
        with contextlib.suppress(PalaestraError):  # the next caller launches one itself, and gets the error
            container = self._make(self._limits)
            with self._change:
                if container in self._taken:
                    self._taken.remove(container)
                    self._fresh.append(container)
                    self._change.notify()
            self._ends.put(None)
