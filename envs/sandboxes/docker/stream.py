"""The stream to a container's supervisor: its standard input and output, through the engine's socket.

The engine sends the output in packets: 8 bytes say whether it is standard output or standard error, and how long it is;
then the output follows. The end of the standard error is kept for the error message after the supervisor has ended.
"""

import contextlib
import socket
import struct
from typing import Any

_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
STDERR_BYTES = 2000
"""Number of bytes to keep of the supervisor's standard error."""


class AttachStream(socket.socket):
    """A socket that removes the engine's packing from received data. It may block or not."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self._head = b""
        self._left = 0
        self._kind = 0
        self._error_bytes = b""

    @property
    def error_text(self) -> str:
        """Return the end of the supervisor's standard error."""
        return self._error_bytes.decode(errors="replace").strip()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return bytes of the supervisor's standard output, or b"" when it has ended."""
        while True:
            while self._left == 0:
                piece = super().recv(_HEADER.size - len(self._head), flags)
                if not piece:
                    return b""
                self._head += piece
                if len(self._head) == _HEADER.size:
                    self._kind, self._left = _HEADER.unpack(self._head)
                    self._head = b""
            piece = super().recv(min(size, self._left), flags)
            self._left -= len(piece)
            if self._kind != _STDERR or not piece:
                return piece
            self._error_bytes = (self._error_bytes + piece)[-STDERR_BYTES:]

    def let_go(self) -> None:
        """Shut the connection down: the supervisor and its container end, and waiting calls on the socket return."""
        with contextlib.suppress(OSError):  # the other side has closed it already
            # The SDK may hold a second descriptor of this connection, so closing ours would not end it.
            self.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Shut down and close the socket. Call it only when no thread waits on it, because its number may be reused."""
        self.let_go()
        self.close()


def attach(api: Any, container: str) -> AttachStream:
    """Attach to a container that is not yet started, so that none of its output is missed."""
    wrapped = api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    # The library keeps the connection, the response and a file around it, and closes none of them.
    resources = [getattr(wrapped, "_response", None), wrapped, getattr(wrapped, "_sock", None)]
    try:
        return AttachStream(socket.dup(wrapped.fileno()))
    finally:
        for item in resources:
            if item is not None:
                item.close()
