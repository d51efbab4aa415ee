"""A page of HTML as numbered text, its controls and forms, without running anything of it.

lexbor builds the tree as a browser would, and writes it out again; that text, in which every tag is closed and every
attribute quoted, is read once from left to right. So nothing here recurses, however deep a page is nested, and a page
costs one Python step a tag. Values that an agent has put into controls are given at each reading. Left out: styles
other than `display: none` on the element itself, and sending forms (`forms`). The format: `envs.browser.format`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from palaestra.envs.browser.format import CLOSE, bracket, chosen, finished, squeezed, without_marks
from palaestra.envs.browser.text.bounds import MAX_CHARS, VOID, bounded
from palaestra.errors import MissingExtra

Value = str | bool | tuple[int, ...]
"""What a control holds: a text, whether it is checked, or which options are chosen."""
CACHED_CHARS = 100_000
"""Longer pages are not kept for the next session that opens them."""
MAX_ELEMENTS = 5_000
_ATTRIBUTES = r"(?: [^\s>/]+?=\"[^\"]*\")*+"
_TOKEN = re.compile(r"([^<]++)|<(?:(/?)([a-zA-Z][^\s>/]*)(" + _ATTRIBUTES + r")[^>]*>|!--.*?-->|[^>]*>)", re.DOTALL)
_RAW = re.compile(r"<(script|style|iframe|noembed|noframes|xmp|plaintext)[ >].*?</\1>", re.DOTALL)
"""Elements whose content is written out as it is, tags and all."""
_ATTRIBUTE = re.compile(r' ([^\s>/]+?)="([^"]*)"')
_LABEL = re.compile(r"<label(" + _ATTRIBUTES + r")[^>]*>(.*?)</label>", re.DOTALL)
_IDS = re.compile(r'<(?:input|select|textarea|button)[^<>]*? id="([^"]*)"')
_INSIDE = re.compile(r"<(?:input|select|textarea)[ >]")
_NO_TEXT = re.compile(r"<select[ >].*?</select>|<textarea[ >].*?</textarea>|<[^>]*>", re.DOTALL)
_HIDDEN = re.compile(r' (?:hidden="|aria-hidden="true"|style="[^"]*display:\s*none)', re.IGNORECASE)
_SCHEME = re.compile(r"\s*(?!https?:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_REFRESH = re.compile(r"\s*(\d+)[^;,]*(?:[;,\s]\s*(?:url\s*=\s*)?['\"]?([^'\"]*))?", re.IGNORECASE)
_DEAD = frozenset({"template", "noscript", "svg", "object", "math"})
_CONTROLS = frozenset({"input", "select", "textarea", "button"})
_SENT = _CONTROLS | {"option", "form"}
"""What counts where it is hidden too."""
_BUTTONS = frozenset({"submit", "button", "reset", "image"})
_OTHERS = "hidden password number range date datetime-local month time week color checkbox radio file"
_FIELDS = frozenset({"text", "search", "email", "url", "tel"})
_TYPES = _BUTTONS | _FIELDS | frozenset(_OTHERS.split())
_BLOCKS = (
    "address article aside body center dd details dialog div dl dt fieldset figcaption figure footer form header "
    "hgroup html legend main menu nav optgroup p search section summary"
)
_SOFT = frozenset(_BLOCKS.split())
_HEADINGS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)}
_STRONG = frozenset({*_HEADINGS, "ul", "ol", "li", "table", "caption", "pre", "blockquote", "tr"})


@dataclass(frozen=True, slots=True)
class Element:
    """What can be acted on, or is sent with a form."""

    number: int
    """0 where it is not shown."""
    tag: str
    kind: str
    attributes: Mapping[str, str]
    value: Value = ""
    form: int = -1
    """Which form it stands in."""
    options: tuple[tuple[str, str, bool], ...] = ()
    """Of a select: text, value, whether it is disabled."""

    @property
    def disabled(self) -> bool:
        """Neither acted on nor sent."""
        return "disabled" in self.attributes


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A page that was read. It never changes, so sessions share it."""

    source: str
    """As lexbor wrote it out."""
    title: str
    lines: tuple[str, ...]
    elements: tuple[Element, ...]
    """All, in the order of the page."""
    numbered: tuple[int, ...]
    """Where in `elements` each number stands."""
    forms: tuple[Mapping[str, str], ...]
    """Attributes of each form."""
    base: str = ""
    refresh: tuple[float, str] | None = None
    """Seconds, and where it leads."""
    note: str = ""

    def holding(self, values: Mapping[int, Value]) -> "Document":
        """The same page, with these values of elements by their place."""
        return read(self.source, values, self.note)

    def __deepcopy__(self, memo: object) -> "Document":
        return self


