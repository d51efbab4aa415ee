"""Elements of a page that an agent can act on, or that a form sends."""

from collections.abc import Mapping

from palaestra.frozen import statically_frozen

FieldValue = str | bool | tuple[int, ...]
"""Value of a control: a text, whether it is checked, or the indices of the chosen options."""
BUTTONS = frozenset({"submit", "button", "reset", "image"})
FIELDS = frozenset({"text", "search", "email", "url", "tel"})
CHECKABLE = frozenset({"checkbox", "radio"})
_OTHERS = "hidden password number range date datetime-local month time week color file"
TYPES = BUTTONS | FIELDS | CHECKABLE | frozenset(_OTHERS.split())


@statically_frozen
class Element:
    """A link or a control, which may be hidden."""

    number: int
    """Number that the agent sees; 0 if the element is not shown."""
    tag: str
    kind: str
    """`link`, `select`, `textarea`, or the type of an input or a button."""
    attributes: Mapping[str, str]
    value: FieldValue = ""
    form: int = -1
    """Index of its form, or -1."""
    options: tuple[tuple[str, str, bool], ...] = ()
    """Options of a select: text, value, and whether it is disabled."""

    @property
    def disabled(self) -> bool:
        """Return whether it is disabled: agents cannot use it, and forms do not send it."""
        return "disabled" in self.attributes

    @property
    def shown_kind(self) -> str:
        """Kind that an agent reads: button, field, or its own kind."""
        return "button" if self.kind in BUTTONS else "field" if self.kind in FIELDS else self.kind


class Open:
    """An open element that takes all text up to its end tag: a link, button, title, option or textarea; or a select."""

    __slots__ = ("alts", "attributes", "number", "options", "outer", "place", "tag")

    def __init__(self, tag: str, attributes: Mapping[str, str], number: int, place: int, outer: list[str]) -> None:
        self.tag, self.attributes, self.number, self.place, self.outer = tag, attributes, number, place, outer
        self.alts: list[str] = []
        """Alt texts of its images, which name it if it has no text."""
        self.options: list[tuple[str, Mapping[str, str]]] = []

    def name(self, text: str, last: str) -> str:
        """Return the name of a link or a button; `last` if nothing else names it."""
        label = self.attributes.get("aria-label") or text.strip() or " ".join(self.alts)
        return label or self.attributes.get("title") or last
