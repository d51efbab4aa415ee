"""Cut texts and dialogues to a length, with a note at each cut; spell out control characters.

Lengths are in characters, since a reader may have any tokenizer.
"""

import re
from collections.abc import Sequence

from palaestra.episode import Message

_NOTE = re.compile(
    r"\n\[\.\.\. (?:(\d{1,18}) characters(?: and (\d{1,18}) bytes)?|(\d{1,18}) of \d{1,18} bytes) left out \.\.\.\]\n"
)
_SHORTEST = 80
"""Characters below which no message of a dialogue is cut, so that the note of the cut fits."""


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text: its head, a note of how much was left out, and its tail.

    The note also counts what earlier cuts left out there (cuts by this function, or by a sandbox, in bytes).
    """
    if len(text) <= limit:
        return text
    notes = [*_NOTE.finditer(text)]
    kept_chars = limit - len(_note(len(text), notes))
    if kept_chars < 2:
        return text[: max(limit, 0)]
    head, tail = kept_chars - kept_chars // 2, len(text) - kept_chars // 2
    for note in notes:  # No earlier note is split.
        head = note.start() if note.start() < head < note.end() else head
        tail = note.end() if note.start() < tail < note.end() else tail
    lost = [note for note in notes if head <= note.start() and note.end() <= tail]
    return text[:head] + _note(tail - head - sum(len(note[0]) for note in lost), lost) + text[tail:]


def _note(characters: int, notes: Sequence[re.Match[str]]) -> str:
    """Return the note for the characters that are left out now and those that earlier notes name."""
    characters += sum(int(note[1] or 0) for note in notes)
    size = sum(int(note[2] or note[3] or 0) for note in notes)
    return f"\n[... {characters} characters{f' and {size} bytes' if size else ''} left out ...]\n"


def shortened(messages: Sequence[Message], limit: int) -> tuple[Message, ...]:
    """Return a dialogue of at most `limit` characters. Tool results are cut first, then the agent's turns, then the
    rest; of each kind the longest texts are cut most.

    No message is cut below 80 characters, so a dialogue of very many messages may remain longer than `limit`.
    """
    result = list(messages)
    for kinds in (("tool",), ("assistant",), ("user", "system")):
        excess = sum(_length(message) for message in result) - limit
        if excess <= 0:
            break
        indices = [index for index, message in enumerate(result) if message["role"] in kinds]
        sizes = [_length(result[index]) for index in indices]
        longest = max(_SHORTEST, level_of(sizes, sum(sizes) - excess))
        for index in indices:
            if _length(result[index]) > longest:
                result[index] = {
                    **result[index],
                    "content": cut(str(result[index]["content"]), longest),
                }
    return tuple(result)


def _length(message: Message) -> int:
    return len(str(message.get("content") or ""))


def level_of(sizes: Sequence[int], room: int) -> int:
    """Return the length to which all longer texts are cut, so that together they have at most `room` characters."""
    left = sorted(sizes)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return max(room, 0) // len(left) if left else max(sizes, default=0)


def visible(text: str) -> str:
    """Return the text with control characters spelled out: a model's text must not move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" or letter.isprintable() else repr(letter)[1:-1] for letter in text)