@lru_cache(maxsize=128)
def _kept(text: str) -> Document:
    return _parsed(text)


def document_of(text: str) -> Document:
    """A page from its HTML."""
    return _kept(text) if len(text) <= CACHED_CHARS else _parsed(text)


def plain_document(text: str) -> Document:
    """A text or data file."""
    text, note = text[: CACHED_CHARS * 10], ""
    return Document(
        "", "", finished([line.rstrip() for line in without_marks(text).splitlines()]), (), (), (), note=note
    )


def _parsed(text: str) -> Document:
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        raise MissingExtra("selectolax", "browser", "the text browser") from error
    text, note = bounded(text)
    # Without events, as lexbor calls them: they take quadratic time over the options of a select.
    written = LexborHTMLParser(text.encode("utf-8", "replace"), options=1).html or ""
    return read(_RAW.sub("", without_marks(written)), {}, note)


def read(source: str, values: Mapping[int, Value], note: str = "") -> Document:
    """The document of what lexbor wrote out, in one pass."""
    reader = _Reader(source, values)
    reader.run()
    if len(reader.numbered) >= MAX_ELEMENTS:
        note = note or f"only the first {MAX_ELEMENTS} links and controls are numbered"
    return Document(
        source,
        reader.title,
        finished(reader.lines),
        tuple(reader.elements),
        tuple(reader.numbered),
        tuple(reader.forms),
        reader.base,
        reader.refresh,
        note,
    )


def attributes_of(written: str) -> dict[str, str]:
    """The attributes of a tag, decoded."""
    found = dict(_ATTRIBUTE.findall(written))
    return {name: _decoded(value) for name, value in found.items()} if "&" in written else found


def _decoded(text: str) -> str:
    """The five entities that lexbor writes."""
    text = text.replace("&nbsp;", " ").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
    return text.replace("&amp;", "&")


