"""Functions that demonstrators share: they read a dialogue, read a generated question, and follow plans of calls.

A demonstrator sees only the dialogue, as an agent does. Left out: the templates and the plans.
"""

import re
from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache

from palaestra.episode import Message
from palaestra.errors import UnknownTask
from palaestra.formats import ParsedCall, hermes

Plan = Generator[str, str, str]
"""Generator that yields calls, receives replies and returns the last turn. An unexpected reply raises `ValueError`."""


def question_of(messages: Sequence[Message]) -> str:
    """Return the question: the first message of the user."""
    return str(next(message["content"] for message in messages if message["role"] == "user"))


def replies_of(messages: Sequence[Message]) -> list[str]:
    """Return the replies of the tools."""
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


def call(name: str, **arguments: object) -> str:
    """Return the text of a turn that calls a tool."""
    return hermes.render([ParsedCall(name, arguments)])


def next_turn(plan: Plan, replies: Sequence[str]) -> str | None:
    """Replay a plan with these replies, and return its next turn; None if the plan cannot use a reply."""
    try:
        turn = next(plan)
        for reply in replies:
            turn = plan.send(reply)
    except StopIteration as end:
        return str(end.value)
    except ValueError:
        return None
    return turn


@lru_cache(maxsize=1024)
def pattern_of(template: str, values: str = ".+") -> re.Pattern[str]:
    """Return a pattern that matches the texts of a template, with a group for each field, such as {city}."""
    return re.compile(re.sub(r"\\{(\w+)\\}", lambda field: f"(?P<{field[1]}>{values})", re.escape(template)))


def filled(text: str, fields: dict[str, str]) -> str:
    """Return a text in which fields are replaced by values. Other braces stay, unlike with `str.format`."""
    for name, value in fields.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def solution_of(question: str, templates: Iterable[tuple[str, str]], values: str = r"\d+") -> str:
    """Find the template of a question, and return its solution with the question's values. Raise `UnknownTask`."""
    for template, solution in templates:
        if match := pattern_of(template, values).fullmatch(question):
            return filled(solution, match.groupdict())
    raise UnknownTask(question)


def number_of(page: str, kind: str, name: str) -> int:
    """Return the number of an element in the text of a page. Raise `ValueError` if it is not there."""
    match = re.search(rf"\[(\d+):{kind} {re.escape(name)}(?=\]| =| \()", page)
    if match is None:
        raise ValueError(f"there is no {kind} {name!r} in {page[:100]!r}")
    return int(match[1])


def follow(label: str) -> Plan:
    """Find a link on the page and click on it. Return the new page."""
    line = yield call("find", text=label)
    return (yield call("click", number=number_of(line, "link", label)))
