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
