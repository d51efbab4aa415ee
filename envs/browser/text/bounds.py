"""What is cut off a page before it is parsed: what would take a parser quadratic time, or endless memory.

A browser's parser looks through all open elements at many tags, and through all attributes of a tag at each. So a page
of 500 KB with 100,000 nested tags takes half a minute, and one tag with 100,000 attributes as long.
"""

import re

MAX_CHARS = 2_000_000
MAX_TAGS = 60_000
MAX_DEPTH = 1_000
MAX_ATTRIBUTES = 200
SMALL = 20_000
"""Characters of a page that cannot take long, whatever is in it."""
_TAG = re.compile(
    r"<(/?)([a-zA-Z][^\s/>]*+)(?:[\s/]++(?:[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s>\"'][^\s>]*+)?+)?+)?+)"
    rf"{{0,{MAX_ATTRIBUTES}}}+(>?)"
)
_LONE = "area base br col embed hr img input link meta param source track wbr"
_UNCLOSED = "p li dt dd option optgroup tr td th thead tbody tfoot colgroup html head body"
VOID = frozenset(_LONE.split())
"""Tags without an end tag."""
_NOT_NESTED = VOID | frozenset(_UNCLOSED.split())
"""And those whose end tag may be left out."""


def bounded(text: str) -> tuple[str, str]:
    """As much of a page as is read, and a note where that is not all."""
    if len(text) <= SMALL:
        return text, ""
    end = _safe_end(text, min(len(text), MAX_CHARS))
    if end == len(text):
        return text, ""
    return text[
        :end
    ], f"the page is too large or too deeply nested: only its first {end} of {len(text)} characters are shown"


def _safe_end(text: str, end: int) -> int:
    """Where to stop."""
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
