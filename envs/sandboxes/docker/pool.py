"""A pool of warm containers, and the rules for using a container again.

A session gets an unused container, which is discarded afterwards. One-shot runs share containers: a container serves
many of them, one after another, until it has served `MAX_RUNS`, is `MAX_AGE_SECONDS` old, or a run in it ends
unusually. Discarded containers are replaced in the background.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from palaestra.envs.sandboxes.docker.containers import Container
from palaestra.envs.sandboxes.limits import Limits
from palaestra.errors import Broken, PalaestraError, UsageError

MAX_RUNS = 200
"""Maximum number of one-shot runs in one container."""
MAX_AGE_SECONDS = 600.0
"""Seconds for which one container serves one-shot runs."""
WAIT_SECONDS = 120.0
"""Seconds that a caller waits when all containers are taken."""
CLOSE_SECONDS = 60.0


class ContainerPool:
    """A pool of containers, with one thread that launches and ends them in the background.

    `max_containers` is the maximum number of live containers, `warm` the number of unused ones to keep ready.
    """

    def __init__(
        self,
        launch: Callable[[Limits], Container],
        end: Callable[[Container], None],
        limits: Limits,
        *,
        max_containers: int,
        warm: int,
    ) -> None:
        self._max_containers, self._warm, self._limits = max_containers, warm, limits
        self._launch, self._end = launch, end
        self._change = threading.Condition()
        self._fresh: deque[Container] = deque()
        self._used: list[Container] = []
        self._taken: set[Container] = set()
        self._launching = 0
        self._closed = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Work for the keeper thread; None ends it."""
        self._keeper = threading.Thread(target=self._keep, name="palaestra-docker-pool", daemon=True)
        self._keeper.start()

    def add(self, container: Container) -> None:
        """Add an unused container that was launched elsewhere."""
        with self._change:
            self._fresh.append(container)
        self._work.put(self._refill)

    def take(self, *, fresh: bool, limits: Limits | None = None) -> Container:
        """Return a container for this caller alone, who must give it back or discard it. Wait if all are taken.

        `fresh` is True for an unused container. `limits` launches a new one with these limits; None takes one of the
        pool.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            if limits is None and (ready := self.take_ready(fresh=fresh)) is not None:
                return ready
            with self._change:
                self._refuse_when_closed()
                if limits is None and (self._fresh or (self._used and not fresh)):
                    continue  # One has become ready meanwhile.
                full = self._alive() >= self._max_containers
                if not full or self._used:
                    if full:  # end an idle one-shot container to make room
                        self._work.put(partial(self._finish, self._used.pop()))
                    self._launching += 1
                    break
                if not self._change.wait(deadline - time.monotonic()):
                    raise Broken(f"all {self._max_containers} containers were taken for {WAIT_SECONDS:g} s")
        return self._make(limits or self._limits)

    def take_ready(self, *, fresh: bool) -> Container | None:
        """Return a container that is ready, or None. This never waits."""
        while True:
            with self._change:
                self._refuse_when_closed()
                container = self._pick(fresh)
            if container is None:
                return None
            self._work.put(self._refill)
            if container.is_quiet():
                return container
            self.discard(container)

    def give_back(self, container: Container) -> None:
        """Return a container to the pool after a one-shot run; discard it if it has served long enough."""
        container.runs += 1
        with self._change:
            if not self._closed and not self._is_spent(container):
                self._taken.discard(container)
                self._used.append(container)
                self._change.notify()
                return
        self.discard(container)

    def discard(self, container: Container) -> None:
        """End a container. Its stream is closed at once, which kills its processes; it is removed in the background."""
        container.socket.let_go()
        with self._change:
            if container not in self._taken:  # The pool was closed and has ended it.
                return
            self._taken.remove(container)
            self._change.notify()
            if not self._closed:
                self._work.put(partial(self._finish, container))
                return
        self._finish(container)  # It was still being launched when the pool closed.

    def close(self) -> None:
        """End all containers, and return when they have ended. It may be called twice."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            containers = self._take_all()
            self._change.notify_all()
            for container in containers:  # first all streams, so that they die in parallel
                container.socket.let_go()
            for container in containers:
                self._work.put(partial(self._finish, container))
            self._work.put(None)
        self._keeper.join(CLOSE_SECONDS)

    def forget(self) -> None:
        """Forget all containers in a forked child process. The parent's streams stay open."""
        self._change = threading.Condition()
        for container in self._take_all():
            container.socket.close()
        self._closed = True

    def _take_all(self) -> list[Container]:
        """Remove all containers from the pool and return them."""
        containers = [*self._fresh, *self._used, *self._taken]
        for group in (self._fresh, self._used, self._taken):
            group.clear()
        return containers

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise UsageError("this sandbox is closed")

    def _alive(self) -> int:
        return len(self._fresh) + len(self._used) + len(self._taken) + self._launching

    def _is_spent(self, container: Container) -> bool:
        age = time.monotonic() - container.born
        return container.runs >= MAX_RUNS or age > MAX_AGE_SECONDS

    def _pick(self, fresh: bool) -> Container | None:
        """Return a container that is ready, or None. One-shot runs take a used one first. The lock must be held."""
        while self._used and not fresh:
            container = self._used.pop()
            if not self._is_spent(container):
                self._taken.add(container)
                return container
            self._work.put(partial(self._finish, container))
        if self._fresh:
            container = self._fresh.popleft()
            self._taken.add(container)
            return container
        return None

    def _make(self, limits: Limits) -> Container:
        """Launch a container for a caller; `_launching` must already include it."""
        container = None
        try:
            container = self._launch(limits)
        finally:
            with self._change:
                self._launching -= 1
                if container is not None:
                    self._taken.add(container)
                closed = self._closed
                self._change.notify()
        if closed:
            self.discard(container)
            raise UsageError("this sandbox was closed meanwhile")
        return container

    def _keep(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _finish(self, container: Container) -> None:
        container.socket.end()
        with contextlib.suppress(
            Broken
        ):  # the container engine failed; the container ends, because it has lost its stream
            self._end(container)

    def _refill(self) -> None:
        """Launch one unused container if fewer than `warm` are ready, then check again."""
        with self._change:
            if self._closed or len(self._fresh) >= self._warm or self._alive() >= self._max_containers:
                return
            self._launching += 1
        with contextlib.suppress(PalaestraError):  # the next caller launches one itself, and gets the error
            container = self._make(self._limits)
            with self._change:
                if container in self._taken:
                    self._taken.remove(container)
                    self._fresh.append(container)
                    self._change.notify()
            self._work.put(self._refill)
