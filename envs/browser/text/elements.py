"""Elements of a page that an agent can act on, or that a form sends."""

from collections.abc import Mapping

from palaestra.envs.browser.format import choice_text, squeeze
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
        """True if the element is disabled: agents cannot use it, and forms do not send it."""
        return "disabled" in self.attributes

    @property
    def shown_kind(self) -> str:
        """Kind that an agent reads: "button" for all buttons, "field" for text inputs, otherwise `kind`."""
        return "button" if self.kind in BUTTONS else "field" if self.kind in FIELDS else self.kind

    @property
    def state_text(self) -> str:
        """Value and state, as the text that follows the name of the element."""
        value, text = self.value, ""
        if isinstance(value, tuple):
            names = [name for name, _, _ in self.options]
            text = choice_text([names[n] for n in value], names)
        elif isinstance(value, str) and self.kind != "link" and self.kind not in BUTTONS:
            text = f' = "{"*" * min(len(value), 20) if self.kind == "password" else squeeze(value)}"'
        states = ["checked" if value else "unchecked"] if isinstance(value, bool) else []
        if self.disabled:
            states.append("disabled")
        return f"{text} ({', '.join(states)})" if states else text


def control_name(attributes: Mapping[str, str], label: str) -> str:
    """Return the name of a control: from its aria-label, `label`, title, placeholder or name, in this order."""
    name = attributes.get("aria-label") or label or attributes.get("title") or attributes.get("placeholder")
    return name or attributes.get("name", "")


class Open:
    """An element whose text is still being read: a link, button, title, option, textarea or select."""

    __slots__ = ("alts", "attributes", "index", "number", "options", "outer", "tag")

    def __init__(self, tag: str, attributes: Mapping[str, str], number: int, index: int, outer: list[str]) -> None:
        self.tag, self.attributes, self.number, self.index, self.outer = tag, attributes, number, index, outer
        self.alts: list[str] = []
        """Alt texts of its images, which name it if it has no text."""
        self.options: list[tuple[str, Mapping[str, str]]] = []

    def name(self, text: str, last: str) -> str:
        """Return the name of a link or a button; `last` if nothing else names it."""
        label = self.attributes.get("aria-label") or text.strip() or " ".join(self.alts)
        return label or self.attributes.get("title") or last

    def button(self, form: int) -> Element:
        """Return this button as an Element."""
        kind = self.attributes.get("type", "submit").lower()
        kind = kind if kind in BUTTONS else "submit"
        return Element(self.number, self.tag, kind, self.attributes, self.attributes.get("value", ""), form)

    def select(self, value: FieldValue | None, form: int) -> Element:
        """Return this select as an Element. If `value` is None, the options that the page has chosen are used."""
        options = tuple((name, of.get("value", name), "disabled" in of) for name, of in self.options)
        if not isinstance(value, tuple):
            value = tuple(n for n, (_, of) in enumerate(self.options) if "selected" in of)
            if "multiple" not in self.attributes:
                value = value[-1:] or tuple(n for n, (_, _, disabled) in enumerate(options) if not disabled)[:1]
        return Element(self.number, self.tag, self.tag, self.attributes, value, form, options)
