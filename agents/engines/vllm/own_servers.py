"""vLLM servers that are started for one purpose, watched, and ended with it: those of a run, or of `serve vllm`.

Left out: the settings of a server and its process (`launch`), and requests to it (`replica`).
"""

import fcntl
import logging
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from palaestra.agents.engines.vllm.launch import Launch, Server
from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.engines")

START_SECONDS = 900.0
"""Seconds until a started server must answer; large models need minutes."""
_PREFIX = "palaestra-vllm-"
_CHECK_SECONDS = 1.0
_HUNG_CHECKS = 12
"""Number of failed health checks in a row after which a server counts as hung. Each takes up to five seconds."""
_RESTARTS = 5
"""Number of ends of one server in a row, each within a minute of its start, after which it is given up."""
_EARLY_SECONDS = 60.0


class OwnServers:
    """Servers with folders of their own. They end with `stop`, and with this process at the latest."""

    def __init__(self, launches: Sequence[Launch], ports: Sequence[int] = (), start_seconds: float = START_SECONDS):
        """Prepare one server for each launch; `ports` are 0 or missing for free ones."""
        self._start_seconds = start_seconds
        root, lock = _locked_folder()
        ports = ports or [0] * len(launches)
        self.servers = [
            Server(launch, port, root / str(number))
            for number, (launch, port) in enumerate(zip(launches, ports, strict=True))
        ]
        self._watch = Watch(self.servers, start_seconds)
        self.stop = weakref.finalize(self, _stop, self._watch, root, lock)
        """End all servers and remove their folders."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the addresses of the servers."""
        return tuple(server.url for server in self.servers)

    def start(self) -> None:
        """Start the servers and wait until all of them answer. If one does not, end all of them."""
        try:
            for server in self.servers:
                server.start()
            for server in self.servers:
                server.wait(self._start_seconds)
        except BaseException:  # An interrupt too: no server outlives a start that failed.
            self.stop()
            raise

    def watch(self) -> None:
        """Start each server again that ends or hangs, until `stop`. Raise `Broken` if one ends again and again."""
        self._watch.run()

    def watch_in_background(self) -> None:
        """Do as `watch` does, in a thread."""
        threading.Thread(target=_watch_quietly, args=(self._watch,), name="palaestra-vllm-watch", daemon=True).start()

    def hold(self) -> None:
        """Start no server again until `let_start`: its memory is used by others. One that hangs is ended."""
        self._watch.may_start.clear()

    def let_start(self) -> None:
        """Allow servers to be started again."""
        self._watch.may_start.set()


class Watch:
    """Starts each server again that ends or hangs."""

    def __init__(self, servers: Sequence[Server], start_seconds: float = START_SECONDS) -> None:
        self.servers, self._start_seconds = servers, start_seconds
        self.ended, self.may_start = threading.Event(), threading.Event()
        self.may_start.set()
        self._lock = threading.Lock()
        """Held while a server is ended and started, so that none is started after `stop`."""
        self._silent, self._early = dict.fromkeys(servers, 0), dict.fromkeys(servers, 0)
        self._up_since = dict.fromkeys(servers, time.monotonic())

    def run(self) -> None:
        """Watch until `stop`; see `OwnServers.watch`."""
        while not self.ended.wait(_CHECK_SECONDS):
            for server in self.servers:
                self._silent[server] = 0 if server.healthy() else self._silent[server] + 1
                if not server.runs or self._silent[server] >= _HUNG_CHECKS:
                    self._start_again(server)

    def stop(self) -> None:
        """End all servers. None is started again."""
        self.ended.set()
        with self._lock:
            for server in self.servers:
                server.stop()

    def _start_again(self, server: Server) -> None:
        """End a server if it still runs, and start it again if that is allowed now."""
        why = "does not answer" if server.runs else "ended"
        with self._lock:
            if self.ended.is_set():
                return
            server.stop()
            if not self.may_start.is_set():
                return
            log.warning("%s %s; its last words:\n%s\n%s is started again", server.url, why, server.tail(), server.url)
            early = time.monotonic() - self._up_since[server] < _EARLY_SECONDS
            self._early[server] = self._early[server] + 1 if early else 0
            if self._early[server] >= _RESTARTS:
                raise Broken(f"{server.url} died {_RESTARTS} times within {_EARLY_SECONDS:g} s of its start")
            server.start()
        try:
            server.wait(self._start_seconds)
            log.warning("%s is back: %s", server.url, server.restore())
        except (Broken, OSError, ValueError) as error:  # If it has ended, it counts as one that ended early.
            log.warning("%s did not start: %s", server.url, error)
        self._silent[server], self._up_since[server] = 0, time.monotonic()


def _watch_quietly(watch: Watch) -> None:
    """Watch, and report why watching ends: the engine then reports that no server answers."""
    try:
        watch.run()
    except Exception as error:  # A thread has no caller to raise to.
        if not watch.ended.is_set():
            log.warning("vLLM's servers are not started again: %s", error)


def _locked_folder() -> tuple[Path, IO[str]]:
    """Create a folder, and return it and its lock file, locked. Remove those that killed processes have left."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/lock"):
        with suppress(OSError), lock.open(encoding="utf-8") as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)  # An OSError if its process is alive.
            shutil.rmtree(lock.parent, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix=_PREFIX))
    unlocked = root / "lock.new"
    lock_file = unlocked.open("w", encoding="utf-8")
    with suppress(OSError):  # A file system without locks: then the folder is never removed by others.
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        unlocked.rename(root / "lock")
    return root, lock_file


def _stop(watch: Watch, root: Path, lock: IO[str]) -> None:
    watch.stop()
    shutil.rmtree(root, ignore_errors=True)
    lock.close()


def python_of(name: str, default: Path) -> Path:
    """Return the Python program named `name`, or the one of the environment in the folder `default` if `name` is "".

    Raise `UsageError` if there is none.
    """
    program = shutil.which(name) if name else str(default / "bin" / "python")
    if program is None or not Path(program).is_file():
        where = f"--engine.python is {name!r}, which is no program" if name else f"{default} holds no environment"
        raise UsageError(
            f"there is no vLLM to start: {where}; 'palaestra serve vllm MODEL' makes an environment, once, and serves"
        )
    return Path(program)
