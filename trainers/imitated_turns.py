"""What of an episode is imitated: its thinking or not, all of its turns or those whose calls worked.

A thinking model may have to learn tools without losing its thoughts, or from a teacher that has none. Left out: which
episodes are imitated (`demonstrations`).
"""

from collections.abc import Sequence

from palaestra.episode import Episode, Message, Status


def as_thought(messages: Sequence[Message], opened: str, strip: bool) -> list[Message]:
    """The messages with each turn's thinking kept or stripped, as a student's template wants it.

    `opened` is what the template itself begins every turn with, for students that always think: a turn without
    thinking then ends it at once, or what is said would be learned as a thought.
    """
    return [
        {**one, "content": _turn(one["content"], opened, strip)} if one["role"] == "assistant" else one
        for one in messages
    ]


def _turn(text: str, opened: str, strip: bool) -> str:
    thought, mark, said = text.rpartition("</think>")
    if not opened:
        return said.lstrip() if mark and strip else text
    if not mark or strip:
        return f"{opened}\n</think>\n\n{said.lstrip()}"
    inside = thought.lstrip().removeprefix(opened.strip())
    return f"{opened}{inside.lstrip(chr(10))}</think>{said}"


def turns_that_worked(episode: Episode) -> frozenset[int] | None:
    """The places of the agent's turns without a call that failed; None where it is not known whose a result is.

    The others are context: what the agent did about a fault is learned, and not the fault.
    """
    messages, calls = episode.attempt.messages, list(episode.attempt.calls)
    results = sum(message["role"] == "tool" for message in messages)
    if results != len(calls):
        return None
    worked = {place for place, message in enumerate(messages) if message["role"] == "assistant"}
    turn = -1
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            turn = place
        elif message["role"] == "tool" and calls.pop(0).status is not Status.OK:
            worked.discard(turn)
    return frozenset(worked)
