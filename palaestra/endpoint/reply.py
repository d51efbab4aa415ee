"""Parse a server's answer and check its figures.

A body is untrusted JSON: a value of an unexpected type raises `UnreadableReply`, no other error. Token counts may be
wrong, so each is checked against the request and the text; an impossible one is estimated and marked. Left out: HTTP,
timeouts and retries (`client`).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_HIDDEN_TOKENS = 2**18
"""Largest plausible number of completion tokens beyond the limit and the text: reasoning that a server does
not show."""
_TEMPLATE_TOKENS = 4096
"""Tokens that a server's template may add to a prompt."""
_BYTES_A_TOKEN = 4
_LONGEST_TOKEN = 128
_CUT = {"length", "max_tokens", "content_filter", "model_length"}
"""Finish reasons of an answer that is not whole, or that a filter withheld."""
_TOO_LONG = re.compile(
    r"context[ _-](?:length|window|size)|maximum (?:context|prompt|input)|(?:prompt|input) is too long|too many tokens",
    re.I,
)
_TAGS = re.compile(r"<[^<>]*>")
_SHOWN = 300
"""Characters of a server's message that are shown."""


class UnreadableReply(Exception):
    """Raised for a response without the requested content."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the server reports it. `arguments` is the model's text: usually JSON, not always."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of one answer."""

    prompt_tokens: int
    completion_tokens: int
    cost: float = 0.0
    """Cost by the prices in the configuration."""
    estimated: bool = False
    """True if the server gave no figures, or impossible ones."""


@dataclass(slots=True)
class Totals:
    """Sums over all requests that an endpoint has sent: their number, tokens and cost."""

    answers: int = 0
    tries: int = 0
    """Number of requests sent, failed ones too; the cost of a failed one is not known."""
    unanswered: int = 0
    """Number of requests given up after all their tries."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    estimated: int = 0
    """Number of answers whose token figures are our estimates."""
    refused_for_rate: int = 0
    """Number of requests that the server refused because there were too many; each was sent again."""
    at_once: int = 0
    """Number of requests that may be sent at once now: it falls when the server refuses some for their rate."""

    def add(self, usage: Usage) -> None:
        """Add one answer to the totals."""
        self.answers += 1
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.cost += usage.cost
        self.estimated += usage.estimated


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One turn of the model behind an endpoint."""

    content: str
    reasoning: str = ""
    """Thinking that the server reports separately from the content."""
    calls: tuple[ToolCall, ...] = ()
    cut: bool = False
    """True when the answer is not whole: its tokens ran out, a filter stopped it, the context was full."""
    usage: Usage = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class Problem:
    """An error that a server reports."""

    message: str
    code: str = ""
    parameter: str = ""
    status: int | None = None
    """The HTTP status inside the body: some servers answer 200 and put the error there."""

    @property
    def is_length(self) -> bool:
        """True if the dialogue is longer than the model's context."""
        return self.code == "context_length_exceeded" or bool(_TOO_LONG.search(self.message))


