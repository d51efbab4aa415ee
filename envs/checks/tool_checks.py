"""Checks of tools and toolkits: nothing that an agent does breaks them, and what they raise is told to their author.

Left out: time that they take (`holdups`), and what they leave behind for the next episode (`leaks`).
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler

from palaestra.authorship import foreign_line
from palaestra.envs.checks.cheats import calls_of, crashing_calls
from palaestra.envs.checks.findings import Noted, difference, require
from palaestra.envs.checks.trials import Chair, Subject
from palaestra.envs.core import branches, calls
from palaestra.episode import Call, Ending, Message, Status
from palaestra.errors import UsageError


def crashing_is_no_escape(subject: Subject) -> None:
    """No call, whatever it does to its tool, ends an episode BROKEN: that would save an agent from its reward.

    What a tool raises beside ToolError is told, and a tool that never does anything else has failed.
    """
    notes = []
    for chair in subject.chairs():
        for schema in chair.schemas:
            name, made = schema["function"]["name"], list[Call]()
            with _warned() as warned:
                for given in crashing_calls(schema):
                    if chair.begin().ending is not None:
                        break
                    event = chair.say(chair.call(name, **given))
                    require(
                        event.ending is not Ending.BROKEN,
                        f"the call {name}({str(given)[:80]}){chair.of} ended an episode broken ({event.fault}); what "
                        "the agent's arguments can do is a ToolError: keep a limit inside the tool that is shorter "
                        "than its timeout",
                    )
                    assert chair.machine.state is not None
                    made += chair.machine.state.seats[chair.seat].calls
                chair.machine.discard()
            # A ToolError is an answer. What is no such error is logged once, and told each time by its class.
            kinds = tuple(f"Error: {type(r.exc_info[1]).__name__}" for r in warned if r.exc_info)
            answered = not all(call.status is Status.TOOL_ERROR and call.text.startswith(kinds) for call in made)
            for record in warned:
                if (error := record.exc_info and record.exc_info[1]) is not None:
                    place = foreign_line(error)
                    said = f"the tool {name!r}{chair.of} raised {type(error).__name__}: {error!s:.80} ({place})"
                    notes.append(f"{said}, and the agent is told so; raise ToolError with words that help it")
                    require(answered, f"no call of this check was answered: {notes[-1]}")
                require("did not close" not in record.msg, record.getMessage())
    if notes:
        raise Noted("; ".join(dict.fromkeys(notes)))


@contextmanager
def _warned() -> Iterator[list[logging.LogRecord]]:
    """What is logged meanwhile of tools and toolkits that fail, though it was logged before."""
    log, handler = logging.getLogger("palaestra.envs"), BufferingHandler(sys.maxsize)
    before = log.level, log.propagate
    log.addHandler(handler)
    calls._logged.clear()
    log.setLevel(logging.WARNING)
    log.propagate = False
    try:
        yield handler.buffer
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before


def branches_go_on_alike(subject: Subject) -> None:
    """From a snapshot an episode goes on as it did before; what has no snapshots needs none."""
    for chair in subject.chairs():
        event = chair.begin(3, 5)
        if event.ending is None and chair.schemas and chair.max_turns > 1:
            event = chair.say(calls_of(chair, "1", chair.schemas))
        if event.ending is not None:
            continue
        try:
            stand = branches.take(chair.machine)
        except UsageError:
            continue
        first = _to_the_end(chair)
        branches.put(chair.machine, stand)
        found = difference(first, _to_the_end(chair), "its further messages")
        require(not found, f"an episode{chair.of} goes on differently after restore: {found}; see Toolkit.snapshot")


def _to_the_end(chair: Chair) -> list[Message]:
    """What is heard from here on, by who calls every tool once more and then gives an answer."""
    place = len(chair.messages)
    turn = sum(one["role"] == "assistant" for one in chair.messages)
    if chair.schemas and turn < chair.max_turns - 1:
        event = chair.say(calls_of(chair, "1", chair.schemas))
        if event.ending is not None:
            return chair.messages[place:]
    chair.say("1")
    heard, chair.messages = chair.messages[place:], chair.messages[:place]
    return heard
