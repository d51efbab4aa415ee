"""Streams that send frames to a runner and receive replies: an interface, and a stream over a socket."""

import asyncio
import contextlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from palaestra.envs.sandboxes.runner.wire import FrameError, FrameHead, FrameReader, pack
from palaestra.errors import Broken, UsageError

SPARE_BYTES = 2**16
"""Bytes of a reply's body beyond the limits: for the line about missing output, and for names of files."""
CLOSE = pack({"op": "close"})
_RECEIVE_BYTES = 2**16


class Stream(ABC):
    """Interface of a stream to a runner: each request frame gets one reply frame. A dropped stream is not reused."""

    grace: float = 75.0
    """Seconds to wait for a reply beyond the time of a run: a zygote may warm up first, or memory must be freed."""

    @abstractmethod
    async def exchange(self, frame: bytes, body_bytes: int, seconds: float, blocking: bool) -> tuple[FrameHead, bytes]:
        """Send a frame and return the reply; raise `Broken` if none comes.

        If the call is cancelled or interrupted by Ctrl-C, the stream is dropped, which ends the run.
        """

    async def leave(self, blocking: bool) -> None:
        """End the session and wait until it has ended. If that fails, dropping the stream ends it too."""
        with contextlib.suppress(Broken):
            await self.exchange(CLOSE, SPARE_BYTES, self.grace, blocking)

    @abstractmethod
    def drop(self) -> None:
        """Drop the stream at once, from any thread; the runner ends the session. It may be called twice."""

    def beside(self) -> "Stream":
        """Return another stream to the same runner, for a fork; raise UsageError if the backend cannot fork."""
        raise UsageError("this backend cannot fork a session; see Capabilities.forks")

    @abstractmethod
    def forget(self) -> None:
        """Close a forked child's copy of the stream. The parent's session continues."""


class SocketStream(Stream):
    """A stream over a connected socket. `why` returns why the runner ended; `another` connects a second stream."""

    def __init__(
        self, near: socket.socket, why: Callable[[], str], another: Callable[[], Stream] | None = None
    ) -> None:
        self._socket, self._why, self._another = near, why, another
        self._in_use = False
        self.dropped = False

    async def exchange(self, frame: bytes, body_bytes: int, seconds: float, blocking: bool) -> tuple[FrameHead, bytes]:
        self._in_use = True
        reader = FrameReader(body_bytes)
        try:
            if blocking:
                return self._exchange_blocking(frame, reader, seconds)
            loop = asyncio.get_running_loop()
            self._socket.setblocking(False)
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

    def _exchange_blocking(self, frame: bytes, reader: FrameReader, seconds: float) -> tuple[FrameHead, bytes]:
        deadline = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        self._socket.sendall(frame)
        while (reply := reader.take()) is None:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            _feed(reader, self._socket.recv(_RECEIVE_BYTES))
        return reply

    def beside(self) -> Stream:
        return super().beside() if self._another is None else self._another()

    def drop(self) -> None:
        self.dropped = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes waiting calls; it affects every copy of the socket
        if not self._in_use:  # otherwise its user closes it: the descriptor must not be reused during a call
            self._socket.close()

    def forget(self) -> None:
        self.dropped = True
        self._socket.close()

    def _lost(self, error: BaseException, seconds: float) -> BaseException:
        """Drop the stream after any error, so that no later request reads this reply; return the error to raise."""
        self.drop()
        if isinstance(error, TimeoutError):
            return Broken(f"the sandbox's runner gave no answer in {seconds:.0f} s")
        if isinstance(error, EOFError | OSError | FrameError):
            return Broken(f"the sandbox's runner is gone: {self._why() or error}")
        return error


def _feed(reader: FrameReader, data: bytes) -> None:
    if not data:
        raise EOFError
    reader.feed(data)
