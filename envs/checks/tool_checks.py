"""Checks of tools and toolkits: nothing that an agent does breaks them, and their errors are reported to the author.

Left out: time that they take (`holdups`), and state that they leave behind for the next episode (`leaks`).
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from math import inf
from typing import get_type_hints

from palaestra.authorship import foreign_line
from palaestra.envs.checks import trials
from palaestra.envs.checks.cheats import calls_of, crashing_calls
from palaestra.envs.checks.findings import Noted, Skipped, advice_on, require, require_same
from palaestra.envs.checks.trials import Chair, Subject
from palaestra.envs.core import branches, calls
from palaestra.episode import Call, Ending, Message, Status
from palaestra.errors import UsageError


def crashing_is_no_escape(subject: Subject) -> None:
    """Require that no arguments of a call end an episode BROKEN: the agent could escape a bad reward by such a call.

    Exceptions other than ToolError are noted. A tool whose every call raises one fails the check.
    """
    notes = []
    for chair in subject.chairs():
        chair.let_last(subject.slow)  # Then all calls are in one episode, unless it ends.
        for schema in chair.schemas:
            name, seat_calls = schema["function"]["name"], list[Call]()
            with warned() as warnings:
                until = time.monotonic() + (trials.CHEAT_SECONDS if subject.slow else inf)
                for values in crashing_calls(schema):
                    if time.monotonic() > until and len(seat_calls) >= trials.MIN_EPISODES:
                        break
                    if not chair.ready(subject.slow):
                        break
                    event = chair.say(chair.call(name, **values))
                    require(
                        event.ending is not Ending.BROKEN,
                        f"the call {name}({str(values)[:80]}){chair.of} ended an episode broken ({event.fault}); what "
                        "the agent's arguments can do is a ToolError: keep a limit inside the tool that is shorter "
                        "than its timeout",
                    )
                    assert chair.machine.state is not None
                    seat_calls += chair.machine.state.seats[chair.seat].calls[-1:]
                if not subject.slow:
                    chair.machine.discard()
            require_texts(chair, seat_calls)
            # A ToolError is an answer. Any other exception is logged once, and named by its class in every result.
            kinds = tuple(f"Error: {type(r.exc_info[1]).__name__}" for r in warnings if r.exc_info)
            answered = not all(call.status is Status.TOOL_ERROR and call.text.startswith(kinds) for call in seat_calls)
            for record in warnings:
                if fault := raised(record, f"the tool {name!r}{chair.of}"):
                    notes.append(fault)
                    require(answered, f"no call of this check was answered: {fault}")
                require("did not close" not in record.msg, record.getMessage())
    if notes:
        raise Noted("; ".join(dict.fromkeys(notes)))


def require_texts(chair: Chair, calls: Iterable[Call]) -> None:
    """Require that a tool whose result is annotated as a text returned one in these calls."""
    table = chair.spec.offers[chair.seat].table
    for call in calls:
        called = table.get(call.name)  # A harness brings tools of its own.
        if called is not None and call.status is Status.OK and call.text == "null" not in call.arguments.values():
            require(
                get_type_hints(called.function).get("return") is not str,
                f"the tool {call.name!r}{chair.of} is annotated -> str and returned nothing, so the agent reads null; "
                "return a text",
            )


def raised(record: logging.LogRecord, tool: str) -> str:
    """Describe the exception of a tool that a warning holds, with the author's line; "" if it holds none."""
    error = record.exc_info and record.exc_info[1]
    if error is None:
        return ""
    advice = advice_on(error, "raise ToolError with words that help it")
    what = f"{tool} raised {type(error).__name__}: {error!s:.80} ({foreign_line(error)})"
    return f"{what}, and the agent is told so; {advice}"


@contextmanager
def warned() -> Iterator[list[logging.LogRecord]]:
    """Collect the warnings about failing tools and toolkits in this block, including those that are logged only
    once."""
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
    """Require that an episode continues from a snapshot as it did before."""
    for chair in subject.chairs():
        try:
            if subject.slow:  # Most toolkits say without a start that they have no snapshots.
                _ask_for_snapshots(chair)
            event = chair.begin(3, 5)
            branches.take(chair.machine)
        except UsageError as error:
            raise Skipped(f"its episodes cannot be branched: {error}") from None
        if event.ending is None and chair.schemas and chair.max_turns > 1:
            event = chair.say(calls_of(chair, "1", chair.schemas))
        if event.ending is not None:
            continue
        stand = branches.take(chair.machine)
        first = _to_the_end(chair)
        branches.put(chair.machine, stand)
        problem = f"an episode{chair.of} goes on differently after restore"
        require_same(first, _to_the_end(chair), "its further messages", problem, "see Toolkit.snapshot")


def _ask_for_snapshots(chair: Chair) -> None:
    """Raise UsageError if a toolkit that has not started supports no snapshots."""
    for _, kit in chair.machine.kits.make():
        try:
            kit.snapshot()
        except UsageError:
            raise
        except Exception:  # It needs its start.
            continue


def _to_the_end(chair: Chair) -> list[Message]:
    """Call every tool once more, answer, and return the messages of both turns; the seat's messages are restored."""
    place = len(chair.messages)
    turn = sum(message["role"] == "assistant" for message in chair.messages)
    if chair.schemas and turn < chair.max_turns - 1:
        event = chair.say(calls_of(chair, "1", chair.schemas))
        if event.ending is not None:
            return chair.messages[place:]
    chair.say("1")
    new_messages, chair.messages = chair.messages[place:], chair.messages[:place]
    return new_messages
