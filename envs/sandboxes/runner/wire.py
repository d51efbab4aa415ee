"""Frames: how a client speaks to the runner. Request, reply, request, reply on one stream; no ids, no interleaving.

A frame is `u32 header length, u32 body length` (little endian), a JSON object, and raw bytes. Both sides check sizes
before they believe them. What is not here: sockets, and what the headers mean.
"""

import json
import struct
from typing import Any

LENGTHS = struct.Struct("<II")
HEADER_BYTES = 2**20
"""The largest header; a list of the files that a session starts with is the longest one."""

Header = dict[str, Any]
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


class FrameError(Exception):
    """What came is no frame: the other side is not ours, or it is broken."""


def pack(header: Header, *body: bytes | bytearray | memoryview) -> bytes:
    """One frame."""
    head = _encode(header).encode()
    return b"".join((LENGTHS.pack(len(head), sum(map(len, body))), head, *body))


class Reader:
    """Puts frames together from whatever pieces a stream gives."""

    def __init__(self, body_bytes: int) -> None:
        self.body_bytes = body_bytes
        self._data = bytearray()
        self._lengths: tuple[int, int] | None = None

    def feed(self, data: bytes | memoryview) -> None:
        self._data += data

    @property
    def empty(self) -> bool:
        """No part of a frame is waiting."""
        return not self._data

    def take(self) -> tuple[Header, bytes] | None:
        """The next whole frame, or None while more is to come."""
        if self._lengths is None:
            if len(self._data) < LENGTHS.size:
                return None
            head, body = LENGTHS.unpack_from(self._data)
            if head > HEADER_BYTES or body > self.body_bytes:
                raise FrameError(
                    f"a frame of {head} + {body} bytes; expected at most {HEADER_BYTES} + {self.body_bytes}"
                )
            self._lengths = head, body
        head, body = self._lengths
        end = LENGTHS.size + head + body
        if len(self._data) < end:
            return None
        try:
            header = _decode(str(self._data[LENGTHS.size : LENGTHS.size + head], "utf-8"))
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a header that is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise FrameError(f"a header that is a {type(header).__name__}; expected an object")
        payload = bytes(self._data[LENGTHS.size + head : end])
        del self._data[:end]
        self._lengths = None
        return header, payload
