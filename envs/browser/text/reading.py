"""Reads a page once from left to right and writes its numbered text (`envs.browser.format`).

Its input is not the HTML of the server but that of lexbor, which builds the tree as a browser does (`markup`).
So nothing here recurses, however deep a page is nested, and a page costs at most one Python step per tag. Ignored:
styles other than `display: none` on the element itself.
"""

import re
from collections.abc import Mapping

from palaestra.envs.browser.format import CLOSE, OPEN, bracket, chosen, finished, squeezed
from palaestra.envs.browser.text.bounds import VOID
from palaestra.envs.browser.text.elements import BUTTONS, TYPES, Element, FieldValue, Open
from palaestra.envs.browser.text.markup import TOKEN, attributes_of, decoded, is_hidden, labels_of

MAX_ELEMENTS = 5_000
"""Maximum number of links and controls with a number."""
_HREF = re.compile(r' href="([^"]*)"')
_SCHEME = re.compile(r"\s*(?!https?:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_REFRESH = re.compile(r"\s*(\d+)[^;,]*[;,]\s*(?:url\s*=\s*)?['\"]?([^'\"]+)", re.IGNORECASE)
_DEAD = frozenset({"template", "noscript", "svg", "object", "math"})
"""Elements that are not shown, and whose controls are ignored."""
_SENT = frozenset({"input", "select", "option", "textarea", "button", "form"})
"""Elements that count even if they are hidden."""
_BLOCKS = (
    "address article aside body br center dd details dialog div dl dt fieldset figcaption figure footer form header "
    "hgroup html legend main menu nav optgroup p search section summary"
)
_SOFT = frozenset(_BLOCKS.split())
"""Blocks that become a blank inside a cell."""
_HEADINGS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)}
_STRONG = frozenset({*_HEADINGS, "ul", "ol", "li", "table", "caption", "pre", "blockquote", "tr", "td", "th"})
_KNOWN = _SOFT | _STRONG | _SENT | {"a", "img", "hr", "label", "title", "base", "meta"}


