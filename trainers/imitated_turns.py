"""What of an episode is imitated: its thinking or not, all of its turns or those whose calls worked.

A thinking model may have to learn tools without losing its thoughts, or from a teacher that has none. Left out: which
episodes are imitated (`demonstrations`).
"""

from collections.abc import Sequence

from palaestra.episode import Episode, Message, Status
from palaestra.trainers.sft_config import ImitatedTurns, Thinking


def as_thought(messages: Sequence[Message], thinking: Thinking, opened: str) -> list[Message]:
    """The messages with each turn's thinking kept or stripped, as a student's template wants it.

    `opened` is what the template itself begins every turn with, for students that always think: a turn without
    thinking then ends it at once, or what is said would be learned as a thought.
    """
    return [
        {**message, "content": _turn(message["content"], thinking, opened)}
        if message["role"] == "assistant"
        else message
        for message in messages
    ]


def _turn(text: str, thinking: Thinking, opened: str) -> str:
    thought, mark, said = text.rpartition("</think>")
    if not opened:
        return said.lstrip() if mark and thinking == "strip" else text
    if not mark or thinking == "strip":
        return f"{opened}\n</think>\n\n{said.lstrip()}"
    inside = thought.lstrip().removeprefix(opened.strip())
    return f"{opened}{inside.lstrip(chr(10))}</think>{said}"


def taught_turns(episode: Episode, turns: ImitatedTurns) -> frozenset[int] | None:
    """The places of the messages that are imitated; None for all that the agent has said.

    A turn with a call that failed is context then: what the agent did about it is learned, and not the fault.
    """
    messages, calls = episode.attempt.messages, list(episode.attempt.calls)
    results = sum(message["role"] == "tool" for message in messages)
    if turns == "all" or results != len(calls):  # Nobody knows then which result is of which call.
        return None
    taught = {place for place, message in enumerate(messages) if message["role"] == "assistant"}
    turn = -1
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            turn = place
        elif message["role"] == "tool" and calls.pop(0).status is not Status.OK:
            taught.discard(turn)
    return frozenset(taught)
