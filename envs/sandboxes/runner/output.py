"""Captures the output of a program: head and tail are kept up to a cap in bytes, and all bytes are counted.

A program that prints without end costs time to read, but no memory. The client decodes the output after the cut.
"""

import os

CHUNK = 2**16
"""Usual capacity of a pipe: one read empties it."""
MARK_BYTES = 96
"""Maximum bytes that the line about missing output may take beyond a cap."""
_buffer = bytearray(CHUNK)  # shared: allocating it at every read would cost more than the read
_view = memoryview(_buffer)


class Capture:
    """Head and tail of an output, each half of a cap, and its true size."""

    def __init__(self, cap: int) -> None:
        self.size = 0
        self._head_cap = cap - cap // 2
        self._tail_cap = cap // 2
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        size = len(data)
        self.size += size
        room = self._head_cap - len(self._head)
        if size <= room:
            self._head += data
            return
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_cap :] if self._tail_cap else b""
        if len(self._tail) > self._tail_cap + CHUNK:  # trimmed now and then, not at every piece
            del self._tail[: len(self._tail) - self._tail_cap]

    @property
    def cut(self) -> bool:
        """Return whether the middle of the output was dropped."""
        return self.size > self._head_cap + self._tail_cap

    def text(self) -> bytes:
        """Return all of the output, or head and tail with a line in the middle that says what is missing."""
        if not self.cut:
            return bytes(self._head + self._tail if self._tail else self._head)
        tail = self._tail[len(self._tail) - self._tail_cap :]
        left_out = self.size - len(self._head) - len(tail)
        middle = f"\n[... {left_out} of {self.size} bytes left out ...]\n".encode()
        return bytes(self._head + middle + tail)


def shortened(data: bytes, cap: int) -> bytes:
    """Return bytes cut to a cap, as `Capture` cuts them."""
    buffer = Capture(cap)
    buffer.feed(data)
    return buffer.text()


class Pipe:
    """A pipe for the stdout or stderr of a process. It can serve several runs, one after another."""

    def __init__(self, cap: int, owner: int | None = None) -> None:
        self.capture = Capture(cap)
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reading, False)
        if owner is not None:  # who may then open it by name too: /dev/stdout
            os.fchown(self.reading, owner, owner)

    def read(self) -> int:
        """Read once, and return the number of bytes; 0 if no bytes are available now, or the pipe has ended."""
        try:
            size = os.readv(self.reading, [_buffer])
        except BlockingIOError:
            return 0
        if size:
            self.capture.feed(_view[:size])
        return size

    def drain(self) -> None:
        """Read what a program has left in the pipe, without waiting for one that still writes."""
        for _ in range(32):  # twice what the largest pipe holds
            if self.read() < CHUNK:
                break

    def close_writing_end(self) -> None:
        """Close our writing end once the process has its own, so that the pipe ends when the last program closes it."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        self.close_writing_end()
        os.close(self.reading)


class Outputs:
    """The pipes of a process: its stdout and its stderr."""

    def __init__(self, cap: int, owner: int | None) -> None:
        self.cap = cap
        self.both = self.out, self.err = Pipe(cap, owner), Pipe(cap, owner)

    def begin(self) -> None:
        """Start to capture and count the output of another run."""
        for pipe in self.both:
            if pipe.capture.size:
                pipe.capture = Capture(self.cap)
