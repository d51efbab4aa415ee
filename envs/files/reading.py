"""The lines of a file, whatever it holds, for a file comes from a stranger: read in a process that can be killed.

A file that takes its process too long, too much memory, or its life is told to the agent as such. What was read is kept
by the bytes of the file: the episodes of a group read the same ones. Left out: which file (`place`), and what of it is
shown (`envs.core.window`).
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
from palaestra.envs.files.limits import ReadLimits, Unreadable
from palaestra.envs.files.place import Found
from palaestra.envs.files.plain_text import text_lines
from palaestra.envs.rewards.limited_processes import LimitedProcesses
from palaestra.errors import MissingExtra, ToolError

SECONDS = 20.0
"""How long one file may take, at most."""
MEGABYTES = 1024
"""Address space of the process that reads."""
KEPT_FILES = 64
_SOFT = 0.7
"""The share of its time after which a reader stops between two lines, so that what it has is not lost."""
_LIBRARIES = {"pypdf": "pypdf", "docx": "python-docx", "pptx": "python-pptx", "openpyxl": "openpyxl"}


async def lines_of(found: Found, limits: ReadLimits, seconds: float) -> Sequence[str]:
    """The lines of a file, wrapped. ToolError for one that cannot be read."""
    question, key = await asyncio.to_thread(_asked, found, limits, min(seconds, SECONDS))
    answer = await _processes.ask("files", question, seconds=seconds, key=key)
    path = "/".join([found.name, *found.inner])
    if answer is None:
        raise ToolError(
            f"{path} cannot be read: it took more than {min(seconds, SECONDS):g} s or {MEGABYTES} MB, "
            "or broke its reader"
        )
    said = json.loads(answer)
    if "lines" not in said:
        raise ToolError(f"{path} {said['error']}")
    lines: list[str] = said["lines"]
    return lines


def _asked(found: Found, limits: ReadLimits, seconds: float) -> tuple[str, str]:
    """What a process is asked, and a short name for it. Large files take a while."""
    about = {"name": found.name, "inner": list(found.inner), "limits": asdict(limits), "seconds": seconds}
    key = json.dumps(about | {"sha256": hashlib.sha256(found.data).hexdigest()})
    return json.dumps(about | {"data": base64.b64encode(found.data).decode()}), key


@cache  # An absence is looked for again, since an error is not kept.
def require_readers() -> None:
    """Refuse to begin where a kind of file could not be read."""
    for module, library in (*_LIBRARIES.items(), ("selectolax", "selectolax")):
        if find_spec(module) is None:
            raise MissingExtra(library, "files", "reading files")


class Reading:
    """What the processes run."""

    @staticmethod
    def load(setting: str) -> str:
        """Nothing: each library is loaded with the first file that needs it."""
        return setting

    @staticmethod
    def answer(setting: str, question: str) -> str:
        """The lines of a file, or why there are none."""
        asked = json.loads(question)
        limits, until = ReadLimits(**asked["limits"]), time.monotonic() + _SOFT * asked["seconds"]
        try:
            data = base64.b64decode(asked["data"])
            if asked["inner"]:
                data = archive.member(data, asked["inner"], limits, limits.unpacked_bytes)
            name = "/".join([asked["name"], *asked["inner"]])
            return json.dumps({"lines": list(_bounded(_lines(data, name, limits), limits, until))})
        except Unreadable as error:
            return json.dumps({"error": str(error)})
        except MemoryError:
            raise
        except Exception as error:  # A library's own words for a broken file.
            return json.dumps({"error": f"is broken ({type(error).__name__}: {str(error)[:200]})"})


def _lines(data: bytes, name: str, limits: ReadLimits) -> Iterator[str]:
    """By its content alone."""
    kind = kind_of(data)
    if kind == "pdf":
        return documents.pdf_lines(data, limits)
    if kind == "zip":
        opened = archive.opened(data)
        office = archive.office_kind(opened, limits)
        return OFFICE[office](data, limits) if office else archive.listing(opened, name, limits)
    if kind == "ole":
        raise Unreadable("is an Office file of the old form, or an encrypted one; docx, pptx and xlsx are read")
    if kind:
        tool = "image2text" if kind in IMAGES else "audio2text" if kind in AUDIO else ""
        raise Unreadable(f"holds no text: it is {kind}, {len(data)} bytes" + f"; {tool} is for such files" * bool(tool))
    return text_lines(data)


OFFICE = {"docx": documents.docx_lines, "pptx": documents.pptx_lines, "xlsx": documents.xlsx_lines}


def _bounded(texts: Iterator[str], limits: ReadLimits, until: float) -> Iterator[str]:
    """The lines, wrapped, as many as characters and time allow."""
    left = limits.chars
    for text in texts:
        for line in text.splitlines():
            # A line without an end is cut: breaking it between words takes time by its square.
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


_processes = LimitedProcesses(Reading, SECONDS, MEGABYTES, kept=KEPT_FILES)
