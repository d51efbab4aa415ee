"""Texts and dialogues cut to a length, so that whoever reads them sees that and where they were cut.

Lengths are in characters: what reads them may have any tokenizer.
"""

from collections.abc import Sequence

from palaestra.episode import Message

_SHORTEST = 80
"""No message of a dialogue is cut below this, where the note of the cut has its place."""


def cut(text: str, limit: int) -> str:
    """At most `limit` characters: head and tail, and the true size between them."""
    if len(text) <= limit:
        return text
    note = f"\n[... {len(text)} characters in all, cut to {limit} ...]\n"
    room = limit - len(note)
    if room < 2:
        return text[: max(limit, 0)]
    return text[: room - room // 2] + note + text[len(text) - room // 2 :]


def shortened(messages: Sequence[Message], limit: int) -> tuple[Message, ...]:
    """A dialogue of at most `limit` characters: tool results are cut first, the longest ones most; then the turns.

    Every message stays, with some of its words; so of very many messages more than `limit` is left.
    """
    found = list(messages)
    for kinds in (("tool",), ("assistant",), ("user", "system")):
        excess = sum(_length(message) for message in found) - limit
        if excess <= 0:
            break
        places = [place for place, message in enumerate(found) if message["role"] in kinds]
        sizes = [_length(found[place]) for place in places]
        longest = max(_SHORTEST, level_of(sizes, sum(sizes) - excess))
        for place in places:
            if _length(found[place]) > longest:
                found[place] = {**found[place], "content": cut(str(found[place]["content"]), longest)}
    return tuple(found)


def _length(message: Message) -> int:
    return len(str(message.get("content") or ""))


def level_of(sizes: Sequence[int], room: int) -> int:
    """The length to which all are shortened that are longer, so that together they fit into the room."""
    left = sorted(sizes)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return max(room, 0) // len(left) if left else max(sizes, default=0)
