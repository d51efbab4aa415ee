"""Choose the parts of an episode to imitate: with thinking or without, all turns or only those whose calls worked.

A thinking model may have to learn tools without losing its thoughts, or from a teacher that has none. Not in this
module: the choice of episodes (`demonstrations`).
"""

from collections.abc import Sequence

from palaestra.episode import Episode, Message, Status, is_turn


def as_thought(messages: Sequence[Message], opened: str, strip: bool) -> list[Message]:
    """Return the messages with each turn's thinking kept or stripped, as the student's template needs it.

    `opened` is the text with which the template begins every turn of a student that always thinks, otherwise "". In a
    turn without thinking the block is closed at once, because the response would else be learned as a thought.
    """
    return [
        {**message, "content": _turn(message["content"], opened, strip)} if is_turn(message) else message
        for message in messages
    ]


def _turn(text: str, opened: str, strip: bool) -> str:
    thought, mark, response = text.rpartition("</think>")
    if not opened:
        return response.lstrip() if mark and strip else text
    if not mark or strip:
        return f"{opened}\n</think>\n\n{response.lstrip()}"
    inside = thought.lstrip().removeprefix(opened.strip())
    return f"{opened}{inside.lstrip(chr(10))}</think>{response}"


def turns_that_worked(episode: Episode) -> frozenset[int] | None:
    """Return the indices of the agent's turns without a failed call; None if results cannot be matched to calls.

    The other turns are context: the agent learns the reaction to an error, not the error.
    """
    messages, calls = episode.attempt.messages, list(episode.attempt.calls)
    results = sum(message["role"] == "tool" for message in messages)
    if results != len(calls) or episode.attempt.dialogues:
        return None
    worked = {place for place, message in enumerate(messages) if is_turn(message)}
    turn = -1
    for place, message in enumerate(messages):
        if is_turn(message):
            turn = place
        elif message["role"] == "tool" and calls.pop(0).status is not Status.OK:
            worked.discard(turn)
    return frozenset(worked)
