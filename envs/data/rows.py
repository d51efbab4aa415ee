"""Reads the rows of a file (JSON lines, one JSON list, CSV or parquet), each with its line or row number.

This module does not interpret rows as tasks. A row that cannot be read is yielded as a fault, so that a reader can
report all of them; a file that cannot be read at all raises an error. All values are plain: text, finite numbers, true,
false, null, lists and objects; from CSV only text, and null for an empty cell. Left out: compression, addresses on a
network.
"""

import csv
import json
import math
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from palaestra.errors import MissingExtra, TaskFileError, UsageError

MAX_LINE_BYTES = 16 * 2**20
"""Longest line of a JSONL file, and cell of a CSV file, in bytes: far above any task, far below the memory size."""
MAX_LIST_BYTES = 256 * 2**20
"""Largest file that is one JSON list, in bytes; it has to be read whole."""
_BATCH_ROWS = 256
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_FOREIGN = {
    b"\xff\xfe": "it is UTF-16; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16; save it as UTF-8",
    b"\x1f\x8b": "it is compressed with gzip; unpack it first",
    b"\x28\xb5": "it is compressed with zstandard; unpack it first",
    b"PK\x03\x04": "it is a zip archive; unpack it first",
}
_EXPECTED = "a .jsonl, .json, .csv or .parquet file"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its columns, or the fault that makes it unreadable."""

    number: int
    """Line number, or index in the list or the table, from 1."""
    columns: dict[str, Any] = field(default_factory=dict)
    fault: str = ""


def require_file(path: str | os.PathLike[str]) -> str:
    """Return the path as text; raise UsageError if it is not a regular file. The file is not opened."""
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError) as error:  # ValueError: a null character in the name.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"the task file {name!r} cannot be read: {reason}; expected {_EXPECTED}") from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise UsageError(f"the task file {name!r} is {what}; expected {_EXPECTED}")
    return name


def read_rows(path: str | os.PathLike[str]) -> tuple[str, Iterator[Row]]:
    """Return what messages call a row (line, entry or row), and the rows. Content and suffix decide."""
    name = require_file(path)
    try:
        with open(name, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UsageError(f"the task file {name!r} cannot be read: {error.strerror}") from None
    suffix = os.path.splitext(name)[1].lower()
    if head.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        return "row", _parquet(name)
    for start, advice in _FOREIGN.items():
        if head.startswith(start):
            raise TaskFileError(name, advice)
    if suffix == ".csv":
        return "row", _cells(name)
    start = head.removeprefix(_BOM).lstrip()[:1]
    if suffix == ".json" and start == b"[":
        return "entry", _listed(name)
    if start not in (b"", b"{") and suffix not in (".jsonl", ".json"):
        raise TaskFileError(name, f"neither its name nor its first line says how to read it; expected {_EXPECTED}")
    return "line", _lines(name)


# JSON


def _lines(name: str) -> Iterator[Row]:
    """Yield one JSON object per line; blank lines are skipped, but they count in the line numbers."""
    with open(name, "rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(MAX_LINE_BYTES)
                yield Row(number, fault=f"is longer than MAX_LINE_BYTES, {MAX_LINE_BYTES:,} bytes")
                continue
            if number == 1:
                raw = raw.removeprefix(_BOM)
            if raw.strip():
                try:
                    yield _object(number, _decode(raw))
                except ValueError as error:
                    yield Row(number, fault=str(error))


def _object(number: int, value: Any) -> Row:
    if isinstance(value, dict):
        return Row(number, value)
    return Row(number, fault=f"is {describe(value)}; expected an object with the columns of one task")


def _listed(name: str) -> Iterator[Row]:
    """Return the objects of one JSON list."""
    if os.path.getsize(name) > MAX_LIST_BYTES:
        limit = f"MAX_LIST_BYTES, {MAX_LIST_BYTES:,} bytes"
        raise TaskFileError(name, f"one JSON list is read whole, up to {limit}; write one object a line instead")
    with open(name, "rb") as file:
        raw = file.read().removeprefix(_BOM)
    try:
        entries = _decode(raw)
    except ValueError as error:
        raise TaskFileError(name, f"it {error}") from None
    return (_object(number, entry) for number, entry in enumerate(entries, 1))


def _decode(raw: bytes) -> Any:
    """Return the value of a JSON text; raise ValueError with a description of the fault."""
    try:
        text = raw.decode("utf-8")
        value = _DECODER.decode(text.strip())
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # Half a pair cannot be encoded.
        return value
    except UnicodeDecodeError as error:
        raise ValueError(f"is no UTF-8: byte {error.start + 1} is {raw[error.start]:#04x}") from None
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no text") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"is no JSON: {error.msg} at {line}column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        message = str(error)  # Ours, or that of an integer of more digits than Python reads.
        raise ValueError(
            message if message[:3] in ("has", "hol") else f"holds a number that is too long: {message}"
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    columns = {sys.intern(name): value for name, value in pairs}
    if len(columns) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"has the column {twice!r} twice")
    return columns


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"holds the number {text[:40]}, which is too large")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"holds {text}, which is no JSON; expected a finite number or null")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)


def describe(value: Any) -> str:
    """Describe a value briefly, in the terms of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value!r:.40}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}" + ("..." if len(value) > 40 else "") if value else "empty text"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return f"an object ({', '.join(map(str, value))[:60] or 'empty'})"