def parse(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a body. Raise `UnreadableReply` if there is none."""
    try:
        document = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UnreadableReply(f"bytes that are not UTF-8 ({error.reason} at {error.start})") from None
    except (ValueError, RecursionError):
        raise UnreadableReply(f"{_kind(body)} instead of JSON: {body[:200].decode('utf-8', 'replace')!r}") from None
    if not isinstance(document, dict):
        raise UnreadableReply(f"JSON that is no object: {_short(document)}")
    return document


def problem_of(document: Mapping[str, Any]) -> Problem | None:
    """Return the error in an answer, in any of the forms that servers use; None if there is none."""
    error = document.get("error")
    if not error and (document.get("object") == "error" or ("choices" not in document and "data" not in document)):
        error = document if "message" in document else document.get("detail")
    if not error:
        return None
    if not isinstance(error, dict):
        return Problem(error if isinstance(error, str) else _short(error))
    message, code = error.get("message"), error.get("code")
    status = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else None
    return Problem(
        message if isinstance(message, str) else _short(error),
        code if isinstance(code, str) else str(error.get("type") or ""),
        str(error.get("param") or ""),
        status,
    )


def problem_in_page(body: bytes) -> Problem:
    """Return the error in the body of a refusal, which may be JSON, a page or nothing."""
    try:
        problem = problem_of(parse(body))
    except UnreadableReply:
        problem = None
    return problem or Problem(plain(_TAGS.sub(" ", body[:10_000].decode("utf-8", "replace"))) or "(it gave no reason)")


def plain(text: str) -> str:
    """Return untrusted text on one line, of bounded length and without control characters."""
    text = " ".join(text.split())
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def read_answer(document: Mapping[str, Any], *, max_tokens: int | None, sent_bytes: int) -> ChatCompletion:
    """Return the turn in an answer, with a cost of 0: prices are not known to this function."""
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise UnreadableReply(f"no message in its 'choices': {_short(choices)}")
    content = _text(message.get("content"), "content") or _text(message.get("refusal"), "refusal")
    reasoning = _text(message.get("reasoning_content") or message.get("reasoning"), "reasoning")
    calls = _calls(message.get("tool_calls"))
    answer_bytes = sum(len(part.encode()) for part in (content, reasoning, *(c.name + c.arguments for c in calls)))
    usage, spoken = _usage(document.get("usage"), max_tokens, answer_bytes, sent_bytes)
    finish = choice.get("finish_reason")
    cut = (isinstance(finish, str) and finish in _CUT) or (max_tokens is not None and spoken >= max_tokens)
    return ChatCompletion(content, reasoning, calls, cut, usage)


def read_transcript(document: Mapping[str, Any]) -> str:
    """Return the transcript in a response."""
    text = document.get("text")
    if not isinstance(text, str):
        raise UnreadableReply(f"no 'text' but {', '.join(map(str, document))[:100]!r}")
    return text.encode("utf-8", "replace").decode("utf-8")


def _usage(reported: Any, max_tokens: int | None, answer_bytes: int, sent_bytes: int) -> tuple[Usage, int]:
    """Return the token counts, with estimates for impossible ones, and the completion tokens without the thinking."""
    figures = reported if isinstance(reported, dict) else {}
    prompt = _count(figures.get("prompt_tokens"), 1, sent_bytes + _TEMPLATE_TOKENS)
    max_completion = max(max_tokens or 0, answer_bytes) + MOST_HIDDEN_TOKENS
    completion = _count(figures.get("completion_tokens"), -(-answer_bytes // _LONGEST_TOKEN), max_completion)
    usage = Usage(
        sent_bytes // _BYTES_A_TOKEN + 1 if prompt is None else prompt,
        -(-answer_bytes // _BYTES_A_TOKEN) if completion is None else completion,
        estimated=prompt is None or completion is None,
    )
    details = figures.get("completion_tokens_details")
    hidden = _count(details.get("reasoning_tokens"), 0, completion or 0) if isinstance(details, dict) else 0
    return usage, (completion or 0) - (hidden or 0)


def _count(value: Any, minimum: int, maximum: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum else None


def _calls(value: Any) -> tuple[ToolCall, ...]:
    if not value:
        return ()
    if not isinstance(value, list):
        raise UnreadableReply(f"'tool_calls' of the wrong type: {_short(value)}")
    calls = []
    for item in value:
        function = item.get("function") if isinstance(item, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise UnreadableReply(f"a tool call without a function's name: {_short(item)}")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # Some servers send the object itself.
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(_text(name, "name"), _text(arguments, "arguments") or "{}"))
    return tuple(calls)


def _text(value: Any, where: str) -> str:
    """Return a text, with the parts of a list joined, and without lone surrogates, which cannot be written to files."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = "".join(part["text"] for part in value if isinstance(part.get("text"), str))
    if not isinstance(value, str):
        raise UnreadableReply(f"{where!r} of the wrong type: {_short(value)}")
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _kind(body: bytes) -> str:
    start = body[:500].lstrip().lower()
    return "nothing" if not start else "an HTML page" if start.startswith((b"<!doctype html", b"<html")) else "text"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."
