"""Orders from the supervisor to a console, which runs the agent's code: small messages, because many are sent.

    script   run the program as a script, once      run   run it in the session's variables, and report the outcome
    argv     become another program                 fork  fork a branch; the text of the order is the branch's folder

A short program is part of the order; a long one is sent as a file, which is the first descriptor. The next descriptors
are stdin, if there is one, and stdout and stderr, unless those of the previous run are used again. A fork order comes
with the branch's socket.
"""

import os
import struct
from typing import NamedTuple

SCRIPT, RUN, ARGV, FORK = range(4)
INLINE_BYTES = 2**15
ORDER_BYTES = INLINE_BYTES + 64
VALUE_BYTES = 2**16
"""Maximum bytes of a value, whatever the output limit is: it comes in one message, and a socket takes hardly more."""
MOST_DESCRIPTORS = 4
TOKEN_BYTES = 8
_LAYOUT = struct.Struct(f"<BII??{TOKEN_BYTES}s?")

READY, REFUSED, DONE, FORKED = b"r", b"e", b"d", b"f"
"""First byte of an answer.

READY: the isolation is complete. REFUSED: it failed, with the reason. DONE: a run is over; the order's token, exit
code, whether stdout and stderr are unchanged, whether there is a value, and the value follow. FORKED: a branch runs;
its pid follows. Because of the token, output of an earlier run to the socket cannot be taken for the answer to a later
one.
"""


class ConsoleCommand(NamedTuple):
    """An order to a console."""

    kind: int
    text: bytes
    number: int = 0
    value_bytes: int = 0
    show_last: bool = False
    has_stdin: bool = False
    token: bytes = bytes(TOKEN_BYTES)

    def packed(self) -> bytes:
        """Return the order as bytes. A text that is too long is left out, and the caller must send it as a file."""
        kind, text, *fields, token = self
        in_file = len(text) > INLINE_BYTES
        head = _LAYOUT.pack(kind, *fields, token, in_file)
        return head if in_file else head + text


def unpack(data: bytes, descriptors: list[int]) -> ConsoleCommand:
    """Return the order. If its text came as a file, read its descriptor and remove it from the list."""
    kind, *fields, in_file = _LAYOUT.unpack_from(data)
    text = data[_LAYOUT.size :]
    if in_file:
        with open(descriptors.pop(0), "rb") as file:
            text = file.read()
    return ConsoleCommand(kind, text, *fields)


def memory_file(content: bytes) -> int:
    """Return the descriptor of a file in memory with this content, positioned at the start."""
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
        file.seek(0)
    return descriptor
