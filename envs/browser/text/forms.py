"""The data that a form sends, as a browser would send it: which controls are included, and how they are encoded.

Not supported: files, and `multipart/form-data`; forms without a file are sent urlencoded, which servers accept too.
"""

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from palaestra.envs.browser.text.document import ParsedPage
from palaestra.envs.browser.text.elements import BUTTONS, CHECKABLE, Element

REQUIRED = "is required: fill it in, then send the form"


def form_of(document: ParsedPage, element: Element) -> int:
    """Return the index of the form that an element belongs to, or -1."""
    form_id = element.attributes.get("form")
    if form_id is None:
        return element.form
    return next((n for n, form in enumerate(document.forms) if form.get("id") == form_id), -1)


def members(document: ParsedPage, form: int) -> list[Element]:
    """Return all controls of a form that are not disabled."""
    return [e for e in document.elements if e.tag != "a" and not e.disabled and form_of(document, e) == form]


def missing(document: ParsedPage, form: int) -> Element | None:
    """Return the first required control without a value, or None. A browser would refuse to send the form."""
    if "novalidate" in document.forms[form]:
        return None
    controls = members(document, form)
    for control in controls:
        if "required" not in control.attributes or not control.number:
            continue
        if control.kind == "radio":
            group = control.attributes.get("name")
            filled = any(e.value for e in controls if e.kind == "radio" and e.attributes.get("name") == group)
        elif control.kind == "select":
            filled = isinstance(control.value, tuple) and any(control.options[n][1] for n in control.value)
        else:
            filled = bool(control.value)
        if not filled:
            return control
    return None


def default_button(document: ParsedPage, form: int) -> Element | None:
    """Return the button that sends the form when Enter is pressed in one of its fields, or None."""
    return next((control for control in members(document, form) if control.kind in ("submit", "image")), None)


def entries(document: ParsedPage, form: int, button: Element | None) -> list[tuple[str, str]]:
    """Return names and values to send, in the order of the page."""
    pairs: list[tuple[str, str]] = []
    for item in members(document, form):
        name = item.attributes.get("name", "")
        if item.kind == "image":
            if item is button:
                dot = f"{name}." if name else ""
                pairs += [(f"{dot}x", "0"), (f"{dot}y", "0")]
        elif not name or (item.kind in BUTTONS and item is not button):
            continue
        elif item.kind in CHECKABLE:
            if item.value:
                pairs.append((name, item.attributes.get("value", "on")))
        elif isinstance(item.value, tuple):
            pairs += [(name, item.options[n][1]) for n in item.value if not item.options[n][2]]
        else:
            value = str(item.value)
            pairs.append((name, value.replace("\r\n", "\n").replace("\n", "\r\n") if item.tag == "textarea" else value))
    return pairs


def request_of(document: ParsedPage, form: int, button: Element | None) -> tuple[str, str, bytes]:
    """Return the address (relative to the page), the method and the body of the request that sends a form."""
    attributes: Mapping[str, str] = document.forms[form]
    chosen = button.attributes if button is not None else {}
    method = (chosen.get("formmethod") or attributes.get("method") or "get").strip().upper()
    action = (chosen.get("formaction") or attributes.get("action") or "").strip()
    written = urlencode(entries(document, form, button), errors="replace")
    if method == "POST":
        return action, "POST", written.encode()
    return f"{urlsplit(action)._replace(query='', fragment='').geturl()}?{written}", "GET", b""