def list_names(columns: Collection[str], max_names: int = 8) -> str:
    """Return the names of columns as text; of more than `max_names`, the first ones and the number of the others."""
    more = f" and {len(columns) - max_names} more" if len(columns) > max_names else ""
    return ", ".join(map(repr, list(columns)[:max_names])) + more


def _check_names(name: str, columns: Collection[str]) -> None:
    if len(set(columns)) < len(columns):
        twice = min(column for column, count in Counter(columns).items() if count > 1)
        raise TaskFileError(name, f"the column {twice!r} is there twice")


# CSV


def _cells(name: str) -> Iterator[Row]:
    """Yield the rows of a CSV file, whose first row names the columns."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    try:
        with open(name, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            _check_names(name, header)
            for number, cells in enumerate(filter(None, rows), 1):
                if len(cells) == len(header):
                    yield Row(number, {column: cell or None for column, cell in zip(header, cells, strict=True)})
                else:
                    yield Row(number, fault=f"has {len(cells)} cells; expected {len(header)}, as the header has")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TaskFileError(name, f"it cannot be read as CSV: {error}") from None


# Parquet


def _parquet(name: str) -> Iterator[Row]:
    """Yield the rows of a parquet table."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "data", "reading a parquet file") from error
    unreadable = (pyarrow.ArrowException, OSError, ValueError, KeyError)
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(name, page_checksum_verification=True) as file:
            _check_names(name, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for columns in _batch(batch, unreadable):
                    number += 1
                    if isinstance(columns, Exception):
                        yield Row(number, fault=f"cannot be read: {_first_line(columns)}")
                    else:
                        yield _plain_row(number, columns)
    except TaskFileError:
        raise
    except unreadable as error:
        raise TaskFileError(name, f"it is no whole parquet file: after row {number}: {_first_line(error)}") from None


def _batch(batch: Any, unreadable: tuple[type[Exception], ...]) -> Iterator[dict[str, Any] | Exception]:
    """Yield the rows of a batch. If decoding fails, decode each row alone, and yield an error in its place."""
    try:
        yield from batch.to_pylist(maps_as_pydicts="strict")
        return
    except unreadable:
        pass
    for at in range(batch.num_rows):
        try:
            yield batch.slice(at, 1).to_pylist(maps_as_pydicts="strict")[0]
        except unreadable as error:
            yield error


def _plain_row(number: int, columns: dict[str, Any]) -> Row:
    for column, value in columns.items():
        try:
            columns[column] = _plain(value)
        except ValueError as error:
            return Row(number, fault=f"column {column!r} holds {error}")
    return Row(number, columns)


def _plain(value: Any) -> Any:
    """Return a table's value as JSON can hold it: dates, times and decimals as text, durations as seconds."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value}; expected a finite number or null")
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, date | time):  # A datetime is a date.
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    raise ValueError(f"{type(value).__name__}; expected text, numbers, lists or objects (images are not read)")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
