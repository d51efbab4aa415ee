"""Reads text files as lines, in any encoding. Long JSON and XML is broken into lines; of HTML the visible text is read.

XML is never parsed, so its entities are never expanded. `reading` limits time and memory.
"""

import codecs
import json
import re
from collections.abc import Iterator

from palaestra.envs.files.limits import UnreadableFile

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?([A-Za-z0-9_.:-]{2,40})""")
_HEAD_BYTES = 4096
_LONG_LINE = 500
_UTF16_ZERO_SHARE = 0.3
"""Share of zeros at every second byte from which a file counts as UTF-16."""
_BLOCKS = frozenset(
    ("address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "footer", "h1", "h2", "h3", "h4", "h5", "h6",
     "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tbody", "thead", "title", "tr", "ul")
)  # fmt: skip
_UNSEEN = ("script", "style", "template", "noscript")


def text_lines(data: bytes) -> Iterator[str]:
    """Yield the lines of a file by its content. A note comes first if the encoding was guessed."""
    text, note = decoded(data)
    if note:
        yield note
    start = text[:_HEAD_BYTES].lstrip().lower()
    if start.startswith(("<!doctype html", "<html")) or ("<html" in start and start.startswith("<")):
        yield from _html(data if note == "" else text.encode())
    elif start.startswith("<") and _has_long_line(text):
        yield from re.sub(r">\s*<", ">\n<", text).splitlines()
    elif start.startswith(("{", "[")) and _has_long_line(text):
        yield from _json(text).splitlines()
    else:
        yield from text.splitlines()


def decoded(data: bytes) -> tuple[str, str]:
    """Return the text, and a note on its encoding ("" for none)."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return data.decode(name, "replace"), ""
    head = data[:_HEAD_BYTES]
    if b"\0" in head:
        half = max(len(head) // 2, 1)
        for name, zeros in (("utf-16-le", head[1::2].count(0)), ("utf-16-be", head[::2].count(0))):
            if zeros > _UTF16_ZERO_SHARE * half and zeros > 2 * (head.count(0) - zeros):
                return data.decode(name, "replace"), f"(read as {name}, which nothing in it says)"
        raise UnreadableFile("holds bytes that are no text")
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        pass
    for encoding in _DECLARED.findall(head[:1024]):
        try:
            return data.decode(encoding.decode()), f"(read as {encoding.decode()}, as it says)"
        except (LookupError, ValueError):
            continue
    return data.decode("cp1252", "replace"), "(not UTF-8; read as cp1252, so some letters may be wrong)"


def _has_long_line(text: str) -> bool:
    return any(len(line) > _LONG_LINE for line in text.splitlines())


def _json(text: str) -> str:
    """Return a JSON document with indentation; any other text unchanged."""
    try:
        return json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _html(data: bytes) -> Iterator[str]:
    """Yield the text of a page, one line per block. The cells of a row share a line."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(data)
    tree.strip_tags(list(_UNSEEN))
    line: list[str] = []
    for node in tree.root.traverse(include_text=True) if tree.root is not None else ():
        if node.tag == "-text":
            line.append(node.text_content or "")
        elif node.tag in _BLOCKS:
            if line_text := " ".join("".join(line).split()):
                yield line_text
            line = [f"{'#' * int(node.tag[1])} "] if node.tag in ("h1", "h2", "h3", "h4", "h5", "h6") else []
            line += ["- "] * (node.tag == "li")
        elif node.tag in ("td", "th"):
            line += [" | "] * bool(line)
        elif node.tag == "img" and (words := node.attributes.get("alt")):
            line.append(f"[image: {words}]")
    if line_text := " ".join("".join(line).split()):
        yield line_text
