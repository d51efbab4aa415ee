"""Frames: how a client speaks to the runner. Request, reply, request, reply on one stream; no ids, no interleaving.

A frame is `u32 head length, u32 body length` (little endian), a head, and raw bytes. A head is a JSON object, but for
the two that come thousands of times an hour, a session's run and any run's result: these have fixed layouts, and begin
with a zero. Both sides check sizes before they believe them. What is not here: sockets, and what the heads mean.
"""

import json
import struct
from typing import Any

LENGTHS = struct.Struct("<II")
HEAD_BYTES = 2**20
"""The largest head; a list of the files that a session starts with is the longest one."""
RUN = struct.Struct("<x??dQ")
"""A run: a command or Python; whether the last value is wanted; seconds; size of the program, behind which stdin comes.
For a run without a session it is no head: it comes behind the files."""
RESULT = struct.Struct("<xhh???BQQddQIIi")
"""Exit code and signal, -1 for none; timed out, out of memory, state lost; limit; bytes of stdout and of stderr that
were written; seconds, CPU seconds, bytes of memory; sizes of what comes of stdout, of stderr and of the value, -1 for
none."""
LIMITED = ("", "seconds", "cpu_seconds", "memory", "processes", "scratch", "output", "code")
"""Names of limits, by the number in a result."""

Header = dict[str, Any]
FrameHead = Header | bytes
"""Bytes: one of the fixed layouts."""
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


class FrameError(Exception):
    """The received bytes are no frame: the other side is not ours, or it is broken."""


def pack(head: FrameHead, *body: bytes | bytearray | memoryview) -> bytes:
    """Return a frame."""
    if not isinstance(head, bytes):
        head = _encode(head).encode()
    return b"".join((LENGTHS.pack(len(head), sum(map(len, body))), head, *body))


class FrameReader:
    """Joins the pieces that a stream gives to frames."""

    def __init__(self, body_bytes: int) -> None:
        self.body_bytes = body_bytes
        self._data = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        self._data += data

    @property
    def empty(self) -> bool:
        """Return whether no part of a frame is waiting."""
        return not self._data

    def take(self) -> tuple[FrameHead, bytes] | None:
        """Return the next whole frame, or None while more is to come."""
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