class _Reader:
    """One pass over a page."""

    def __init__(self, source: str, values: Mapping[int, Value]) -> None:
        self.source, self.values = source, values
        self.title, self.base = "", ""
        self.refresh: tuple[float, str] | None = None
        self.lines: list[str] = []
        self.elements: list[Element] = []
        self.numbered: list[int] = []
        self.forms: list[Mapping[str, str]] = []
        self.form = -1
        self.parts: list[str] = []
        self.prefix = ""
        self.lists: list[int] = []
        """Of each list around us: the number of its next item, or -1."""
        self.tables: list[int] = []
        """Of each table around us: cells of the row so far."""
        self.in_cell = False
        self.open: list[tuple[Any, ...]] = []
        """What takes the text up to its end tag: a link, a button, a select, a textarea, a title."""
        self.alts: list[str] = []
        """Of the images in a link or button, which name it where it has no text."""
        self.pre = self.muted = self.hidden = False
        self.names, self.bound = _labels(source) if "<label" in source else ({}, frozenset())
        self.at = 0

    def run(self) -> None:
        """Read it all."""
        skip = depth = 0
        dead = False
        for token in _TOKEN.finditer(self.source):
            text, closing, tag, written = token.groups()
            if text is not None:
                if not (skip or self.muted):
                    self.parts.append(_decoded(text) if "&" in text else text)
                elif skip and not dead and self.open and self.open[-1][0] in ("option", "textarea"):
                    self.parts.append(_decoded(text))  # Hidden, and sent all the same.
                continue
            if tag is None:
                continue
            if closing:
                depth -= 1
                if not skip or (tag in _SENT and not dead):
                    self.end(tag)
                if depth < skip:
                    skip, dead, self.hidden = 0, False, False
                continue
            if tag not in VOID:
                depth += 1
            if skip:
                if tag in _SENT and not dead:
                    self.at = token.start()
                    self.start(tag, written)
                continue
            if tag in _DEAD or (written and _HIDDEN.search(written)):
                if tag in _SENT:
                    self.at, self.hidden = token.start(), True
                    self.start(tag, written)
                    self.hidden = False
                if tag not in VOID:
                    skip, dead, self.hidden = depth, tag in _DEAD, True
                continue
            self.at = token.start()
            self.start(tag, written)
        self.flush()

    def start(self, tag: str, written: str) -> None:
        """A tag begins."""
        if tag in _SOFT:
            self.block()
            if tag == "form":
                self.form = len(self.forms)
                self.forms.append(attributes_of(written))
        elif tag in _STRONG or tag == "td" or tag == "th":
            self.strong(tag)
        elif tag == "a":
            self.begin(tag, attributes_of(written))
        elif tag in _CONTROLS or tag == "option":
            self.control(tag, attributes_of(written))
        elif tag == "br":
            self.parts.append("\n") if self.pre else self.block()
        elif tag == "img":
            if alt := squeezed(attributes_of(written).get("alt", "")):
                (self.alts if self.open else self.parts).append(alt if self.open else f"(image: {alt})")
        elif tag == "hr":
            self.flush()
            self.lines.append("---")
        elif tag == "label":
            self.muted = self.at in self.bound
        elif tag == "title":
            self.begin(tag, {})
        elif tag == "base":
            self.base = self.base or attributes_of(written).get("href", "")
        elif tag == "meta":
            self.meta(attributes_of(written))

    def end(self, tag: str) -> None:
        """A tag ends."""
        if self.open and self.open[-1][0] == tag:
            self.finish()
        elif tag in _SOFT:
            self.block()
            if tag == "form":
                self.form = -1
        elif tag in _STRONG or tag == "td" or tag == "th":
            self.strong_end(tag)
        elif tag == "label":
            self.muted = False

    # Text and lines.

    def block(self) -> None:
        """Where a block begins or ends."""
        if self.open or self.in_cell:
            self.parts.append(" ")
        else:
            self.flush()

    def flush(self) -> None:
        """End the line."""
        if not self.parts or self.open:
            return
        joined = "".join(self.parts)
        self.parts.clear()
        if self.pre:
            self.lines += [line.rstrip() for line in joined.splitlines()]
        elif text := " ".join(joined.split()):
            self.lines.append(f"{self.prefix}{text}")
            self.prefix = ""

    def strong(self, tag: str) -> None:
        """A block that is one inside a cell too."""
        if self.open:
            self.parts.append(" ")
            return
        if tag == "td" or tag == "th":
            if self.tables:
                if self.tables[-1]:
                    self.parts.append(" | ")
                self.tables[-1] += 1
                self.in_cell = True
            return
        self.flush()
        if tag == "tr" and self.tables:
            self.tables[-1] = 0
        elif tag == "table":
            self.tables.append(0)
            self.in_cell = False
        elif tag in _HEADINGS:
            self.prefix = _HEADINGS[tag]
        elif tag == "pre":
            self.lines.append("```")
            self.pre = True
        elif tag == "ul" or tag == "ol":
            self.lists.append(1 if tag == "ol" else -1)
        elif tag == "li":
            at = self.lists[-1] if self.lists else -1
            if self.lists and at > 0:
                self.lists[-1] = at + 1
            self.prefix = "  " * min(len(self.lists) - 1, 10) + ("- " if at < 0 else f"{at}. ")

    def strong_end(self, tag: str) -> None:
        """Its end."""
        if self.open:
            self.parts.append(" ")
            return
        if tag == "td" or tag == "th":
            self.in_cell = False
            return
        self.flush()
        self.prefix = ""
        if tag == "pre":
            self.lines.append("```")
            self.pre = False
        elif tag == "table" and self.tables:
            self.tables.pop()
            self.in_cell = bool(self.tables) and self.tables[-1] > 0
        elif (tag == "ul" or tag == "ol") and self.lists:
            self.lists.pop()

    # Elements.

    def begin(self, tag: str, attributes: dict[str, str], *more: Any) -> None:
        """Take the text up to the end of this tag."""
        number = 0
        if tag == "a" and ("href" not in attributes or _SCHEME.match(attributes["href"])):
            return
        if tag != "title":
            number = self.place()
        self.open.append((tag, attributes, number, self.parts, self.at, len(self.elements) - 1, *more))
        self.parts, self.alts = [], []

    def place(self) -> int:
        """The next number, for an element that is about to come; its place is kept."""
        self.elements.append(_NONE)
        if self.hidden or len(self.numbered) >= MAX_ELEMENTS:
            return 0
        self.numbered.append(len(self.elements) - 1)
        return len(self.numbered)

    def finish(self) -> None:
        """The end of what took the text."""
        tag, attributes, number, outer, at, place, *more = self.open.pop()
        text, self.parts = "".join(self.parts), outer
        if tag == "title":
            self.title = self.title or squeezed(text)
        elif tag == "option":
            self.open[-1][6].append((squeezed(text), attributes))
        elif tag == "a":
            end = attributes["href"].rstrip("/").rpartition("/")[2]
            self.put(Element(number, tag, "link", attributes), place, self.inner_name(attributes, text, end))
        elif tag == "button":
            kind = attributes.get("type", "submit").lower()
            kind = kind if kind in _BUTTONS else "submit"
            name = self.inner_name(attributes, text, attributes.get("name", ""))
            self.put(Element(number, tag, kind, attributes, attributes.get("value", ""), self.form), place, name)
        elif tag == "textarea":
            value = str(self.values.get(place, text))
            element = Element(number, tag, tag, attributes, value, self.form)
            self.put(element, place, self.name(attributes, at), f' = "{squeezed(value)}"')
        else:
            self.finish_select(attributes, number, at, place, more[0])

    def inner_name(self, attributes: Mapping[str, str], text: str, last: str) -> str:
        """What a link or a button is called."""
        name = attributes.get("aria-label") or text.strip() or " ".join(self.alts)
        return name or attributes.get("title") or last

    def finish_select(
        self, attributes: dict[str, str], number: int, at: int, place: int, written: list[tuple[str, dict[str, str]]]
    ) -> None:
        options = tuple((text, one.get("value", text), "disabled" in one) for text, one in written)
        value = self.values.get(place)
        if value is None:
            value = tuple(n for n, (_, one) in enumerate(written) if "selected" in one)
            if "multiple" not in attributes:
                value = value[-1:] or tuple(n for n, one in enumerate(options) if not one[2])[:1]
        assert isinstance(value, tuple)
        shown = chosen([options[n][0] for n in value], [text for text, _, _ in options])
        element = Element(number, "select", "select", attributes, value, self.form, options)
        self.put(element, place, self.name(attributes, at), shown)

    def control(self, tag: str, attributes: dict[str, str]) -> None:
        """A control begins; an input is all there is of it."""
        if tag == "option":
            if self.open and self.open[-1][0] == "select":
                self.open.append((tag, attributes, 0, self.parts, 0, 0))
                self.parts = []
            return
        if tag == "select":
            self.begin(tag, attributes, [])
        elif tag != "input":
            self.begin(tag, attributes)
        else:
            kind = attributes.get("type", "text").strip().lower()
            self.input(kind if kind in _TYPES else "text", attributes)

    def input(self, kind: str, attributes: dict[str, str]) -> None:
        """An input."""
        hidden, self.hidden = self.hidden, self.hidden or kind == "hidden"
        number, at, place = self.place(), self.at, len(self.elements) - 1
        self.hidden = hidden
        value: Value = attributes.get("value", "")
        if kind in _BUTTONS:
            usual = {"submit": "Submit", "reset": "Reset", "image": attributes.get("alt", "Submit")}.get(kind, "")
            name = attributes.get("aria-label") or str(value) or usual or attributes.get("name", "")
            self.put(Element(number, "input", kind, attributes, value, self.form), place, name)
            return
        if kind in ("checkbox", "radio"):
            value = bool(self.values.get(place, "checked" in attributes))
            rest = ""
        else:
            value = str(self.values.get(place, value))
            rest = f' = "{"*" * min(len(value), 20) if kind == "password" else squeezed(value)}"'
        self.put(Element(number, "input", kind, attributes, value, self.form), place, self.name(attributes, at), rest)

    def name(self, attributes: Mapping[str, str], at: int) -> str:
        """What a control is called."""
        label = self.names.get(attributes.get("id", ""), "") or self.names.get(at, "")
        return (
            attributes.get("aria-label")
            or label
            or attributes.get("title")
            or attributes.get("placeholder")
            or attributes.get("name", "")
        )

    def put(self, element: Element, place: int, name: str, rest: str = "") -> None:
        """Show an element, if it has a number."""
        self.elements[place] = element
        if not element.number:
            return
        kind = "button" if element.kind in _BUTTONS else "field" if element.kind in _FIELDS else element.kind
        states = [] if not isinstance(element.value, bool) else ["checked" if element.value else "unchecked"]
        if element.disabled:
            states.append("disabled")
        rest += f" ({', '.join(states)})" if states else ""
        shown = bracket(element.number, kind, squeezed(name), rest)
        beside = kind == "link" and not (self.parts and self.parts[-1].endswith(CLOSE))
        self.parts.append(shown if beside else f" {shown}" if kind == "link" else f" {shown} ")

    def meta(self, attributes: Mapping[str, str]) -> None:
        """A page that leads on by itself."""
        if attributes.get("http-equiv", "").lower() == "refresh" and self.refresh is None:
            found = _REFRESH.match(attributes.get("content", ""))
            if found and found[2]:
                self.refresh = (float(found[1][:9]), found[2].strip())


_NONE = Element(0, "", "", {})


def _labels(source: str) -> tuple[dict[Any, str], frozenset[int]]:
    """Names of controls by their id or their place in the source; and where the labels begin that give them."""
    known = set(_IDS.findall(source))
    names: dict[Any, str] = {}
    bound = set()
    for found in _LABEL.finditer(source):
        key: Any = attributes_of(found[1]).get("for")
        if key is None:
            inside = _INSIDE.search(found[2])
            key = None if inside is None else found.start(2) + inside.start()
        elif key not in known:
            key = None
        if key is not None:
            names.setdefault(key, squeezed(_decoded(_NO_TEXT.sub(" ", found[2]))))
            bound.add(found.start())
    return names, frozenset(bound)
