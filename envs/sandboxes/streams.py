"""A stream of bytes to a runner and back, and the one over a socket. What the frames mean is not here (`framed`)."""

import asyncio
import contextlib
import socket
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from palaestra.envs.sandboxes.runner.wire import FrameError, Head, Reader
from palaestra.errors import Broken

_RECEIVE_BYTES = 2**16


class Stream(ABC):
    """Bytes to a runner and back: one request, one reply. A stream that failed is dropped and never used again."""

    @abstractmethod
    def exchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Head, bytes]:
        """Send a frame and wait for the reply. `Broken` where none comes, after the stream has been dropped."""

    @abstractmethod
    async def aexchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Head, bytes]:
        """The same without blocking the loop. Cancelling it drops the stream, and so ends the run."""

    @abstractmethod
    def drop(self) -> None:
        """Let go at once, from any thread; the runner ends the session. May come twice."""


class SocketStream(Stream):
    """A stream over a connected socket. `why` says what became of the runner, for the error."""

    def __init__(self, near: socket.socket, why: Callable[[], str]) -> None:
        self._socket, self._why = near, why
        self._patience = -1.0
        """Seconds that the kernel waits in one call before it gives up; -1: the socket does not block."""
        self._in_use = False
        self.dropped = False

    def exchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Head, bytes]:
        self._in_use = True
        try:
            deadline = time.monotonic() + seconds
            if self._patience != seconds:
                self._block_for(seconds)
            self._socket.sendall(frame)
            reader = Reader(body_bytes)
            self._fed(reader, self._socket.recv(_RECEIVE_BYTES))
            while (reply := reader.take()) is None:
                self._block_for(max(deadline - time.monotonic(), 0.001))
                self._fed(reader, self._socket.recv(_RECEIVE_BYTES))
            return reply
        except BaseException as error:
            raise self._lost(error, seconds) from None
        finally:
            self._used()

    async def aexchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Head, bytes]:
        self._in_use = True
        try:
            loop = asyncio.get_running_loop()
            reader = Reader(body_bytes)
            self._socket.setblocking(False)
            self._patience = -1.0
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self._socket, frame)
                while (reply := reader.take()) is None:
                    self._fed(reader, await loop.sock_recv(self._socket, _RECEIVE_BYTES))
            return reply
        except BaseException as error:
            raise self._lost(error, seconds) from None
        finally:
            self._used()

    def drop(self) -> None:
        self.dropped = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits, and is seen through every copy
        if not self._in_use:  # else who uses it closes it: a number that is waited for must not become another's
            self._socket.close()

    def forget(self) -> None:
        """In a forked child: let go of the copy, which leaves the parent's session alone."""
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

    def _used(self) -> None:
        self._in_use = False
        if self.dropped:
            self._socket.close()

    def _fed(self, reader: Reader, data: bytes) -> None:
        if not data:
            raise EOFError
        reader.feed(data)
