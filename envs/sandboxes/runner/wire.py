"""Frames, the messages between a client and the runner. On a stream each request is followed by its reply, without ids.

A frame is `u32 head length, u32 body length` (little endian), a head, and raw bytes as the body. A head is a JSON
object, except in two frames that are sent thousands of times an hour: the request of a run in a session, and the result
of any run. Their heads have fixed layouts, which begin with a zero byte. Both sides check the lengths before they use
them. `framed` and `connections` define the meaning of heads.
"""

import json
import struct
from typing import Any

LENGTHS = struct.Struct("<II")
HEAD_BYTES = 2**20
"""Maximum bytes of a head; the longest one lists the initial files of a session."""
RUN = struct.Struct("<x??dQ")
"""Layout of a run: whether it is a command, whether the last value is wanted, seconds, size of the program; stdin
follows the program. In a run without a session this is not a head: it follows the files."""
RESULT = struct.Struct("<xhh???BQQddQIIi")
"""Layout of a result: exit code and signal, -1 for none; timed out, out of memory, state lost; limit; bytes written to
stdout and to stderr; seconds, CPU seconds, bytes of memory; sizes of the stdout, stderr and value that follow, -1 for
none."""
LIMITED = ("", "seconds", "cpu_seconds", "memory", "processes", "scratch", "output", "code")
"""Names of limits, by the number in a result."""

Header = dict[str, Any]
FrameHead = Header | bytes
"""Head of a frame: a JSON object, or bytes in one of the fixed layouts."""
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


class FrameError(Exception):
    """Raised if the received bytes are not a frame: the other side uses another protocol, or is broken."""


def pack(head: FrameHead, *body: bytes | bytearray | memoryview) -> bytes:
    """Return a frame with this head; its body may be given in several parts."""
    if not isinstance(head, bytes):
        head = _encode(head).encode()
    return b"".join((LENGTHS.pack(len(head), sum(map(len, body))), head, *body))


class FrameReader:
    """Joins the pieces that arrive on a stream into frames."""

    def __init__(self, body_bytes: int) -> None:
        self.body_bytes = body_bytes
        self._data = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        self._data += data

    @property
    def empty(self) -> bool:
        """Return whether all received bytes have been taken."""
        return not self._data

    def take(self) -> tuple[FrameHead, bytes] | None:
        """Return the next whole frame, or None if a part of it has not arrived yet."""
        data = self._data
        if len(data) < LENGTHS.size:
            return None
        head, body = LENGTHS.unpack_from(data)
        if head > HEAD_BYTES or body > self.body_bytes:
            raise FrameError(f"a frame of {head} + {body} bytes; expected at most {HEAD_BYTES} + {self.body_bytes}")
        start = LENGTHS.size + head
        end = start + body
        if len(data) < end:
            return None
        head_bytes, payload = bytes(data[LENGTHS.size : start]), bytes(data[start:end])
        del data[:end]
        return (head_bytes if head_bytes[:1] == b"\0" else _header(head_bytes)), payload


def _header(head: bytes) -> Header:
    try:
        header = _decode(str(head, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a head that is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FrameError(f"a head that is a {type(header).__name__}; expected an object")
    return header
