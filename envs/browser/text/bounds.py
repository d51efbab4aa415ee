"""What is cut off a page before it is parsed: what would take a parser quadratic time, or endless memory.

A browser's parser looks through all open elements at many tags, and through all attributes of a tag at each. So a page
of 500 KB with 100,000 nested tags takes half a minute, and one tag with 100,000 attributes as long.
"""

import re

MAX_CHARS = 2_000_000
MAX_TAGS = 40_000
MAX_DEPTH = 1_000
MAX_ATTRIBUTES = 200
SMALL = 65_536
"""Characters of a page that is parsed within half a second, whatever is in it."""
_TAG = re.compile(
    r"<(/?)([a-zA-Z][^\s/>]*+)(?:[\s/]++(?:[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s>\"'][^\s>]*+)?+)?+)?+)"
    rf"{{0,{MAX_ATTRIBUTES}}}+(>?)"
)
_SCRIPT = re.compile(r"<(script|style)(?=[\s/>])", re.IGNORECASE)
_SCRIPT_END = {name: re.compile(rf"</{name}[^>]{{0,200}}>?", re.IGNORECASE) for name in ("script", "style")}
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
    text = _without_scripts(text)
    end = _safe_end(text, min(len(text), MAX_CHARS))
    if end == len(text):
        return text, ""
    return text[:end], f"too large or too deeply nested: only the first {end} of {len(text)} characters are shown"


def _without_scripts(text: str) -> str:
    """Without scripts and styles, in which a `<` begins no tag. What looks like one and is none is lost as well."""
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
