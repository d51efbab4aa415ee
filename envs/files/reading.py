"""Reads the lines of a file of any kind, in a process that can be killed, because files are not trusted.

If reading needs too much time or memory, or ends the process, the agent gets an error. Results are cached by the bytes
of the file, because the episodes of a group read the same files. `place` finds the file, and `envs.core.window` chooses
the lines that are shown.
"""

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec

from palaestra.envs.core.window import WIDTH, wrapped_line
from palaestra.envs.files import archive, documents
from palaestra.envs.files.kinds import AUDIO, IMAGES, kind_of
from palaestra.envs.files.limits import ReadLimits, UnreadableFile
from palaestra.envs.files.place import ResolvedFile
from palaestra.envs.files.plain_text import text_lines
from palaestra.envs.rewards.limited_processes import LimitedProcesses
from palaestra.errors import MissingExtra, ToolError

SECONDS = 20.0
"""Longest time for one file, in seconds."""
MEGABYTES = 1024
"""Address space of the reading process, in megabytes."""
KEPT_FILES = 64
_SOFT_SHARE = 0.7
"""Share of its time after which a reader stops between two lines, so that the lines read so far are returned."""
_LIBRARIES = {"pypdf": "pypdf", "docx": "python-docx", "pptx": "python-pptx", "openpyxl": "openpyxl"}


async def lines_of(file: ResolvedFile, limits: ReadLimits, seconds: float) -> Sequence[str]:
    """Return the wrapped lines of a file. Raise `ToolError` if it cannot be read."""
    question, key = await asyncio.to_thread(_request, file, limits, min(seconds, SECONDS))
    answer = await _processes.ask("files", question, seconds=seconds, key=key)
    path = "/".join([file.name, *file.inner])
    if answer is None:
        raise ToolError(
            f"{path} cannot be read: it took more than {min(seconds, SECONDS):g} s or {MEGABYTES} MB, "
            "or broke its reader"
        )
    result = json.loads(answer)
    if "lines" not in result:
        raise ToolError(f"{path} {result['error']}")
    lines: list[str] = result["lines"]
    return lines


def _request(file: ResolvedFile, limits: ReadLimits, seconds: float) -> tuple[str, str]:
    """Return the request to the reading process, and its cache key. This takes a while for large files."""
    about = {"name": file.name, "inner": list(file.inner), "limits": asdict(limits), "seconds": seconds}
    key = json.dumps(about | {"sha256": hashlib.sha256(file.data).hexdigest()})
    return json.dumps(about | {"data": base64.b64encode(file.data).decode()}), key


@cache  # An error is not cached, so a missing library is checked again.
def require_readers() -> None:
    """Raise `MissingExtra` if the library for a kind of file is not installed."""
    for module, library in (*_LIBRARIES.items(), ("selectolax", "selectolax")):
        if find_spec(module) is None:
            raise MissingExtra(library, "files", "reading files")


class FileReadJob:
    """The functions that the reading processes run."""

    @staticmethod
    def load(setting: str) -> str:
        """Do nothing: each library is loaded with the first file that needs it."""
        return setting

    @staticmethod
    def answer(setting: str, question: str) -> str:
        """Return the lines of a file, or an error, as JSON."""
        request = json.loads(question)
        limits, until = ReadLimits(**request["limits"]), time.monotonic() + _SOFT_SHARE * request["seconds"]
        try:
            data = base64.b64decode(request["data"])
            if request["inner"]:
                data = archive.member(data, request["inner"], limits, limits.unpacked_bytes)
            name = "/".join([request["name"], *request["inner"]])
            return json.dumps({"lines": list(_bounded(_lines(data, name, limits), limits, until))})
        except UnreadableFile as error:
            return json.dumps({"error": str(error)})
        except MemoryError:
            raise
        except Exception as error:  # The error of a library for a broken file.
            return json.dumps({"error": f"is broken ({type(error).__name__}: {str(error)[:200]})"})


def _lines(data: bytes, name: str, limits: ReadLimits) -> Iterator[str]:
    """Yield the lines of a file. The content decides its kind; the name does not matter."""
    kind = kind_of(data)
    if kind == "pdf":
        return documents.pdf_lines(data, limits)
    if kind == "zip":
        opened = archive.opened(data)
        office = archive.office_kind(opened, limits)
        return OFFICE[office](data, limits) if office else archive.listing(opened, name, limits)
    if kind == "ole":
        raise UnreadableFile("is an Office file of the old form, or an encrypted one; docx, pptx and xlsx are read")
    if kind:
        tool = "image2text" if kind in IMAGES else "audio2text" if kind in AUDIO else ""
        raise UnreadableFile(
            f"holds no text: it is {kind}, {len(data)} bytes" + f"; {tool} is for such files" * bool(tool)
        )
    return text_lines(data)


OFFICE = {"docx": documents.docx_lines, "pptx": documents.pptx_lines, "xlsx": documents.xlsx_lines}


def _bounded(texts: Iterator[str], limits: ReadLimits, until: float) -> Iterator[str]:
    """Yield the wrapped lines, as many as the limits of characters and time allow."""
    left = limits.chars
    for text in texts:
        for line in text.splitlines():
            # A very long line is cut at fixed positions: breaking it between words takes quadratic time.
            whole = len(line) < 50 * WIDTH
            for part in wrapped_line(line) if whole else (line[at : at + WIDTH] for at in range(0, len(line), WIDTH)):
                left -= len(part) + 1
                if left < 0:
                    yield limits.cut("chars")
                    return
                yield part
        if time.monotonic() > until:
            yield "(cut here: reading the rest would take too long)"
            return


_processes = LimitedProcesses(FileReadJob, SECONDS, MEGABYTES, cached=KEPT_FILES)
