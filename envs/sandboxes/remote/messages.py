"""Messages of a sandbox server: the body of each request and of each answer is one frame of a runner's protocol.

`POST /v2/SESSION/REQUEST` sends a frame and is answered with a frame; `GET /v2/capabilities` is answered with JSON.
REQUEST is the name of the request: if it is sent again because its answer was lost, it is not executed again. Clients
are not trusted, so this module checks all input. `framed` is the client's side; `client` and `server` handle HTTP.
"""

import json
from typing import Any

from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.runner import wire
from palaestra.envs.sandboxes.runner.wire import RUN, FrameError, FrameHead, Header, pack
from palaestra.errors import UsageError

CONTENT_TYPE = "application/x-palaestra-sandbox"
"""Content type that a web page cannot send to another host without permission, so browsers cannot be misused."""
FRAME_BYTES = 256 * 2**20
"""Largest frame in bytes, for any limits of a sandbox."""
DONE = pack({"ok": True})


def unpack(data: bytes, body_bytes: int) -> tuple[FrameHead, bytes]:
    """Return the frame in a body; raise FrameError unless the body is exactly one frame."""
    reader = wire.FrameReader(body_bytes)
    reader.feed(data)
    frame = reader.take()
    if frame is None or not reader.empty:
        raise FrameError(f"{len(data)} bytes, which are no frame")
    return frame


def largest_frame(limits: Limits) -> int:
    """Return the size of the largest request within these limits: all files at once, a program and its stdin."""
    return limits.scratch_bytes + limits.file_bytes + 2 * limits.code_bytes + 2 * wire.HEAD_BYTES


def is_name(value: str) -> bool:
    """Return whether a client may give a session or a request this name, which must be too long to guess."""
    return 16 <= len(value) <= 64 and value.isascii() and value.isalnum()


def text_of(header: Header, name: str) -> str:
    """Return a field of a header; raise UsageError if it is not a string."""
    value = header.get(name)
    if not isinstance(value, str):
        raise UsageError(f"a request that cannot be read: {name} is a {type(value).__name__}; expected a text")
    return value


def read_files(header: Header, body: bytes) -> tuple[dict[str, bytes], bytes]:
    """Return the initial files of a session, read from the front of a body, and the rest of the body."""
    entries, files, at = header.get("files"), {}, 0
    if not isinstance(entries, list) or not all(
        isinstance(entry, list) and list(map(type, entry)) == [str, int] and entry[1] >= 0 for entry in entries
    ):
        raise UsageError("a request that cannot be read: files are no pairs of a path and a size")
    for path, size in entries:
        files[path] = body[at : at + size]
        at += size
    if at > len(body):
        raise UsageError(f"a request that cannot be read: files of {at} bytes in a body of {len(body)}")
    return files, body[at:]


def read_run(head: bytes, body: bytes) -> dict[str, Any]:
    """Return the arguments of a run, by name; raise UsageError if they cannot be read."""
    is_command, show_last, seconds, size = RUN.unpack(head) if len(head) == RUN.size else (False, False, 0.0, 0)
    if not 0 < seconds < float("inf") or size > len(body):
        raise UsageError(f"a request that cannot be read: a run of {seconds} s whose program has {size} bytes")
    try:
        program = json.loads(body[:size]) if is_command else body[:size].decode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        raise UsageError("a request that cannot be read: its program is no text") from None
    if is_command and not isinstance(program, list):
        raise UsageError("a request that cannot be read: its command is no list of words")
    return {"program": program, "timeout": seconds, "stdin": body[size:], "show_last": show_last}


def pack_result(result: Result) -> bytes:
    """Return a result as the frame that a runner sends."""
    texts = [text.encode("utf-8", "replace") for text in (result.stdout, result.stderr, result.value or "")]
    sizes = [len(texts[0]), len(texts[1]), -1 if result.value is None else len(texts[2])]
    exit_status = [-1 if number is None else number for number in (result.exit_code, result.signal)]
    flags = result.timed_out, result.oom, result.state_lost, wire.LIMITED.index(result.limit_hit)
    measured = result.stdout_bytes, result.stderr_bytes, result.duration_s, result.cpu_s, result.max_rss_bytes
    return pack(wire.RESULT.pack(*exit_status, *flags, *measured, *sizes), *texts)
