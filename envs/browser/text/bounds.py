"""Limits on a page before it is parsed, because a parser needs quadratic time or endless memory for some pages.

At many tags, a parser searches all open elements; at each attribute, it searches all other attributes of the tag. So a
page of 500 KB with 100,000 nested tags takes half a minute, and so does one tag with 100,000 attributes.
"""

import re

from palaestra.envs.browser.text.tags import VOID

MAX_CHARS = 2_000_000
MAX_TAGS = 40_000
MAX_DEPTH = 1_000
MAX_ATTRIBUTES = 200
SMALL = 65_536
"""Number of characters that are parsed within half a second, for any content."""
_TAG = re.compile(
    r"<(/?)([a-zA-Z][^\s/>]*+)(?:[\s/]++(?:[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s>\"'][^\s>]*+)?+)?+)?+)"
    rf"{{0,{MAX_ATTRIBUTES}}}+(>?)"
)
_SCRIPT = re.compile(r"<(script|style)(?=[\s/>])", re.IGNORECASE)
_SCRIPT_END = {name: re.compile(rf"</{name}[^>]{{0,200}}>?", re.IGNORECASE) for name in ("script", "style")}
_UNCLOSED = "p li dt dd option optgroup tr td th thead tbody tfoot colgroup html head body"
_NOT_NESTED = VOID | frozenset(_UNCLOSED.split())
"""Names of tags without an end tag, or whose end tag may be left out."""


def bounded(text: str) -> tuple[str, str]:
    """Return the part of a page to parse, and a note if that is not the whole page."""
    if len(text) <= SMALL:
        return text, ""
    text = _without_scripts(text)
    end = _safe_end(text, min(len(text), MAX_CHARS))
    if end == len(text):
        return text, ""
    return text[:end], f"too large or too deeply nested: only the first {end} of {len(text)} characters are shown"


def _without_scripts(text: str) -> str:
    """Return the page without scripts and styles, because a `<` in them begins no tag."""
    parts, at = [], 0
    for begin in _SCRIPT.finditer(text):
        if begin.start() < at:
            continue
        parts.append(text[at : begin.start()])
        end = _SCRIPT_END[begin[1].lower()].search(text, begin.end())
        if end is None:
            return "".join(parts)
        at = end.end()
    parts.append(text[at:])
    return "".join(parts)


def _safe_end(text: str, end: int) -> int:
    """Return the position, at most `end`, at which the page must be cut to keep the limits."""
    open_tags: dict[str, int] = {}
    depth = 0
    for count, tag in enumerate(_TAG.finditer(text, 0, end)):
        closing, name, complete = tag.groups()
        if count >= MAX_TAGS or not complete:
            return tag.start()
        name = name.lower()
        if name in _NOT_NESTED:
            continue
        if not closing:
            depth += 1
            open_tags[name] = open_tags.get(name, 0) + 1
            if depth > MAX_DEPTH:
                return tag.start()
        elif open_tags.get(name):
            depth -= 1
            open_tags[name] -= 1
    return end
