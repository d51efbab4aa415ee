"""The one stream to a container's supervisor: its standard input and output, through the engine's socket.

It is a socket like any other, but that the engine packs what comes back: 8 bytes say which of the two outputs it was
and how long, then come the bytes. What the supervisor writes to standard error is kept for the day it dies.
"""

import contextlib
import socket
import struct
from typing import Any

_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
SAID_BYTES = 2000
"""What is kept of the supervisor's standard error."""


class AttachStream(socket.socket):
    """What is received has the engine's packing taken off. Blocking or not, as the socket is told."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self._head = b""
        self._left = 0
        self._kind = 0
        self._said = b""

    @property
    def said(self) -> str:
        """The end of what the supervisor wrote to standard error."""
        return self._said.decode(errors="replace").strip()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Bytes of the supervisor's standard output; b"" when it has ended."""
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
            self._said = (self._said + piece)[-SAID_BYTES:]

    def let_go(self) -> None:
        """The supervisor reads the end of its input and ends, and so does its container; whoever waits here wakes."""
        with contextlib.suppress(OSError):  # the other side was first
            # The SDK may hold a second descriptor of this connection; closing ours alone would tell nobody.
            self.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Let go and close: once nobody waits here, or its number could become another's under them."""
        self.let_go()
        self.close()


def attach(api: Any, container: str) -> AttachStream:
    """Take hold of a container that is not yet started, so that nothing it says is missed."""
    wrapped = api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    # The library keeps the connection, the answer that came over it and a file round it, and closes none of them.
    kept = [getattr(wrapped, "_response", None), wrapped, getattr(wrapped, "_sock", None)]
    try:
        return AttachStream(socket.dup(wrapped.fileno()))
    finally:
        for item in kept:
            if item is not None:
                item.close()
