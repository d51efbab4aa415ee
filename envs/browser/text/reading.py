"""Reads a page once from left to right and writes its numbered text (`envs.browser.format`).

The input is the HTML that lexbor writes after it has built the tree as a browser does (`markup`), not the server's. So
this code never recurses, however deep a page is nested, and needs at most one Python step per tag. Ignored: styles
other than `display: none` on the element itself.
"""

import re
from collections.abc import Mapping

from palaestra.envs.browser.format import CLOSE, OPEN, bracket, finish_lines, squeeze
from palaestra.envs.browser.text.elements import BUTTONS, CHECKABLE, TYPES, Element, FieldValue, Open, control_name
from palaestra.envs.browser.text.markup import TOKEN, attributes_of, decode_entities, is_hidden, labels_of
from palaestra.envs.browser.text.tags import DEAD, HEADINGS, KNOWN, SENT, SOFT, STRONG, VOID

MAX_ELEMENTS = 5_000
"""Maximum number of links and controls with a number."""
_HREF = re.compile(r' href="([^"]*)"')
_SCHEME = re.compile(r"\s*(?!https?:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_REFRESH = re.compile(r"\s*(\d+)[^;,]*[;,]\s*(?:url\s*=\s*)?['\"]?([^'\"]+)", re.IGNORECASE)

_TO_COME = Element(0, "", "", {})


class PageReader:
    """Reads one page. `values` replace the page's own values of elements; the keys are indices in `elements`."""

    def __init__(self, source: str, values: Mapping[int, FieldValue]) -> None:
        self.source, self.values = source, values
        self.title = self.base = self._prefix = ""
        self.refresh: tuple[float, str] | None = None
        """Delay in seconds, and the address to go to."""
        self.elements: list[Element] = []
        self.numbered: list[int] = []
        """Index in `elements` of each numbered element."""
        self.forms: list[Mapping[str, str]] = []
        self._lines: list[str] = []
        self._parts: list[str] = []
        """Parts of the current line."""
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
                    self._parts.append(decode_entities(text))  # Hidden controls are sent too.
            elif tag:
                is_known = tag in KNOWN
                if skipped or tag in DEAD or is_hidden(written):
                    if not skipped:
                        self._hidden, dead = True, tag in DEAD
                    if tag in SENT and not dead:
                        self._start(tag, written)
                        if whole:
                            self._parts.append(decode_entities(inner))
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
                if end in KNOWN:
                    self._end(end)
            elif end:
                if end in SENT and not dead:
                    self._end(end)
                skipped -= 1
                if not skipped:
                    dead = self._hidden = False
        self._flush()
        return finish_lines(self._lines)

    def _text(self, text: str) -> None:
        if (self._parts or self._pre or not text.isspace()) and (not self._muted or self._open):
            self._parts.append(decode_entities(text) if "&" in text else text)

    def _start(self, tag: str, written: str) -> None:
        if tag in SOFT:
            if tag == "br" and self._pre:
                self._parts.append("\n")
            else:
                self._block()
            if tag == "form":
                self._form = len(self.forms)
                self.forms.append(attributes_of(written))
        elif tag in STRONG:
            self._start_strong(tag)
        elif tag == "a":
            attributes = attributes_of(written)
            if "href" in attributes and not _SCHEME.match(attributes["href"]):
                self._collect(tag, attributes, self._number())
        elif tag == "input":
            self._input(attributes_of(written))
        elif tag == "option":
            if self._open and self._open[-1].tag == "select":
                self._collect(tag, attributes_of(written))
        elif tag in SENT:
            self._collect(tag, attributes_of(written), self._number())
        else:
            self._start_other(tag, attributes_of(written))

    def _plain_link(self, written: str, text: str) -> bool:
        """Write the link if it is simple, without collecting its text first. Return whether that was possible."""
        href = _HREF.search(written)
        if href is None or "&" in written or ":" in href[1][:16] or "aria-" in written:
            return False
        name = squeeze(decode_entities(text) if "&" in text else text)
        if not name or len(self.numbered) >= MAX_ELEMENTS:
            return False
        number = len(self.numbered) + 1
        self.numbered.append(len(self.elements))
        self.elements.append(Element(number, "a", "link", {"href": href[1]}))
        self._write_link(f"{OPEN}{number}:link {name}{CLOSE}")
        return True

    def _start_other(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "img":
            if alt := squeeze(attributes.get("alt", "")):
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
            self._collect(tag, attributes)
        elif tag == "base":
            self.base = self.base or attributes.get("href", "")
        elif attributes.get("http-equiv", "").lower() == "refresh" and self.refresh is None:
            match = _REFRESH.match(attributes.get("content", ""))
            self.refresh = (float(match[1][:9]), match[2].strip()) if match else None

    def _end(self, tag: str) -> None:
        if self._open and self._open[-1].tag == tag:
            self._finish(self._open.pop())
        elif tag in SOFT:
            self._block()
            if tag == "form":
                self._form = -1
        elif tag in STRONG:
            self._end_strong(tag)
        elif tag == "label":
            self._muted, self._label = False, ""

    # Text and lines.

    def _block(self) -> None:
        """Begin or end a block: end the current line, or add a blank inside a cell, link or button."""
        if self._open or self._in_cell:
            self._parts.append(" ")
        elif self._parts:
            self._flush()

    def _flush(self) -> None:
        """End the current line."""
        joined = "".join(self._parts)
        self._parts.clear()
        if self._pre:
            self._lines += [line.rstrip() for line in joined.splitlines()]
        elif text := " ".join(joined.split()):
            self._lines.append(f"{self._prefix}{text}")
            self._prefix = ""

    def _start_strong(self, tag: str) -> None:
        """Start a cell, or a block that begins a new line even inside a cell."""
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
                self._prefix = HEADINGS.get(tag, "")

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

    def _collect(self, tag: str, attributes: Mapping[str, str], number: int = 0) -> None:
        """Begin to collect the text up to the end tag. `_finish` then adds the element, if its index is reserved."""
        self._open.append(Open(tag, attributes, number, len(self.elements) - 1, self._parts))
        self._parts = []

    def _number(self, hidden: bool = False) -> int:
        """Reserve the index of the next element. Return its number, or 0 if it is not shown."""
        self.elements.append(_TO_COME)
        if hidden or self._hidden or len(self.numbered) >= MAX_ELEMENTS:
            return 0
        self.numbered.append(len(self.elements) - 1)
        return len(self.numbered)

    def _finish(self, opened: Open) -> None:
        """Add an element at its end tag, with the text that was collected inside it."""
        text, self._parts = "".join(self._parts), opened.outer
        tag, attributes, value = opened.tag, opened.attributes, self.values.get(opened.index)
        if tag == "title":
            self.title = self.title or squeeze(text)
        elif tag == "option":
            self._open[-1].options.append((squeeze(text), attributes))
        elif tag == "a":
            last = attributes["href"].rstrip("/").rpartition("/")[2]
            self._put(Element(opened.number, tag, "link", attributes), opened.index, opened.name(text, last))
        elif tag == "button":
            self._put(opened.button(self._form), opened.index, opened.name(text, attributes.get("name", "")))
        elif tag == "textarea":
            element = Element(opened.number, tag, tag, attributes, text if value is None else value, self._form)
            self._put(element, opened.index, self._name(attributes))
        else:
            self._put(opened.select(value, self._form), opened.index, self._name(attributes))

    def _input(self, attributes: Mapping[str, str]) -> None:
        kind = attributes.get("type", "text").strip().lower()
        kind = kind if kind in TYPES else "text"
        number, index = self._number(hidden=kind == "hidden"), len(self.elements) - 1
        value: FieldValue = attributes.get("value", "")
        if kind in BUTTONS:
            usual = {"submit": "Submit", "reset": "Reset", "image": attributes.get("alt", "Submit")}.get(kind, "")
            name = attributes.get("aria-label") or str(value) or usual or attributes.get("name", "")
        else:
            name = self._name(attributes) if number else ""
            value = self.values.get(index, "checked" in attributes if kind in CHECKABLE else value)
        self._put(Element(number, "input", kind, attributes, value, self._form), index, name)

    def _name(self, attributes: Mapping[str, str]) -> str:
        label, self._label = self._names.get(attributes.get("id", "")) or self._label, ""
        return control_name(attributes, label)

    def _put(self, element: Element, index: int, name: str) -> None:
        """Store an element at its index, and write its text if it has a number."""
        self.elements[index] = element
        if element.number:
            text = bracket(element.number, element.shown_kind, squeeze(name), element.state_text)
            if element.kind == "link":
                self._write_link(text)
            else:
                self._parts.append(f" {text} ")

    def _write_link(self, text: str) -> None:
        if self._parts and self._parts[-1].endswith(CLOSE):
            self._parts.append(" ")
        self._parts.append(text)
