"""A parsed page: its text, its controls and its forms. It never changes, so sessions share it.

The CACHED_PAGES last used pages of up to CACHED_CHARS are kept, and are not parsed again. Not here: `reading` writes
the text, and `forms` sends forms.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from palaestra.envs.browser.format import finish_lines, without_marks
from palaestra.envs.browser.text.bounds import MAX_CHARS, bounded
from palaestra.envs.browser.text.elements import Element, FieldValue
from palaestra.envs.browser.text.reading import MAX_ELEMENTS, PageReader
from palaestra.errors import MissingExtra

CACHED_CHARS = 100_000
CACHED_PAGES = 128
_RAW = re.compile(r"<(script|style|iframe|noembed|noframes|xmp|plaintext)[ >].*?</\1>", re.DOTALL)
"""Elements whose content lexbor writes unescaped, including tags."""


@dataclass(frozen=True, slots=True, eq=False)
class ParsedPage:
    """A parsed page."""

    source: str
    """HTML of the page as lexbor wrote it."""
    title: str
    lines: tuple[str, ...]
    elements: tuple[Element, ...] = ()
    """All elements, in the order of the page."""
    numbered: tuple[int, ...] = ()
    """Index in `elements` of each numbered element."""
    forms: tuple[Mapping[str, str], ...] = ()
    """Attributes of each form, in the order of the page."""
    base: str = ""
    refresh: tuple[float, str] | None = None
    """Delay in seconds, and the address to go to."""
    note: str = ""

    def holding(self, values: Mapping[int, FieldValue]) -> "ParsedPage":
        """Return the same page with new values of elements; the keys are indices in `elements`."""
        return _read(self.source, values, self.note)

    def __deepcopy__(self, memo: object) -> "ParsedPage":
        return self


def document_of(text: str) -> ParsedPage:
    """Parse HTML into a page; a small page comes from the cache if it was parsed before."""
    return _cached(text) if len(text) <= CACHED_CHARS else _parsed(text)


def plain_document(text: str) -> ParsedPage:
    """Return a page that shows plain text, such as JSON."""
    note = f"only the first {MAX_CHARS} of {len(text)} characters are shown" if len(text) > MAX_CHARS else ""
    lines = without_marks(text[:MAX_CHARS]).splitlines()
    return ParsedPage("", "", finish_lines([line.rstrip() for line in lines]), note=note)


def html_parser() -> Any:
    """Return the parser's class. Browsers call this early, to report a missing package before an agent needs it."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        raise MissingExtra("selectolax", "browser", "the text browser") from error
    return LexborHTMLParser


def _parsed(text: str) -> ParsedPage:
    text, note = bounded(text)
    # 1: without lexbor's events, which take quadratic time over the options of a select.
    written = html_parser()(text.encode("utf-8", "replace"), options=1).html or ""
    return _read(_RAW.sub("", without_marks(written)), {}, note)


_cached = lru_cache(maxsize=CACHED_PAGES)(_parsed)


def _read(source: str, values: Mapping[int, FieldValue], note: str) -> ParsedPage:
    reader = PageReader(source, values)
    lines = reader.run()
    if len(reader.numbered) >= MAX_ELEMENTS:
        note = note or f"only the first {MAX_ELEMENTS} links and controls are numbered"
    elements, numbered, forms = tuple(reader.elements), tuple(reader.numbered), tuple(reader.forms)
    return ParsedPage(source, reader.title, lines, elements, numbered, forms, reader.base, reader.refresh, note)
