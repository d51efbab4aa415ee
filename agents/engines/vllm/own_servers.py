"""vLLM servers that are started for one purpose, watched, and ended with it: those of a run, or of `serve vllm`.

Left out: the settings of a server and its process (`launch`), and requests to it (`replica`).
"""

import logging
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from palaestra.agents.engines.vllm.launch import Launch, Server
from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.engines")

START_SECONDS = 900.0
"""Seconds until a started server must answer; large models need minutes."""
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
        root = Path(tempfile.mkdtemp(prefix="palaestra-vllm-"))
        ports = ports or [0] * len(launches)
        self.servers = [
            Server(launch, port, root / str(number))
            for number, (launch, port) in enumerate(zip(launches, ports, strict=True))
        ]
        self._ended = threading.Event()
        self.stop = weakref.finalize(self, _stop, self.servers, self._ended, root)
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

    def watch_in_background(self) -> None:
        """Start a thread that starts each server again that ends or hangs, until `stop`."""
        arguments = (self.servers, self._start_seconds, self._ended)
        threading.Thread(target=_watch_quietly, args=arguments, name="palaestra-vllm-watch", daemon=True).start()


def watch(servers: Sequence[Server], start_seconds: float, ended: threading.Event) -> None:
    """Start each server again that ends or hangs, until `ended`. Raise `Broken` if one ends again and again."""
    silent, early = dict.fromkeys(servers, 0), dict.fromkeys(servers, 0)
    started_at = dict.fromkeys(servers, time.monotonic())
    while not ended.wait(_CHECK_SECONDS):
        for server in servers:
            silent[server] = 0 if server.healthy() else silent[server] + 1
            if (server.runs and silent[server] < _HUNG_CHECKS) or ended.is_set():
                continue
            why = "does not answer" if server.runs else f"ended; its last words:\n{server.tail()}"
            log.warning("%s %s\n%s is started again", server.url, why, server.url)
            early[server] = early[server] + 1 if time.monotonic() - started_at[server] < _EARLY_SECONDS else 0
            if early[server] >= _RESTARTS:
                raise Broken(f"{server.url} died {_RESTARTS} times within {_EARLY_SECONDS:g} s of its start")
            server.stop()
            server.start()
            server.wait(start_seconds)
            silent[server], started_at[server] = 0, time.monotonic()
            log.warning("%s is back: %s", server.url, server.restore())


def _watch_quietly(servers: Sequence[Server], start_seconds: float, ended: threading.Event) -> None:
    """Watch, and report why watching ends: the engine then reports that no server answers."""
    try:
        watch(servers, start_seconds, ended)
    except Exception as error:  # A thread has no caller to raise to.
        log.warning("vLLM's servers are not started again: %s", error)


def _stop(servers: Sequence[Server], ended: threading.Event, root: Path) -> None:
    ended.set()
    for server in servers:
        server.stop()
    shutil.rmtree(root, ignore_errors=True)


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
