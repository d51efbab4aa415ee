"""What client and server say to each other: one POST an operation, a JSON header and raw bytes in each direction.

    u32 size of the header, u32 size of the body (little endian), header, body

Whatever arrives is a stranger's: it is checked against its schema here, and `Unreadable` says what is wrong with it.
A request names itself, so that one that is sent again (its answer was lost on the way) is not executed again. Left out:
HTTP itself (`exchange`, `server`).
"""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, get_args

from palaestra.endpoint.reply import Unreadable, plain
from palaestra.envs.sandboxes import arguments
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Limited, Result
from palaestra.envs.sandboxes.sandbox import Program
from palaestra.errors import UsageError

PROTOCOL = 1
CONTENT_TYPE = "application/x-palaestra-sandbox"
"""Not one that a web page may send to another host without asking: a browser cannot be talked into using a server."""
TOKEN_ENV = "PALAESTRA_SANDBOX_TOKEN"
"""Environment variable that holds the token, on both ends."""
HEADER_BYTES = 2**20
BODY_BYTES = 256 * 2**20
"""Of any body, whatever the limits of a sandbox say."""
OPERATIONS = ("once", "start", "run", "put", "get", "listdir", "reset", "fork", "close")
_SIZES = struct.Struct("<II")
_MOST_NOTES = 64
_LONGEST_NAME = 255
_REPLACED = 3
"""Bytes that one undecodable byte becomes as text."""


