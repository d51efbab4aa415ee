"""The wire format of chat completions: a request as it is read, and a turn as it is answered.

Frameworks trim what the model said and spell its JSON in their own way, so an assistant's message is recognised by its
`mark`: role, words without outer space, calls with canonical arguments. The words of others are compared exactly.
Left out: which dialogue a request belongs to (`world`), and HTTP (`server`).
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from palaestra.envs.core.calls import clean
from palaestra.episode import Message
from palaestra.formats import Format, ParsedCall

MODEL = "palaestra"
"""Name of the one model; requests may name any other."""
NAME = "harness"
"""Name in messages whose words come from the harness, so that no control token in them takes effect."""
MAX_CHOICES = 32
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REFUSED = ("logit_bias", "functions", "function_call", "logprobs", "top_logprobs", "audio", "modalities", "prediction")
_NOT_FOLLOWED: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,), "seed": (), "presence_penalty": (0,), "frequency_penalty": (0,), "reasoning_effort": (),
    "tool_choice": ("auto",), "parallel_tool_calls": (True,),
}  # fmt: skip
"""Wishes that are not followed but counted, with the values that are no wish."""
Mark = tuple[str, str, tuple[tuple[str, str], ...]]


class Refused(Exception):
    """Raised for a request that is answered with an error, in the form of OpenAI's API."""

    def __init__(self, status: int, text: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body = {"message": text, "type": "invalid_request_error", "param": param, "code": code}


class TurnRequest(NamedTuple):
    """A request for a turn."""

    messages: tuple[Message, ...]
    marks: tuple[Mark, ...]
    tools: tuple[Mapping[str, Any], ...]
    results: Mapping[str, str]
    """Results of tools that the request tells, by the id of the call."""
    n: int
    stop: tuple[str, ...]
    max_tokens: int | None
    temperature: float | None
    stream: bool
    stream_usage: bool
    unfollowed: tuple[str, ...] = ()
    """Names of wishes that are not followed."""


def read(body: bytes) -> dict[str, Any]:
    """Return the fields in the body of a request; raise Refused if it is no JSON object."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Refused(400, "the body is no JSON object")
    return fields


def turn_request(fields: Mapping[str, Any]) -> TurnRequest:
    """Return the request in these fields; raise Refused, with a parameter's name, for what cannot be followed."""
    for name in _REFUSED:
        if fields.get(name):
            raise Refused(400, f"{name} is not supported here", name)
    if (fields.get("response_format") or {"type": "text"}) != {"type": "text"}:
        raise Refused(400, "response_format must be text; this model's output is not constrained", "response_format")
    messages, marks, results = _messages(_of(fields, "messages", list, ()))
    stop = fields.get("stop") or ()
    n = _of(fields, "n", int, 1)
    if not 1 <= n <= MAX_CHOICES:
        raise Refused(400, f"n is {n}; expected 1 to {MAX_CHOICES}", "n")
    limit = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _of(fields, limit, int, None)
    if max_tokens is not None and max_tokens < 1:
        raise Refused(400, f"{limit} is {max_tokens}; expected at least 1", limit)
    temperature = _of(fields, "temperature", int | float, None)
    if temperature is not None and not 0 <= temperature <= 2:
        raise Refused(400, f"temperature is {temperature}; expected 0 to 2", "temperature")
    options = _of(fields, "stream_options", dict, {})
    return TurnRequest(
        messages, marks, _tools(_of(fields, "tools", list, ())), results, n,
        (stop,) if isinstance(stop, str) else tuple(map(str, stop)), max_tokens, temperature,
        bool(fields.get("stream")), bool(options.get("include_usage")),
        tuple(name for name, none in _NOT_FOLLOWED.items() if fields.get(name, *none[:1]) not in (None, *none)),
    )  # fmt: skip


def _of(fields: Mapping[str, Any], name: str, kind: Any, default: Any) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Refused(400, f"{name} is {value!r:.60}; expected {getattr(kind, '__name__', kind)}", name)
    return value


def _messages(values: Sequence[Any]) -> tuple[tuple[Message, ...], tuple[Mark, ...], dict[str, str]]:
    """Return messages as templates show them, their marks, and the results of tools by the id of the call."""
    if not values:
        raise Refused(400, "messages is empty; expected at least one message", "messages")
    messages: list[Message] = []
    marks: list[Mark] = []
    names: dict[Any, str] = {}
    results: dict[str, str] = {}
    for place, message in enumerate(values):
        where = f"messages[{place}]"
        role = _ROLES.get(str(message.get("role"))) if isinstance(message, dict) else None
        if role is None:
            raise Refused(400, f"{where} has no role of {', '.join(_ROLES)}", where)
        words = clean(_text(message.get("content"), f"{where}.content"))
        calls: tuple[tuple[str, str], ...] = ()
        if role == "assistant":
            written = list(_calls(message, where))
            names |= {call_id: name for call_id, name, _ in written}
            calls = tuple((name, _canonical(arguments)) for _, name, arguments in written)
            messages.append({"role": role, "name": NAME, "content": words, "weight": 0})
        elif role == "tool":
            call_id = str(message.get("tool_call_id"))
            messages.append({"role": role, "name": names.get(call_id, "tool"), "content": words})
            results[call_id] = words
        else:
            messages.append({"role": role, **({"name": NAME} if role == "system" else {}), "content": words})
        marks.append((role, words.strip() if role == "assistant" else words, calls))
    return tuple(messages), tuple(marks), results


def _calls(message: Mapping[str, Any], where: str) -> Iterator[tuple[Any, str, str]]:
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(400, f"a call in {where}.tool_calls has no function with a name", f"{where}.tool_calls")
        yield call.get("id"), function["name"], str(function.get("arguments") or "{}")


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") or part.get("refusal") if isinstance(part, dict) else part for part in parts]
    words = [text for text in texts if isinstance(text, str)]
    if len(words) < len(texts):
        raise Refused(400, f"{where} has a part that is no text; this model reads text alone", where)
    return "".join(words)


def _tools(values: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    for place, schema in enumerate(values):
        function = schema.get("function") if isinstance(schema, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(400, f"tools[{place}] is no function with a name", f"tools[{place}]")
    return tuple(values)


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def render(mark: Mark, form: Format) -> str:
    """Return the text of an assistant's message that our model did not write, with its calls in the model's format."""
    try:
        calls = [ParsedCall(name, json.loads(arguments)) for name, arguments in mark[2]]
        return form.render(calls, mark[1]) if calls else mark[1]
    except Exception:  # Arguments that are no object, or a format that cannot write them.
        return "\n".join([mark[1], *(f"{name}({arguments})" for name, arguments in mark[2])]).strip()


def choice(text: str, request: TurnRequest, form: Format, first_call: int) -> tuple[dict[str, Any], Mark]:
    """Return a turn as the choice of an answer, and the mark by which it will be recognised.

    `first_call` is the number in the id of its first call. A call that cannot be read stays text.
    """
    parsed = form.parse(text, request.tools)
    calls = [call for call in parsed.calls if isinstance(call, ParsedCall)]
    thought, closing, spoken = text.rpartition("</think>")
    words = parsed.content
    if len(calls) < len(parsed.calls):
        calls, words = [], spoken.strip()
    for stop in request.stop:
        words = words.partition(stop)[0]
    message: dict[str, Any] = {"role": "assistant", "content": words or (None if calls else ""), "refusal": None}
    if closing:
        message["reasoning_content"] = thought.removeprefix("<think>").strip()
    marked = []
    for number, call in enumerate(calls, start=first_call):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        message.setdefault("tool_calls", []).append({"id": f"call_{number}", "type": "function", "function": function})
        marked.append((call.name, _canonical(arguments)))
    reason = "tool_calls" if calls else "stop"
    answer = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return answer, ("assistant", clean(words).strip(), tuple(marked))


def completion(choices: Sequence[Mapping[str, Any]], usages: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the body of an answer. `usages` holds the numbers of tokens of each choice: read, and sampled."""
    read_tokens, sampled = max(usage[0] for usage in usages), sum(usage[1] for usage in usages)
    return {
        "id": f"chatcmpl-{time.monotonic_ns():x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{**answer, "index": index} for index, answer in enumerate(choices)],
        "usage": {
            "prompt_tokens": read_tokens, "completion_tokens": sampled, "total_tokens": read_tokens + sampled
        },
    }  # fmt: skip


def chunks(body: Mapping[str, Any], usage: bool) -> bytes:
    """Return an answer as a stream of server-sent events: each turn whole in one chunk, then the reason of its end."""
    head = {**body, "object": "chat.completion.chunk"}
    numbers = head.pop("usage")
    events = []
    for answer in body["choices"]:
        delta = {name: value for name, value in answer["message"].items() if name != "refusal"}
        if "tool_calls" in delta:
            delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(delta["tool_calls"])]
        part = {"index": answer["index"], "logprobs": None}
        events += [{**part, "delta": delta, "finish_reason": None}]
        events += [{**part, "delta": {}, "finish_reason": answer["finish_reason"]}]
    lines = [{**head, "choices": [event]} for event in events]
    if usage:
        lines.append({**head, "choices": [], "usage": numbers})
    return b"".join([*(b"data: " + json.dumps(line).encode() + b"\n\n" for line in lines), b"data: [DONE]\n\n"])
