"""The Responses API, which some frameworks prefer, as chat completions: its requests and answers are translated.

Each request holds the whole dialogue; a stream brings each item whole. Left out: `previous_response_id`, and tools that
a server would run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from palaestra.envs.harness.wire import Refused

_PLAIN = {"max_output_tokens": "max_tokens"} | {
    name: name for name in ("temperature", "stream", "top_p", "tool_choice", "parallel_tool_calls", "top_logprobs")
}
_REFUSED = ("previous_response_id", "conversation", "background")


def to_chat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request for a response as those of a chat completion."""
    for name in _REFUSED:
        if fields.get(name):
            raise Refused(400, f"{name} is not supported by /v1/responses here", name)
    form = (fields.get("text") or {}).get("format") if isinstance(fields.get("text"), dict) else None
    if (form or {"type": "text"}) != {"type": "text"}:
        raise Refused(400, "text.format must be text; this model's output is not constrained", "text.format")
    text_or_items = fields.get("input")
    items: Sequence[Any] = text_or_items or []
    if isinstance(text_or_items, str):
        items = [{"role": "user", "content": text_or_items}]
    messages: list[dict[str, Any]] = []
    if fields.get("instructions"):
        messages.append({"role": "system", "content": fields["instructions"]})
    for place, item in enumerate(items):
        _add(messages, item, f"input[{place}]")
    tools = []
    for place, tool in enumerate(fields.get("tools") or ()):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise Refused(400, f"tools[{place}] is no function; others are not run here", f"tools[{place}]")
        described = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
        tools.append({"type": "function", "function": described})
    wishes = {name: fields[key] for key, name in _PLAIN.items() if fields.get(key) is not None}
    return {"messages": messages, "tools": tools, **wishes}


def _add(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    """Append an item of the input. A call belongs to the assistant's message before it."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind != "reasoning":
        raise Refused(400, f"{where} is of the type {kind!r}, which this model does not read", where)


def from_chat(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat completion as a response."""
    message, usage, number = answer["choices"][0]["message"], answer["usage"], answer["id"].rpartition("-")[2]
    output: list[dict[str, Any]] = []
    if message["content"] is not None:
        content = [{"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}]
        output.append({"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content})
    for call in message.get("tool_calls", ()):
        output.append({"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], **call["function"]})
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": answer["created"],
        "status": "completed",
        "model": answer["model"],
        "output": [{**item, "status": "completed"} for item in output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def events(response: Mapping[str, Any]) -> bytes:
    """Return a response as a stream of server-sent events."""
    opening = {**response, "status": "in_progress", "output": [], "usage": None}
    parts: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": opening}),
        ("in_progress", {"response": opening}),
    ]
    for index, item in enumerate(response["output"]):
        parts += [(kind, {**fields, "output_index": index}) for kind, fields in _item_events(item)]
    parts.append(("completed", {"response": response}))
    lines = []
    for number, (kind, fields) in enumerate(parts):
        event = {"type": f"response.{kind}", "sequence_number": number, **fields}
        lines.append(f"event: response.{kind}\ndata: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


def _item_events(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of an item of the output: it begins empty, comes as one delta, and is then whole."""
    is_call, at = item["type"] == "function_call", {"item_id": item["id"]}
    empty: dict[str, Any] = {"arguments": ""} if is_call else {"content": []}
    yield "output_item.added", {"item": {**item, **empty, "status": "in_progress"}}
    if is_call:
        yield "function_call_arguments.delta", {**at, "delta": item["arguments"]}
        yield "function_call_arguments.done", {**at, "name": item["name"], "arguments": item["arguments"]}
    for place, part in enumerate(() if is_call else item["content"]):
        at["content_index"] = place
        yield "content_part.added", {**at, "part": {**part, "text": ""}}
        yield "output_text.delta", {**at, "delta": part["text"], "logprobs": []}
        yield "output_text.done", {**at, "text": part["text"], "logprobs": []}
        yield "content_part.done", {**at, "part": part}
    yield "output_item.done", {"item": item}
