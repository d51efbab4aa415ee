"""The documents of a corpus: rows of JSONL, JSON, CSV or parquet files, and files of HTML or text, alone or in folders.

Columns are found by their usual names, or the user names them. A row or file that cannot be read becomes an
`InvalidDocument`, so that a build can count it and continue. Left out: compressed files, PDF, splitting long documents.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.envs.data.rows import Row, describe, list_names, read_rows
from palaestra.envs.search.index import Document
from palaestra.errors import MissingExtra, TaskFileError, UsageError

ROWS = (".jsonl", ".json", ".csv", ".parquet", ".pq")
PAGES = (".html", ".htm", ".xhtml")
TEXTS = (".txt", ".md", ".rst", ".text", ".markdown")
FILE_BYTES = 32 * 2**20
"""Largest file that is one document."""
_TITLE_CHARS = 500
NAMES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "contents", "content", "passage", "body", "document"),
    "title": ("title", "name", "heading"),
    "id": ("id", "_id", "docid", "doc_id", "document_id", "pid", "passage_id"),
    "url": ("url", "link", "source_url"),
}
"""Usual names of the columns; the first that a row has is used."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_BLANK_LINES = re.compile(r"[ \t\r\f\v]*\n\s*")
_TAG = re.compile(r"<[^<>]*>")
_NESTED = re.compile(rb"<(/?)(?!(?:p|li|td|th|tr|dd|dt|br|hr|img|input|meta|link|option)[\s/>])[a-zA-Z]", re.I)
"""Tags that may be nested; all others end by themselves."""
_DEPTH = 4000
_HIDDEN = ["script", "style", "noscript", "template", "svg", "nav", "head", "iframe"]
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_BLOCK_TAGS = (
    "address article aside blockquote br dd details div dl dt figcaption figure footer header hr li main ol p pre "
    "section summary table tr ul"
)
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_ENDING = ",".join(sorted(_BLOCKS | _HEADINGS))


@dataclass(frozen=True, slots=True)
class InvalidDocument:
    """A row or a file that could not be read as a document."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place} {self.reason}"


@dataclass(frozen=True)
class Columns:
    """Names of the columns of text, title, id and url; "" means that the usual names are tried."""

    text: str = ""
    title: str = ""
    id: str = ""
    url: str = ""

    def value(self, part: str, row: Mapping[str, Any]) -> Any:
        """Return the value of a part (such as "title") in a row, or None if the row has none."""
        column = getattr(self, part)
        names = (column,) if column else NAMES[part]
        return next((row[name] for name in names if row.get(name) is not None), None)


def read_corpus(path: Path, columns: Columns) -> Iterator[Document | InvalidDocument]:
    """Yield every document, and an `InvalidDocument` for each that cannot be read, always in the same order."""
    if not path.exists():
        raise UsageError(f"the corpus {path} does not exist; expected a file, or a folder of files")
    files = _files(path) if path.is_dir() else iter([path])
    has_files = False
    for file in files:
        has_files = True
        place = file.relative_to(path).as_posix() if path.is_dir() else file.name
        if file.suffix.lower() in PAGES + TEXTS:
            yield _file(file, place)
        else:
            yield from _rows(file, f"{place}, " if path.is_dir() else "", columns)
    if not has_files:
        kinds = " ".join(ROWS + PAGES + TEXTS)
        raise UsageError(f"the folder {path} has no file that can be read; expected {kinds}")


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that can be read, in the order of their names; hidden ones are left out."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(names):
            if name[0] != "." and os.path.splitext(name)[1].lower() in ROWS + PAGES + TEXTS:
                yield Path(here, name)


# Rows


def _rows(file: Path, where: str, columns: Columns) -> Iterator[Document | InvalidDocument]:
    try:
        called, rows = read_rows(file)
        for row in rows:
            place = f"{where}{called} {row.number}"
            outcome = row.fault or _document(row, f"{where}{row.number}" if where else str(row.number), columns)
            yield InvalidDocument(place, outcome) if isinstance(outcome, str) else outcome
    except TaskFileError as error:
        if not where:
            raise
        yield InvalidDocument(where.rstrip(", "), str(error).partition(": ")[2])


def _document(row: Row, number: str, columns: Columns) -> Document | str:
    """Return the document of a row, or the reason why the row is invalid."""
    text, title, id, url = (columns.value(part, row.columns) for part in NAMES)
    if text is None:
        expected = repr(columns.text) if columns.text else f"any of {', '.join(NAMES['text'])}"
        return (
            f"has no text: the columns are {list_names(row.columns)}; expected {expected} (--text COLUMN names another)"
        )
    if not isinstance(text, str):
        return f"has {describe(text)} for a text"
    if not text.strip():
        return "has an empty text"
    if title is None and text.startswith('"') and "\n" in text[:_TITLE_CHARS]:
        title, text = split_title(text)
    id = number if isinstance(id, bool | list | dict | None) or id == "" else id
    return clean(str(id), title if isinstance(title, str) else "", text, url or "")


def split_title(contents: str) -> tuple[str, str]:
    """Split a text in Search-R1's format, whose first line is the title in quotes, into title and text."""
    title, _, text = contents.partition("\n")
    return title.strip('"'), text


