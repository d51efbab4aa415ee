"""Splits the HTML that lexbor writes into tokens: it closes every tag, quotes every attribute, uses only five entities.

Not here: `reading` gives the tokens a meaning.
"""

import re
from collections.abc import Iterator

from palaestra.envs.browser.format import squeeze

_ATTRIBUTES = r'(?: [^\s>/]+?="[^"]*")*+'
TOKEN = re.compile(
    rf"([^<]++)|<([a-zA-Z][^\s>/]*+)({_ATTRIBUTES})[^>]*>(?:([^<]*+)(<)/\2>)?+|</([^>]*)>|<(?:!--.*?-->|[^>]*>)",
    re.DOTALL,
)
"""Pattern of one token: a text, an element with only text (the most frequent), a start tag, or an end tag."""
_ATTRIBUTE = re.compile(r' ([^\s>/]+?)="([^"]*)"')
_HIDDEN = re.compile(r' (?:hidden="|aria-hidden="true"|style="[^"]*display:\s*none)', re.IGNORECASE)
_LABEL = re.compile(rf"<label({_ATTRIBUTES})[^>]*>(.*?)</label>", re.DOTALL)
_IDS = re.compile(r'<(?:input|select|textarea|button)[^<>]*? id="([^"]*)"')
_CONTROL = re.compile(r'<(?:input(?![^<>]* type="hidden")|select|textarea)[ >]')
_NO_NAME = re.compile(r"<select[ >].*?</select>|<textarea[ >].*?</textarea>|<[^>]*>", re.DOTALL)


def attributes_of(written: str) -> dict[str, str]:
    """Return the attributes of a tag, decoded."""
    if not written:
        return {}
    attributes = dict(_ATTRIBUTE.findall(written))
    return {name: decode_entities(value) for name, value in attributes.items()} if "&" in written else attributes


def decode_entities(text: str) -> str:
    """Decode the five entities that lexbor writes."""
    text = text.replace("&nbsp;", " ").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
    return text.replace("&amp;", "&")


def is_hidden(written: str) -> bool:
    """Return whether these attributes hide an element."""
    return ("hidden" in written or "none" in written) and _HIDDEN.search(written) is not None


def labels_of(source: str) -> tuple[dict[str, str], Iterator[tuple[bool, str]]]:
    """Return the names of controls by their ids, and an entry for each label, in the order of the page.

    The entry tells whether the label names a control, and the name for a control inside the label ("" if there is
    none).
    """
    ids = set(_IDS.findall(source))
    names: dict[str, str] = {}
    labels: list[tuple[bool, str]] = []
    for label in _LABEL.finditer(source):
        key = attributes_of(label[1]).get("for")
        binds = bool(_CONTROL.search(label[2])) if key is None else key in ids
        name = squeeze(decode_entities(_NO_NAME.sub(" ", label[2]))) if binds else ""
        if key is not None and binds:
            names.setdefault(key, name)
        labels.append((binds, name if key is None else ""))
        labels += [(False, "")] * label[2].count("<label")  # Labels inside it.
    return names, iter(labels)
