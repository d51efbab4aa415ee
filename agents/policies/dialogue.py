"""Convert dialogues to the form of OpenAI-compatible servers, and the servers' answers to the form of environments.

An environment's messages hold tool calls as text in the assistant's turns. Servers expect calls as objects, each with
an id that its result repeats. `to_native` converts a turn to objects if nothing is lost. A turn that the environment
could not read (a malformed call) stays text, and its results become a user's message, so that the model sees its own
mistake. `to_text_only` is for servers without tool support: calls stay text, and the tools' schemas go into the system
message. A recorded turn holds the thinking as `<think>...</think>`, as local models write it, but later requests leave
it out: most servers drop it, and some refuse it. Left out: HTTP (`palaestra.endpoint`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.endpoint import ChatCompletion, ToolCall
from palaestra.episode import Message
from palaestra.formats import CallParseError, Format, Parsed, ParsedCall

ToolSchemas = Sequence[Mapping[str, Any]]
"""The tools an agent may call, in the OpenAI form."""
TOOL_TEXT = (
    "You can use tools. To call one, write exactly this, with its name and arguments:\n"
    "{example}\nSeveral calls in one turn are run together; the results come in the next message. "
    "A turn without a call is your answer.\n\nThe tools:\n{schemas}"
)
"""Text about the tools, for a system message."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that servers accept; a model may have called any other."""
_NOT_RUN = "This call was not run."
_HOLE = {"hole": "hole"}
"""Placeholder arguments: their rendered text is replaced by the model's own text."""


def to_native(messages: Sequence[Message], tools: ToolSchemas, form: Format) -> list[Message]:
    """Return the messages with each call as an object, and with the id of its call in each result."""
    wire: list[Message] = []
    turn = at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message["role"] != "assistant" or message.get("tool_calls"):
            _append(wire, message)
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        parsed = form.parse(str(message.get("content") or ""), tools)
        calls = _objects(parsed, turn) if end > at else None
        turn += 1
        if calls is None:
            response = parsed.content if parsed.is_answer else message["content"]
            wire.append({"role": "assistant", "content": response})
            continue
        results = [str(result.get("content") or "") for result in messages[at:end]]
        wire.append({"role": "assistant", "content": parsed.content or None, "tool_calls": calls})
        for number, call in enumerate(calls):  # Each id needs a result, also if the environment ran fewer calls.
            content = results[number] if number < len(results) else _NOT_RUN
            wire.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        at += min(len(calls), len(results))
    return wire


def to_text_only(messages: Sequence[Message], tools: ToolSchemas, form: Format) -> list[Message]:
    """Return the messages as plain text. The system message lists the tools and says how to call them."""
    wire: list[Message] = []
    for message in messages:
        _append(wire, message)
    if tools:
        schemas = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
        how = TOOL_TEXT.format(example=form.EXAMPLE, schemas=schemas)
        if wire and wire[0]["role"] == "system":
            wire[0] = {**wire[0], "content": f"{wire[0]['content']}\n\n{how}"}
        else:
            wire.insert(0, {"role": "system", "content": how})
    return wire


def to_text(answer: ChatCompletion, tools: ToolSchemas, form: Format) -> str:
    """Return a server's answer as text for the environment. A malformed call is not repaired."""
    turn = _turn(answer, tools, form)
    thinking = answer.reasoning.replace("</think>", "</ think>").strip()
    thought = f"<think>\n{thinking}\n</think>\n" if thinking else ""
    return thought + turn


def _append(wire: list[Message], message: Message) -> None:
    """Append a message. A tool result without a call id becomes a user message."""
    if message["role"] != "tool" or "tool_call_id" in message:
        wire.append(dict(message))
        return
    name = f" of {message['name']}" if message.get("name") else ""
    result_text = f"Result{name}:\n{message.get('content') or ''}"
    if wire and wire[-1].get("role") == "user" and wire[-1]["content"].startswith("Result"):
        wire[-1]["content"] += f"\n\n{result_text}"  # Some templates require alternating roles.
    else:
        wire.append({"role": "user", "content": result_text})


def _objects(parsed: Parsed, turn: int) -> list[dict[str, Any]] | None:
    """Return the calls of a turn as objects, or None if one of them cannot be sent."""
    calls = []
    for number, call in enumerate(parsed.calls):
        if not isinstance(call, ParsedCall) or not _NAME.fullmatch(call.name):
            return None
        try:
            arguments = json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            return None
        # Nine letters and digits: the only form of an id that every server takes.
        identity = f"c{turn % 10_000:04d}{number:04d}"
        calls.append({"id": identity, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    return calls or None


def _turn(answer: ChatCompletion, tools: ToolSchemas, form: Format) -> str:
    """Return an answer's content and calls as text, without its thinking. A malformed call is not repaired."""
    if not answer.calls:
        return answer.content
    try:
        expected = tuple(ParsedCall(call.name, json.loads(call.arguments)) for call in answer.calls)
        for content in (answer.content, ""):  # A tag left open in the content would hide the calls.
            text = form.render(expected, content)
            if form.parse(text, tools).calls[-len(expected) :] == expected:
                return text
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # Not JSON, not an object, or nothing that the format can write.
    written = "\n".join(_call_text(call, tools, form) for call in answer.calls)
    text = f"{answer.content}\n{written}"
    return text if len(form.parse(text, tools).calls) >= len(form.parse(written, tools).calls) else written


def _call_text(call: ToolCall, tools: ToolSchemas, form: Format) -> str:
    """Return one call as text. A malformed call is not repaired."""
    hole = json.dumps(_HOLE)
    try:
        text = form.render([ParsedCall(call.name, _HOLE)])
        filled = text.replace(hole, call.arguments)
        read = form.parse(filled, tools).calls
        if hole in text and len(read) == 1 and (isinstance(read[0], CallParseError) or read[0].name == call.name):
            return filled
        # No JSON in this format, or the text would break out of its call: it goes into an argument that no tool has.
        return form.render([ParsedCall(call.name, {"malformed_arguments": call.arguments})])
    except ValueError:  # A name, or a text, that the format cannot write.
        return form.EXAMPLE
