"""Orders to a console, small and flat: a session is told to run something thousands of times an hour.

    script   run the program as a script, once      run   run it in the session's variables, and tell the outcome
    argv     become another program                 fork  become two; the text is the branch's folder

The program comes inside the order if it is short, else as the first descriptor. After it come stdin, if there is one,
and stdout and stderr; a fork brings the branch's socket.
"""

import json
import os
import struct
from typing import NamedTuple

SCRIPT, RUN, ARGV, FORK = range(4)
INLINE_BYTES = 2**15
ORDER_BYTES = INLINE_BYTES + 64
MOST_DESCRIPTORS = 4
_LAYOUT = struct.Struct("<BBII")
_SHOW_LAST, _HAS_STDIN, _IN_FILE = 1, 2, 4

READY, REFUSED, DONE, FORKED = b"r", b"e", b"d", b"f"
"""How an answer begins: the walls are up, or could not be built (why); a run is over (exit code, whether there is a
value, the value); a branch lives (its pid)."""


class Order(NamedTuple):
    """What a console is to do."""

    kind: int
    text: bytes
    number: int = 0
    value_bytes: int = 0
    show_last: bool = False
    has_stdin: bool = False


def pack(order: Order, in_file: bool = False) -> bytes:
    flags = order.show_last * _SHOW_LAST | order.has_stdin * _HAS_STDIN | in_file * _IN_FILE
    return _LAYOUT.pack(order.kind, flags, order.number, order.value_bytes) + (b"" if in_file else order.text)


def unpack(data: bytes, descriptors: list[int]) -> Order:
    """The order; the descriptor of its text, where there is one, is read and taken from the list."""
    kind, flags, number, value_bytes = _LAYOUT.unpack_from(data)
    text = data[_LAYOUT.size :]
    if flags & _IN_FILE:
        with open(descriptors.pop(0), "rb") as file:
            text = file.read()
    return Order(kind, text, number, value_bytes, bool(flags & _SHOW_LAST), bool(flags & _HAS_STDIN))


def words(text: bytes) -> list[str]:
    """The words of a command."""
    found = json.loads(text)
    assert isinstance(found, list)
    return found


def memory_file(content: bytes) -> int:
    """A file that is nowhere, read from its start by whoever is given it."""
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