class PageReader:
    """One pass over a page. `values`, by the index of the element, replace those of the page."""

    def __init__(self, source: str, values: Mapping[int, FieldValue]) -> None:
        self.source, self.values = source, values
        self.title, self.base = "", ""
        self.refresh: tuple[float, str] | None = None
        """Delay in seconds, and the address to go to."""
        self.elements: list[Element] = []
        self.numbered: list[int] = []
        """Index in `elements` of each numbered element."""
        self.forms: list[Mapping[str, str]] = []
        self._lines: list[str] = []
        self._parts: list[str] = []
        """Parts of the current line."""
        self._prefix = ""
        self._open: list[Open] = []
        self._lists: list[int] = []
        """Number of the next item, or -1, for each list around the current position."""
        self._tables: list[int] = []
        """Number of cells in the row so far, for each table around the current position."""
        self._form = -1
        self._in_cell = self._pre = self._muted = self._hidden = False
        self._names, self._labels = labels_of(source) if "<label" in source else ({}, iter(()))
        self._label = ""
        """Text of the label around the current position, for the first control in it."""

    def run(self) -> tuple[str, ...]:
        """Read the page, and return its lines."""
        skipped, dead = 0, False  # Open tags inside a hidden element, including itself.
        for text, tag, written, inner, whole, end in TOKEN.findall(self.source):
            if text:
                if not skipped:
                    self._text(text)
                elif not dead and self._open and self._open[-1].tag in ("option", "textarea"):
                    self._parts.append(decoded(text))  # Hidden controls are sent too.
            elif tag:
                is_known = tag in _KNOWN
                if skipped or tag in _DEAD or is_hidden(written):
                    if not skipped:
                        self._hidden, dead = True, tag in _DEAD
                    if tag in _SENT and not dead:
                        self._start(tag, written)
                        if whole:
                            self._parts.append(decoded(inner))
                            self._end(tag)
                    skipped += not whole and tag not in VOID
                    self._hidden = bool(skipped)
                    dead = dead and self._hidden
                elif not whole:
                    if is_known:
                        self._start(tag, written)
                elif not is_known:
                    self._text(inner)
                elif tag != "a" or not self._plain_link(written, inner):
                    self._start(tag, written)
                    self._text(inner)
                    self._end(tag)
            elif not skipped:
                if end in _KNOWN:
                    self._end(end)
            elif end:
                if end in _SENT and not dead:
                    self._end(end)
                skipped -= 1
                if not skipped:
                    dead = self._hidden = False
        self._flush()
        return finished(self._lines)

    def _text(self, text: str) -> None:
        if (self._parts or self._pre or not text.isspace()) and (not self._muted or self._open):
            self._parts.append(decoded(text) if "&" in text else text)

    def _start(self, tag: str, written: str) -> None:
        if tag in _SOFT:
            if tag == "br" and self._pre:
                self._parts.append("\n")
            else:
                self._block()
            if tag == "form":
                self._form = len(self.forms)
                self.forms.append(attributes_of(written))
        elif tag in _STRONG:
            self._start_strong(tag)
        elif tag == "a":
            attributes = attributes_of(written)
            if "href" in attributes and not _SCHEME.match(attributes["href"]):
                self._take(tag, attributes)
        elif tag == "input":
            self._input(attributes_of(written))
        elif tag == "option":
            if self._open and self._open[-1].tag == "select":
                self._open.append(Open(tag, attributes_of(written), 0, 0, self._parts))
                self._parts = []
        elif tag in _SENT:
            self._take(tag, attributes_of(written))
        else:
            self._start_other(tag, attributes_of(written))

    def _plain_link(self, written: str, text: str) -> bool:
        """Show a link at once if it is simple, and return whether it was."""
        href = _HREF.search(written)
        if href is None or "&" in written or ":" in href[1][:16] or "aria-" in written:
            return False
        name = squeezed(decoded(text) if "&" in text else text)
        if not name or len(self.numbered) >= MAX_ELEMENTS:
            return False
        number = len(self.numbered) + 1
        self.numbered.append(len(self.elements))
        self.elements.append(Element(number, "a", "link", {"href": href[1]}))
        if self._parts and self._parts[-1].endswith(CLOSE):
            self._parts.append(" ")
        self._parts.append(f"{OPEN}{number}:link {name}{CLOSE}")
        return True

    def _start_other(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "img":
            if alt := squeezed(attributes.get("alt", "")):
                if self._open:
                    self._open[-1].alts.append(alt)
                else:
                    self._parts.append(f"(image: {alt})")
        elif tag == "hr":
            self._flush()
            self._lines.append("---")
        elif tag == "label":
            self._muted, self._label = next(self._labels, (False, ""))
        elif tag == "title":
            self._open.append(Open(tag, attributes, 0, 0, self._parts))
            self._parts = []
        elif tag == "base":
            self.base = self.base or attributes.get("href", "")
        elif attributes.get("http-equiv", "").lower() == "refresh":
            match = _REFRESH.match(attributes.get("content", ""))
            if match and self.refresh is None:
                self.refresh = (float(match[1][:9]), match[2].strip())

    def _end(self, tag: str) -> None:
        if self._open and self._open[-1].tag == tag:
            self._finish(self._open.pop())
        elif tag in _SOFT:
            self._block()
            if tag == "form":
                self._form = -1
        elif tag in _STRONG:
            self._end_strong(tag)
        elif tag == "label":
            self._muted, self._label = False, ""

    # Text and lines.

    def _block(self) -> None:
        """Begin or end a block."""
        if self._open or self._in_cell:
            self._parts.append(" ")
        elif self._parts:
            self._flush()

    def _flush(self) -> None:
        """End the line."""
        if not self._parts:
            return
        joined = "".join(self._parts)
        self._parts.clear()
        if self._pre:
            self._lines += [line.rstrip() for line in joined.splitlines()]
        elif text := " ".join(joined.split()):
            self._lines.append(f"{self._prefix}{text}")
            self._prefix = ""

    def _start_strong(self, tag: str) -> None:
        """Start a block that is one inside a cell too, or a cell."""
        if self._open:
            self._parts.append(" ")
        elif tag == "td" or tag == "th":
            if self._tables:
                if self._tables[-1]:
                    self._parts.append(" | ")
                self._tables[-1] += 1
                self._in_cell = True
        else:
            if self._parts:
                self._flush()
            if tag == "li":
                at = self._lists[-1] if self._lists else -1
                if at > 0:
                    self._lists[-1] = at + 1
                self._prefix = "  " * min(len(self._lists) - 1, 10) + ("- " if at < 0 else f"{at}. ")
            elif tag == "ul" or tag == "ol":
                self._lists.append(1 if tag == "ol" else -1)
            elif tag == "tr" and self._tables:
                self._tables[-1] = 0
            elif tag == "table":
                self._tables.append(0)
                self._in_cell = False
            elif tag == "pre":
                self._lines.append("```")
                self._pre = True
            else:
                self._prefix = _HEADINGS.get(tag, "")

    def _end_strong(self, tag: str) -> None:
        if self._open:
            self._parts.append(" ")
        elif tag == "td" or tag == "th":
            self._in_cell = False
        else:
            if self._parts:
                self._flush()
            self._prefix = ""
            if tag == "pre":
                self._lines.append("```")
                self._pre = False
            elif tag == "table" and self._tables:
                self._tables.pop()
                self._in_cell = bool(self._tables) and self._tables[-1] > 0
            elif (tag == "ul" or tag == "ol") and self._lists:
                self._lists.pop()

    # Elements.

    def _take(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Collect the text up to the end tag, which adds the element; its number and index are reserved now."""
        number = self._number()
        self._open.append(Open(tag, attributes, number, len(self.elements) - 1, self._parts))
        self._parts = []

    def _number(self, hidden: bool = False) -> int:
        """Reserve the next element, and return its number, or 0 if it is not shown."""
        self.elements.append(_TO_COME)
        if hidden or self._hidden or len(self.numbered) >= MAX_ELEMENTS:
            return 0
        self.numbered.append(len(self.elements) - 1)
        return len(self.numbered)

    def _finish(self, one: Open) -> None:
        """Add an element at its end tag, with the text inside it."""
        text, self._parts = "".join(self._parts), one.outer
        tag, attributes, value = one.tag, one.attributes, self.values.get(one.place)
        if tag == "title":
            self.title = self.title or squeezed(text)
        elif tag == "option":
            self._open[-1].options.append((squeezed(text), attributes))
        elif tag == "a":
            last = attributes["href"].rstrip("/").rpartition("/")[2]
            self._put(Element(one.number, tag, "link", attributes), one.place, one.name(text, last))
        elif tag == "button":
            kind = attributes.get("type", "submit").lower()
            name = one.name(text, attributes.get("name", ""))
            kind, button_value = kind if kind in BUTTONS else "submit", attributes.get("value", "")
            self._put(Element(one.number, tag, kind, attributes, button_value, self._form), one.place, name)
        elif tag == "textarea":
            element = Element(one.number, tag, tag, attributes, text if value is None else value, self._form)
            self._put(element, one.place, self._name(attributes), f' = "{squeezed(str(element.value))}"')
        else:
            options = tuple((name, of.get("value", name), "disabled" in of) for name, of in one.options)
            if not isinstance(value, tuple):
                value = tuple(n for n, (_, of) in enumerate(one.options) if "selected" in of)
                if "multiple" not in attributes:
                    value = value[-1:] or tuple(n for n, of in enumerate(options) if not of[2])[:1]
            suffix = chosen([options[n][0] for n in value], [name for name, _, _ in options]) if one.number else ""
            element = Element(one.number, tag, tag, attributes, value, self._form, options)
            self._put(element, one.place, self._name(attributes), suffix)

    def _input(self, attributes: Mapping[str, str]) -> None:
        kind = attributes.get("type", "text").strip().lower()
        kind = kind if kind in TYPES else "text"
        number = self._number(hidden=kind == "hidden")
        place = len(self.elements) - 1
        value: FieldValue = attributes.get("value", "")
        value_text = ""
        if kind in BUTTONS:
            usual = {"submit": "Submit", "reset": "Reset", "image": attributes.get("alt", "Submit")}.get(kind, "")
            name = attributes.get("aria-label") or str(value) or usual or attributes.get("name", "")
        else:
            name = self._name(attributes) if number else ""
            if kind in ("checkbox", "radio"):
                value = bool(self.values.get(place, "checked" in attributes))
            else:
                value = str(self.values.get(place, value))
                value_text = f' = "{"*" * min(len(value), 20) if kind == "password" else squeezed(value)}"'
        self._put(Element(number, "input", kind, attributes, value, self._form), place, name, value_text)

    def _name(self, attributes: Mapping[str, str]) -> str:
        """Return the name of a control."""
        label = self._names.get(attributes.get("id", "")) or self._label
        self._label = ""
        name = attributes.get("aria-label") or label or attributes.get("title") or attributes.get("placeholder")
        return name or attributes.get("name", "")

    def _put(self, element: Element, place: int, name: str, rest: str = "") -> None:
        """Set an element, and write it if it has a number."""
        self.elements[place] = element
        if not element.number:
            return
        kind = element.kind
        if kind == "link":
            if self._parts and self._parts[-1].endswith(CLOSE):
                self._parts.append(" ")
            self._parts.append(bracket(element.number, kind, squeezed(name)))
            return
        states = [] if not isinstance(element.value, bool) else ["checked" if element.value else "unchecked"]
        if element.disabled:
            states.append("disabled")
        rest += f" ({', '.join(states)})" if states else ""
        self._parts.append(f" {bracket(element.number, element.shown_kind, squeezed(name), rest)} ")


_TO_COME = Element(0, "", "", {})
