"""Connection to Ray: the first use connects, and the last one disconnects. A `Remote` is the proxy of one actor.

A cluster that this process started ends with it. Left out: the actor's class (`ray_worker`), and the arena (`ray`).
"""

import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.envs.arena.ray_worker import News, Worker, WorkerCommand, WorkerInfo
from palaestra.episode import Event
from palaestra.errors import MissingExtra, PalaestraError, UsageError

START_SECONDS = 120.0
"""Seconds that a worker may take to start and to open its environment."""
ANSWER_SECONDS = 60.0
"""Seconds that a worker may be silent after the requested wait, before it is treated as dead."""
_CLOSE_SECONDS = 30.0
"""Seconds that workers have to release what their environments hold, before they are killed."""
_POLL_SECONDS = 10.0
"""Seconds that a call for news waits at the worker."""
_CONNECT_SECONDS = 5.0
_STORE_BYTES = 80 * 2**20  # Ray's minimum is 75 MiB; events do not use the store.

_lock = threading.Lock()
_users = 0
_ours = False
"""True if Ray was initialized here, and so is shut down here."""


def join(address: str) -> Any:
    """Connect to the cluster at an address (if it is "", to a new one on this computer), and return the module
    `ray`."""
    global _users, _ours
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray", "an arena with workers") from error
    with _lock:
        if not ray.is_initialized():
            _require_reachable(address)
            _initialize(ray, address)
            _ours = True
        _users += 1
    return ray


def leave(ray: Any) -> None:
    """End one use of Ray; after the last one, shut Ray down if `join` initialized it."""
    global _users, _ours
    with _lock:
        _users -= 1
        if _ours and not _users:
            _ours = False
            ray.shutdown()


def _initialize(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without it Ray 2.60 warns that a later version will not touch CUDA_VISIBLE_DEVICES of workers without a GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    local = {} if address else {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    main = threading.current_thread() is threading.main_thread()
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **local)
    except Exception as error:
        raise UsageError(f"Ray at {address or 'this machine'} cannot be joined: {error}") from error
    finally:
        if main:  # Ray replaces the handler, and a trainer saves a checkpoint in it.
            signal.signal(signal.SIGTERM, terminate)


def _require_reachable(address: str) -> None:
    """Raise UsageError if the host does not answer: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at {address!r} ({error}); expected the address that `ray start --head` has "
            "printed, or 'auto' on a machine of the cluster"
        ) from error


class Remote:
    """Proxy of an actor. It sends commands in batches, and always keeps one call for events outstanding."""

    def __init__(self, ray: Any, number: int, opened_with: tuple[str, int, Mapping[str, Any]]) -> None:
        self._ray = ray
        self.number = number
        self.facts: WorkerInfo | None = None
        """Facts of the worker; None until it is ready."""
        self.orders: list[WorkerCommand] = []
        self.deadline = time.monotonic() + START_SECONDS
        self._sent, self._idle = 0, True
        kind = ray.remote(concurrency_groups={"orders": 1, "news": 1})(Worker)
        self._actor = kind.options(scheduling_strategy="SPREAD", max_restarts=0).remote()
        self._do = self._actor.do.options(concurrency_group="orders", num_returns=0)
        self._recv = self._actor.recv.options(concurrency_group="news")
        self.reply: Any = self._actor.open.remote(*opened_with, [os.path.abspath(folder) for folder in sys.path])

    @property
    def where(self) -> str:
        """Name of the worker for messages, with its host."""
        return f"rollout worker {self.number}" + (f" on {self.facts.host}" if self.facts else "")

    @property
    def busy(self) -> bool:
        """True if the worker may report an event before it gets another command."""
        return bool(self.orders) or not self._idle

    def flush(self) -> None:
        """Send the collected commands, without waiting for a result."""
        if self.orders:
            self._sent, self._idle = self._sent + 1, False
            self._do.remote(self._sent, self.orders)
            self.orders = []

    def ask(self) -> None:
        """Start a call that returns the worker's next events and errors, if none is outstanding."""
        if self.reply is None:
            self.reply = self._recv.remote(_POLL_SECONDS)
            self.deadline = time.monotonic() + _POLL_SECONDS + ANSWER_SECONDS

    def take(self) -> tuple[list[tuple[int, Event]], Sequence[PalaestraError]]:
        """Return the events, with their tickets, and the errors of the reply; raise if the actor has died."""
        reply, self.reply = self.reply, None
        report: WorkerInfo | PalaestraError | News = self._ray.get(reply, timeout=ANSWER_SECONDS)
        if isinstance(report, PalaestraError):
            raise type(report)(f"{self.where}: {report}")
        if isinstance(report, WorkerInfo):
            self.facts = report
            return [], ()
        self._idle = report.idle and report.done == self._sent
        return pickle.loads(report.events), report.errors

    def kill(self) -> None:
        """Kill the actor at once."""
        self._ray.kill(self._actor)

    def closing(self) -> Any:
        """Tell the actor to release everything; the returned reference is ready when it has done so."""
        return self._actor.close.options(concurrency_group="orders").remote()


def end(ray: Any, workers: Sequence[Remote]) -> None:
    """Let the workers release their resources, for at most _CLOSE_SECONDS; then kill them."""
    if ray.is_initialized():
        ready = [worker.closing() for worker in workers if worker.facts is not None]
        if ready:
            ray.wait(ready, num_returns=len(ready), timeout=_CLOSE_SECONDS)
        for worker in workers:
            worker.kill()


def error_text(error: BaseException) -> str:
    """Return the informative part of Ray's error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if 'Traceback' in str(error) else lines[0] if lines else ''}"
