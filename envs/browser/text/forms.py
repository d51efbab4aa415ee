"""What a form sends, as a browser does: which controls count, and how they are written.

Left out: files, and `multipart/form-data`: what has no file is sent urlencoded, which servers take as well.
"""

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from palaestra.envs.browser.text.document import Document
from palaestra.envs.browser.text.elements import BUTTONS, CHECKABLE, Element

REQUIRED = "is required: fill it in, then send the form"


def form_of(document: Document, element: Element) -> int:
    """The form that an element belongs to, or -1."""
    named = element.attributes.get("form")
    if named is None:
        return element.form
    return next((n for n, form in enumerate(document.forms) if form.get("id") == named), -1)


def members(document: Document, form: int) -> list[Element]:
    """All controls of a form that are not disabled."""
    return [one for one in document.elements if one.tag != "a" and not one.disabled and form_of(document, one) == form]


def missing(document: Document, form: int) -> Element | None:
    """A control that a browser would insist on before it sends the form."""
    if "novalidate" in document.forms[form]:
        return None
    found = members(document, form)
    for one in found:
        if "required" not in one.attributes or not one.number:
            continue
        if one.kind == "radio":
            group = one.attributes.get("name")
            filled = any(e.value for e in found if e.kind == "radio" and e.attributes.get("name") == group)
        elif one.kind == "select":
            filled = isinstance(one.value, tuple) and any(one.options[n][1] for n in one.value)
        else:
            filled = bool(one.value)
        if not filled:
            return one
    return None


def default_button(document: Document, form: int) -> Element | None:
    """The button that Enter presses in a form's field."""
    return next((one for one in members(document, form) if one.kind in ("submit", "image")), None)


def entries(document: Document, form: int, button: Element | None) -> list[tuple[str, str]]:
    """Names and values, in the order of the page."""
    found: list[tuple[str, str]] = []
    for one in members(document, form):
        name = one.attributes.get("name", "")
        if one.kind == "image":
            if one is button:
                dot = f"{name}." if name else ""
                found += [(f"{dot}x", "0"), (f"{dot}y", "0")]
        elif not name or (one.kind in BUTTONS and one is not button):
            continue
        elif one.kind in CHECKABLE:
            if one.value:
                found.append((name, one.attributes.get("value", "on")))
        elif isinstance(one.value, tuple):
            found += [(name, one.options[n][1]) for n in one.value if not one.options[n][2]]
        else:
            value = str(one.value)
            found.append((name, value.replace("\r\n", "\n").replace("\n", "\r\n") if one.tag == "textarea" else value))
    return found


def request_of(document: Document, form: int, button: Element | None) -> tuple[str, str, bytes]:
    """Address (relative to the page), method and body of the request that sends a form."""
    attributes: Mapping[str, str] = document.forms[form]
    chosen = button.attributes if button is not None else {}
    method = (chosen.get("formmethod") or attributes.get("method") or "get").strip().upper()
    action = (chosen.get("formaction") or attributes.get("action") or "").strip()
    written = urlencode(entries(document, form, button), errors="replace")
    if method == "POST":
        return action, "POST", written.encode()
    return f"{urlsplit(action)._replace(query='', fragment='').geturl()}?{written}", "GET", b""