def pack(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One message."""
    head = json.dumps(header, allow_nan=False).encode()
    return _SIZES.pack(len(head), len(body)) + head + body


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the body of a message."""
    head, body = _SIZES.unpack_from(data) if len(data) >= _SIZES.size else (0, -1)
    if head > HEADER_BYTES or _SIZES.size + head + body != len(data):
        raise Unreadable(f"{len(data)} bytes, which are no message")
    try:
        header = json.loads(data[_SIZES.size : _SIZES.size + head])
    except (ValueError, RecursionError):
        raise Unreadable("a header that is no JSON") from None
    if not isinstance(header, dict):
        raise Unreadable(f"a header that is no object but a {type(header).__name__}")
    return header, data[_SIZES.size + head :]


def text_of(header: Mapping[str, Any], name: str, most: int = 4096) -> str:
    """A string of a header."""
    value = header.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise Unreadable(f"{name} is {_short(value)}; expected a text of at most {most} characters")
    return value


def count_of(header: Mapping[str, Any], name: str, most: int = BODY_BYTES) -> int:
    """A whole number of a header, 0 or more."""
    value = header.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Unreadable(f"{name} is {_short(value)}; expected a whole number from 0 to {most}")
    return value


def seconds_of(header: Mapping[str, Any], name: str) -> float:
    """A finite number of a header, 0 or more."""
    value = header.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or value < 0:
        raise Unreadable(f"{name} is {_short(value)}; expected a finite number, 0 or more")
    return float(value)


def identity_of(header: Mapping[str, Any], name: str) -> str:
    """What a client made up to name a session or a request; long enough not to be met by chance."""
    value = text_of(header, name, 64)
    if len(value) < 16 or not value.isascii() or not value.isalnum():
        raise Unreadable(f"{name} is {_short(value)}; expected 16 to 64 letters and digits")
    return value


def cut(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    """A body in parts of these sizes, which are all of it."""
    if sum(sizes) != len(body):
        raise Unreadable(f"a body of {len(body)} bytes whose parts have {sum(sizes)}")
    parts, at = [], 0
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    return parts


# Requests.


def run_seconds(timeout: float | None, limits: Limits) -> float:
    """The wall time that a run may take."""
    return arguments.seconds_of(timeout) or limits.seconds


def run_request(
    program: Program,
    timeout: float | None,
    stdin: bytes,
    show_last: bool,
    limits: Limits,
    files: Mapping[str, bytes] | None = None,
) -> tuple[dict[str, Any], bytes]:
    """A program with what it is given, as a header and a body. One byte too many says as much as a million."""
    words = arguments.words_of(program)
    most = limits.code_bytes + 1
    code = program[:most].encode("utf-8", "surrogatepass") if isinstance(program, str) else b""
    code = code if len(code) < most else b"#" * most  # A cut might be inside a character.
    stdin = arguments.content("stdin", stdin)[:most]
    held = arguments.files_of(files, limits)
    header = {
        "argv": words,
        "timeout": timeout,
        "show_last": show_last,
        "files": [[path, len(data)] for path, data in held.items()],
        "program_size": len(code),
        "stdin_size": len(stdin),
    }
    return header, b"".join([*held.values(), code, stdin])


def most_request(limits: Limits) -> int:
    """Bytes of the largest request that fits these limits: all files of a place at once, a program and its stdin."""
    return limits.scratch_bytes + limits.file_bytes + 2 * (limits.code_bytes + 1) + HEADER_BYTES + _SIZES.size


def read_run(header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The arguments of a run, and the files that come with it."""
    paths, sizes = _files(header)
    parts = cut(body, [*sizes, count_of(header, "program_size"), count_of(header, "stdin_size")])
    words, show_last = header.get("argv"), header.get("show_last")
    if words is not None and not (isinstance(words, list) and words and all(isinstance(w, str) for w in words)):
        raise Unreadable(f"argv is {_short(words)}; expected words")
    if not isinstance(show_last, bool):
        raise Unreadable(f"show_last is {_short(show_last)}; expected true or false")
    try:
        program = parts[-2].decode("utf-8", "surrogatepass") if words is None else words
    except UnicodeDecodeError:
        raise Unreadable("a program that is no UTF-8") from None
    timeout = None if header.get("timeout") is None else seconds_of(header, "timeout")
    given = {"program": program, "timeout": timeout, "stdin": parts[-1], "show_last": show_last}
    return given, dict(zip(paths, parts, strict=False))


def start_request(files: Mapping[str, bytes] | None, limits: Limits | None) -> tuple[dict[str, Any], bytes]:
    """The files and limits of a new session."""
    held = arguments.files_of(files, limits)
    header: dict[str, Any] = {"files": [[path, len(data)] for path, data in held.items()]}
    return header | {"limits": limits and asdict(limits)}, b"".join(held.values())


def read_start(header: Mapping[str, Any], body: bytes) -> dict[str, bytes]:
    """The files of a new session."""
    paths, sizes = _files(header)
    return dict(zip(paths, cut(body, sizes), strict=True))


def _files(header: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    listed = header.get("files", [])
    if not isinstance(listed, list) or any(not isinstance(one, list) or len(one) != 2 for one in listed):
        raise Unreadable(f"files is {_short(listed)}; expected pairs of a path and a size")
    named = [{"path": one[0], "size": one[1]} for one in listed]
    return [text_of(one, "path") for one in named], [count_of(one, "size") for one in named]


def read_limits(header: Mapping[str, Any]) -> Limits | None:
    """Limits as they were sent; None where there are none."""
    given = header.get("limits")
    if given is None:
        return None
    names = {field.name for field in fields(Limits)}
    if not isinstance(given, dict) or set(given) != names:
        raise Unreadable(f"limits is {_short(given)}; expected {', '.join(sorted(names))}")
    try:
        return Limits(**given)
    except UsageError as error:
        raise Unreadable(str(error)) from None


# Answers.


def most_output(limits: Limits) -> int:
    """Bytes that the texts of one result may come to."""
    return 3 * _REPLACED * (limits.output_bytes + 1024)


def result_answer(result: Result) -> tuple[dict[str, Any], bytes]:
    """A result, its texts in the body."""
    texts = [text.encode("utf-8", "replace") for text in (result.stdout, result.stderr, result.value or "")]
    figures = {name: value for name, value in asdict(result).items() if name not in ("stdout", "stderr", "value")}
    sizes = {"sizes": [len(text) for text in texts], "has_value": result.value is not None}
    return {"result": figures} | sizes, b"".join(texts)


def read_result(header: Mapping[str, Any], body: bytes) -> Result:
    """A result; each of its fields is of its type, or it is none."""
    given, sizes, has_value = header.get("result"), header.get("sizes"), header.get("has_value")
    if not isinstance(given, dict) or not isinstance(sizes, list) or len(sizes) != 3 or not isinstance(has_value, bool):
        raise Unreadable(f"no result: {_short(header)}")
    stdout, stderr, value = cut(body, [count_of({"size": size}, "size") for size in sizes])
    exit_code, signal, limit_hit = given.get("exit_code"), given.get("signal"), given.get("limit_hit")
    limited: tuple[Limited, ...] = get_args(Limited)
    if exit_code is not None and (not isinstance(exit_code, int) or abs(exit_code) >= 2**31):
        raise Unreadable(f"exit_code is {_short(exit_code)}; expected a whole number or null")
    if signal is not None:
        signal = count_of(given, "signal", 128)
    if limit_hit not in limited:
        raise Unreadable(f"limit_hit is {_short(limit_hit)}; expected one of {', '.join(limited)}")
    flags = {name: given.get(name) for name in ("timed_out", "oom", "state_lost")}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise Unreadable(f"flags that are neither true nor false: {_short(flags)}")
    return Result(
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        value=value.decode("utf-8", "replace") if has_value else None,
        exit_code=None if exit_code is None else int(exit_code),
        signal=signal,
        limit_hit=limited[limited.index(limit_hit)],
        stdout_bytes=count_of(given, "stdout_bytes", 2**62),
        stderr_bytes=count_of(given, "stderr_bytes", 2**62),
        duration_s=seconds_of(given, "duration_s"),
        cpu_s=seconds_of(given, "cpu_s"),
        max_rss_bytes=count_of(given, "max_rss_bytes", 2**62),
        **{name: bool(flag) for name, flag in flags.items()},
    )


def names_answer(names: Sequence[str]) -> bytes:
    """The names in a folder, which may be any bytes but NUL."""
    return b"\0".join(os.fsencode(name) for name in names)


def read_names(body: bytes) -> list[str]:
    """The same, read."""
    return [os.fsdecode(name) for name in body.split(b"\0")] if body else []


def most_names(limits: Limits) -> int:
    """Bytes that the names in a folder may come to."""
    return limits.scratch_files * (_LONGEST_NAME + 2)


def read_capabilities(header: Mapping[str, Any]) -> Capabilities:
    """What the server says its backend enforces."""
    given = header.get("capabilities")
    if not isinstance(given, dict):
        raise Unreadable(f"no capabilities: {_short(header)}")
    flags = ("files", "network", "processes", "process_count", "syscalls", "own_user", "forks")
    notes = given.get("notes", [])
    memory = given.get("memory")
    if not all(isinstance(given.get(name), bool) for name in flags) or memory not in ("tree", "watched", "process", ""):
        raise Unreadable(f"capabilities of the wrong types: {_short(given)}")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise Unreadable(f"notes of the wrong type: {_short(notes)}")
    return Capabilities(
        backend=f"remote {plain(text_of(given, 'backend', 200))}",
        memory=memory,
        landlock=count_of(given, "landlock", 1000),
        notes=tuple(plain(note) for note in notes[:_MOST_NOTES]),
        **{name: given[name] for name in flags},
    )


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 120 else text[:120] + "..."
