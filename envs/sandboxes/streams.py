"""A stream of bytes to a runner and back, and the one over a socket. What the frames mean is not here (`framed`)."""

import asyncio
import contextlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator

from palaestra.envs.sandboxes.runner.wire import FrameError, Header, Reader
from palaestra.errors import Broken

_RECEIVE_BYTES = 2**16


class Stream(ABC):
    """Bytes to a runner and back: one request, one reply. A stream that failed is dropped and never used again."""

    @abstractmethod
    def exchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Header, bytes]:
        """Send a frame and wait for the reply. `Broken` where none comes, after the stream has been dropped."""

    @abstractmethod
    async def aexchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Header, bytes]:
        """The same without blocking the loop. Cancelling it drops the stream, and so ends the run."""

    @abstractmethod
    def drop(self) -> None:
        """Let go at once, from any thread; the runner ends the session. May come twice."""


class SocketStream(Stream):
    """A stream over a connected socket. `why` says what became of the runner, for the error."""

    def __init__(self, near: socket.socket, why: Callable[[], str]) -> None:
        self._socket, self._why = near, why
        self._in_use = False
        self.dropped = False

    def exchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Header, bytes]:
        deadline = time.monotonic() + seconds
        reader = Reader(body_bytes)
        with self._using(seconds):
            self._socket.settimeout(seconds)
            self._socket.sendall(frame)
            while (reply := reader.take()) is None:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                self._fed(reader, self._socket.recv(_RECEIVE_BYTES))
        return reply

    async def aexchange(self, frame: bytes, body_bytes: int, seconds: float) -> tuple[Header, bytes]:
        loop = asyncio.get_running_loop()
        reader = Reader(body_bytes)
        with self._using(seconds):
            self._socket.setblocking(False)
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self._socket, frame)
                while (reply := reader.take()) is None:
                    self._fed(reader, await loop.sock_recv(self._socket, _RECEIVE_BYTES))
        return reply

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

    @contextlib.contextmanager
    def _using(self, seconds: float) -> Generator[None]:
        """Whatever goes wrong, a Ctrl-C or a cancellation as well: this answer must not be taken for the next one's."""
        self._in_use = True
        try:
            yield
        except BaseException as error:
            self.drop()
            if isinstance(error, TimeoutError):
                raise Broken(f"the sandbox's runner gave no answer in {seconds:.0f} s") from None
            if isinstance(error, EOFError | OSError | FrameError):
                raise Broken(f"the sandbox's runner is gone: {self._why() or error}") from None
            raise
        finally:
            self._in_use = False
            if self.dropped:
                self._socket.close()

    def _fed(self, reader: Reader, data: bytes) -> None:
        if not data:
            raise EOFError
        reader.feed(data)
