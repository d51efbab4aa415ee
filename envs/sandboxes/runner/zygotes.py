"""The supervisor's record of a zygote: its process, orders that it has not taken yet, and the cells forked from it."""

import contextlib
import os
import signal
import socket
import sys
from collections import deque

from . import zygote as child
from .cells import Cell, CellMessage, Host
from .cgroups import Cgroup

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Zygote:
    """A zygote's process and socket, and the cells that were forked from it."""

    def __init__(self, host: Host, settings: CellMessage) -> None:
        self._host = host
        self.name: str = settings["preload"]
        self.ready = False
        self.failed = ""

        self.cells: dict[int, Cell] = {}
        self._orders: deque[tuple[CellMessage, list[int]]] = deque()
        self.channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = os.path.dirname(os.path.abspath(__file__))
        # Not -I: it would not listen to the hash seed. Nothing else is in this environment.
        words = [sys.executable, "-s", "-S", "-P", "-B", script, "zygote"]
        environment = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8", **dict.fromkeys(_THREADS, "1")}
        environment["PYTHONINTMAXSTRDIGITS"] = "0"  # a program may print an integer of any length
        with open(os.devnull, "r+b", buffering=0) as null:
            moves = [(os.POSIX_SPAWN_DUP2, null.fileno(), 0), (os.POSIX_SPAWN_DUP2, null.fileno(), 1)]
            moves.append((os.POSIX_SPAWN_DUP2, far.fileno(), child.CHANNEL))
            self.pid = os.posix_spawn(sys.executable, words, environment, file_actions=moves)
        far.close()
        child.send(self.channel, settings)
        self.channel.setblocking(False)
        host.watch(self.channel.fileno(), self._hear)

    def fork(self, cell: Cell, group: Cgroup | None) -> None:
        """Order the zygote to fork a cell. The order waits while the zygote's socket is full."""
        self.cells[cell.number] = cell
        self._orders.append(cell.ordered(group))
        self._send_orders()

    def _send_orders(self) -> None:
        while self._orders and not self.failed:
            order, descriptors = self._orders[0]
            try:
                child.send(self.channel, order, *descriptors)
            except BlockingIOError:
                return  # it will answer the earlier ones, and then there is room
            except OSError:
                pass  # it is gone, which its socket tells as well
            self._orders.popleft()
            for descriptor in descriptors:
                os.close(descriptor)

    def _hear(self) -> None:
        try:
            message, descriptors = child.receive(self.channel)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = None, []
        if message is None:
            self.end("its process is gone")
        elif "ready" in message:
            self.ready = True
            self._host.wake_all()
        elif "failed" in message:
            self.end(message["failed"])
        elif "forked" in message:
            self.cells[message["forked"]].identify(descriptors[0])
        elif "died" in message:
            self.cells.pop(message["died"]).ended(message)
        elif "fork_failed" in message:
            self.cells.pop(message["fork_failed"]).ended(child.exit_message(0), message["text"])
        self._send_orders()

    def end(self, reason: str) -> None:
        """End the zygote, if it still runs, and its cells."""
        if self.failed:
            return
        self.failed = reason
        self._host.unwatch(self.channel.fileno())
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)  # which ends all that it forked before it ends itself
        for cell in [*self.cells.values()]:
            cell.kill()
            cell.ended(child.exit_message(signal.SIGKILL), f"the {self.name} zygote failed: {reason}")
        self.cells.clear()
        while self._orders:
            for descriptor in self._orders.popleft()[1]:
                os.close(descriptor)
        self._host.wake_all()
