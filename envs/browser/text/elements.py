"""What of a page can be acted on, or is sent with a form."""

from collections.abc import Mapping

from palaestra.frozen import statically_frozen

Value = str | bool | tuple[int, ...]
"""What a control holds: a text, whether it is checked, or which options are chosen."""
BUTTONS = frozenset({"submit", "button", "reset", "image"})
FIELDS = frozenset({"text", "search", "email", "url", "tel"})
CHECKABLE = frozenset({"checkbox", "radio"})
_OTHERS = "hidden password number range date datetime-local month time week color file"
TYPES = BUTTONS | FIELDS | CHECKABLE | frozenset(_OTHERS.split())


@statically_frozen
class Element:
    """A link or a control, hidden ones among them."""

    number: int
    """0 where it is not shown."""
    tag: str
    kind: str
    """`link`, `select`, `textarea`, or the type of an input or a button."""
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

    @property
    def shown_kind(self) -> str:
        """What an agent reads: button, field, or its own kind."""
        return "button" if self.kind in BUTTONS else "field" if self.kind in FIELDS else self.kind


class Open:
    """What takes all text up to its end tag: a link, a button, a title, an option, a textarea; a select its options."""

    __slots__ = ("alts", "attributes", "number", "options", "outer", "place", "tag")

    def __init__(self, tag: str, attributes: Mapping[str, str], number: int, place: int, outer: list[str]) -> None:
        self.tag, self.attributes, self.number, self.place, self.outer = tag, attributes, number, place, outer
        self.alts: list[str] = []
        """Of its images, which name it where it has no text."""
        self.options: list[tuple[str, Mapping[str, str]]] = []

    def name(self, text: str, last: str) -> str:
        """What a link or a button is called; `last` where nothing else says it."""
        named = self.attributes.get("aria-label") or text.strip() or " ".join(self.alts)
        return named or self.attributes.get("title") or last
