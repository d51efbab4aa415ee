"""Mouse and key events: a click on an element, and a text as a US keyboard sends it.

Not supported: composition (IME). Not here: named keys such as Enter (`ChromiumSession.press`).
"""

import asyncio
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from palaestra.envs.browser.chromium.tab import Tab

MAX_AIMS = 40
"""Maximum number of times that the mouse follows an element which moves away."""
MAX_KEYS = 500
"""Maximum number of characters that are typed key by key, at about 2 ms each."""
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


async def click(tab: Tab, number: int) -> None:
    """Move the mouse to an element and click. If the element moves away, the mouse follows it first."""
    at = await tab.act("aim", number, None)
    for _ in range(MAX_AIMS):
        if not at or at["settled"]:
            break
        await _mouse(tab, "mouseMoved", at, "none")
        at = await tab.act("aim", number, at)
    if at:  # Otherwise the page got the click without a mouse. Chromium keeps the order of both events.
        await asyncio.gather(*(_mouse(tab, kind, at, "left") for kind in ("mousePressed", "mouseReleased")))


async def _mouse(tab: Tab, kind: str, at: Mapping[str, float], button: str) -> None:
    event = {"type": kind, "x": at["x"], "y": at["y"], "button": button, "clickCount": 1}
    await tab.send("Input.dispatchMouseEvent", event)


async def type_text(tab: Tab, text: str) -> None:
    """Type a text at the focus. If it is longer than MAX_KEYS, all but its last character is inserted at once."""
    inserted, typed = (text[:-1], text[-1]) if len(text) > MAX_KEYS else ("", text)
    if inserted:
        await tab.send("Input.insertText", {"text": inserted})
    for step in strokes(typed):
        if isinstance(step, str):
            await tab.send("Input.insertText", {"text": step})
        else:  # Sent in batches: events already sent arrive even after the action's timeout.
            await asyncio.gather(*(tab.send("Input.dispatchKeyEvent", event) for event in step))


def strokes(text: str) -> Iterator[str | list[dict[str, Any]]]:
    """Split a text into steps: key events to send together, or text to insert that has no keys (line breaks, emoji)."""
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
