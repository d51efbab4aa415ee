"""A stream of bytes to a runner and back, and the one over a socket. What the frames mean is not here (`framed`)."""

import asyncio
import contextlib
import socket
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from palaestra.envs.sandboxes.runner.wire import FrameError, Head, Reader, pack
from palaestra.errors import Broken, UsageError

SPARE_BYTES = 2**16
"""Of a reply's body, beside what the limits allow: the line that says how much is missing, names of files."""
CLOSE = pack({"op": "close"})
_RECEIVE_BYTES = 2**16


class Stream(ABC):
    """Frames to a runner and back: one request, one reply. A stream that was dropped is never used again."""

    grace: float = 75.0
    """Seconds for an answer beyond a run's own: a zygote that must first warm up, gigabytes to be freed first."""

    @abstractmethod
    async def exchange(self, frame: bytes, body_bytes: int, seconds: float, blocking: bool) -> tuple[Head, bytes]:
        """Send a frame and wait for the reply; `Broken` where none comes.

        Cancelling it, or a Ctrl-C, drops the stream, and so ends the run.
        """

    async def leave(self, blocking: bool) -> None:
        """End the session here, and wait until it has ended; whatever goes wrong then, dropping ends it as well."""
        with contextlib.suppress(Broken):
            await self.exchange(CLOSE, SPARE_BYTES, self.grace, blocking)

    @abstractmethod
    def drop(self) -> None:
        """Let go at once, from any thread; the runner ends the session. May come twice."""

    def beside(self) -> "Stream":
        """Another stream to the same runner, for a fork."""
        raise UsageError("this backend cannot fork a session; see Capabilities.forks")

    @abstractmethod
    def forget(self) -> None:
        """In a forked child: let go of the copy, which leaves the parent's session alone."""


class SocketStream(Stream):
    """A stream over a connected socket. `why` says what became of the runner; `another` connects a second one."""

    def __init__(
        self, near: socket.socket, why: Callable[[], str], another: Callable[[], Stream] | None = None
    ) -> None:
        self._socket, self._why, self._another = near, why, another
        self._patience = -1.0
        """Seconds that the kernel waits in one call before it gives up; -1: the socket does not block."""
        self._in_use = False
        self.dropped = False

    async def exchange(self, frame: bytes, body_bytes: int, seconds: float, blocking: bool) -> tuple[Head, bytes]:
        self._in_use = True
        reader = Reader(body_bytes)
        try:
            if blocking:
                return self._exchange_blocking(frame, reader, seconds)
            loop = asyncio.get_running_loop()
            self._socket.setblocking(False)
            self._patience = -1.0
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self._socket, frame)
                while (reply := reader.take()) is None:
                    _feed(reader, await loop.sock_recv(self._socket, _RECEIVE_BYTES))
            return reply
        except BaseException as error:
            raise self._lost(error, seconds) from None
        finally:
            self._in_use = False
            if self.dropped:
                self._socket.close()

    def _exchange_blocking(self, frame: bytes, reader: Reader, seconds: float) -> tuple[Head, bytes]:
        deadline = time.monotonic() + seconds
        if self._patience != seconds:
            self._block_for(seconds)
        self._socket.sendall(frame)
        _feed(reader, self._socket.recv(_RECEIVE_BYTES))
        while (reply := reader.take()) is None:
            self._block_for(max(deadline - time.monotonic(), 0.001))
            _feed(reader, self._socket.recv(_RECEIVE_BYTES))
        return reply

    def beside(self) -> Stream:
        return super().beside() if self._another is None else self._another()

    def drop(self) -> None:
        self.dropped = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits, and is seen through every copy
        if not self._in_use:  # else who uses it closes it: a number that is waited for must not become another's
            self._socket.close()

    def forget(self) -> None:
        self.dropped = True
        self._socket.close()

    def _block_for(self, seconds: float) -> None:
        """Where the kernel can keep the time, since for a time-out of Python's each call begins with a poll."""
        if sys.platform != "linux" or type(self._socket) is not socket.socket:
            self._socket.settimeout(seconds)
            return
        self._socket.setblocking(True)
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)
        self._patience = seconds

    def _lost(self, error: BaseException, seconds: float) -> BaseException:
        """Whatever went wrong, a Ctrl-C or a cancellation as well: this answer must not be taken for the next one's."""
        self.drop()
        if isinstance(error, TimeoutError | BlockingIOError):
            return Broken(f"the sandbox's runner gave no answer in {seconds:.0f} s")
        if isinstance(error, EOFError | OSError | FrameError):
            return Broken(f"the sandbox's runner is gone: {self._why() or error}")
        return error


def _feed(reader: Reader, data: bytes) -> None:
    if not data:
        raise EOFError
    reader.feed(data)
