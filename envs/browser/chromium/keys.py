"""The key events of a text, as a US keyboard sends them.

Not supported: composition (IME). Not here: named keys such as Enter (`ChromiumSession.press`).
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

BATCH = 50
"""Number of characters whose events are sent together."""
_SHIFTED = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True))
_SIGNS = {" ": "Space", ";": "Semicolon", "=": "Equal", ",": "Comma", "-": "Minus", ".": "Period", "/": "Slash"}
_SIGNS |= {"`": "Backquote", "[": "BracketLeft", "\\": "Backslash", "]": "BracketRight", "'": "Quote"}
_KEYS = {
    **{digit: (f"Digit{digit}", ord(digit)) for digit in "0123456789"},
    **{letter: (f"Key{letter.upper()}", ord(letter.upper())) for letter in "abcdefghijklmnopqrstuvwxyz"},
    **dict(zip(_SIGNS, zip(_SIGNS.values(), (32, *range(186, 193), *range(219, 223)), strict=True), strict=True)),
}
"""Name and number of each key, by the character that it types without shift."""


def strokes(text: str) -> Iterator[str | list[dict[str, Any]]]:
    """Split a text into steps: key events to send together, or a text without keys (line breaks, emoji) to insert."""
    for typed, group in groupby(text, lambda character: character.isprintable() and ord(character) < 0x10000):
        part = "".join(group)
        if not typed:
            yield part
            continue
        for begin in range(0, len(part), BATCH):
            yield [event for character in part[begin : begin + BATCH] for event in _events(character)]


def _events(character: str) -> list[dict[str, Any]]:
    plain = _SHIFTED.get(character, character.lower())
    code, number = _KEYS.get(plain, ("", 0))
    key = {"key": character, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 * (plain != character)}
    return [{"type": "keyDown", **key, "text": character}, {"type": "keyUp", **key}]