def clean(id: str, title: str, text: str, url: Any = "") -> Document:
    """Return a document with valid parts: Unicode text, an id and a title of one line each, never an empty title."""
    parts = [_one_line(part)[:2000] for part in (id, title or text[:200], url if isinstance(url, str) else "")]
    if not title:
        parts[1] = f"{parts[1][:70].rsplit(' ', 1)[0]} ..." if len(parts[1]) > 70 else parts[1]
    return Document(parts[0], parts[1], valid_text(text), parts[2])


def valid_text(text: str) -> str:
    """Replace surrogates in a text, because UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _one_line(text: str) -> str:
    return _CONTROL.sub(" ", valid_text(text)).strip()


# Files


def _file(file: Path, place: str) -> Document | InvalidDocument:
    """Return a file as one document; its path in the corpus is the id."""
    try:
        size = file.stat().st_size
        if size > FILE_BYTES:
            return InvalidDocument(place, f"has {size:,} bytes; at most {FILE_BYTES:,} are read as one document")
        data = file.read_bytes()
    except OSError as error:
        return InvalidDocument(place, f"cannot be read: {error.strerror}")
    if file.suffix.lower() in PAGES:
        title, text = page_text(data)
    else:
        if b"\0" in data[:8192]:
            return InvalidDocument(place, "is no text: it holds null bytes")
        text = data.decode("utf-8", "replace")
        first = text.lstrip().partition("\n")[0]
        title = first.lstrip("# ").strip() if first.startswith("# ") else file.stem
    if not text.strip():
        return InvalidDocument(place, "has no text")
    return clean(place, title or file.stem, text)


def _too_deep(data: bytes) -> bool:
    """Return whether the page's tags are nested too deeply for the parser: 100,000 open tags would take minutes."""
    depth = 0
    if data.count(b"<") > _DEPTH:
        for match in _NESTED.finditer(data):
            depth = max(0, depth - 1 if match[1] else depth + 1)
            if depth > _DEPTH:
                return True
    return False


def page_text(data: bytes) -> tuple[str, str]:
    """Return the title of an HTML page, and its text: each block on its own line, headings as in Markdown."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        raise MissingExtra("selectolax", "search", "reading HTML") from error
    if _too_deep(data):
        return "", _TAG.sub(" ", data.decode("utf-8", "replace"))
    tree = LexborHTMLParser(data)
    heading = tree.css_first("title") or tree.css_first("h1")
    title = " ".join(heading.text().split()) if heading else ""
    tree.strip_tags(_HIDDEN)
    if tree.body is None:
        return title, ""
    for node in tree.body.css(_ENDING):  # What follows a block begins a line too.
        node.insert_after("\n")
    parts: list[str] = []
    for node in tree.body.traverse(include_text=True):
        if node.tag == "-text":
            parts.append(node.text_content or "")
        elif node.tag in _HEADINGS:
            parts.append(f"\n{'#' * int(node.tag[1])} ")
        elif node.tag in _BLOCKS:
            parts.append("\n")
        elif node.tag in ("td", "th"):
            parts.append(" | ")
    return title, _BLANK_LINES.sub("\n", "".join(parts).replace("¶\n", "\n")).strip()
