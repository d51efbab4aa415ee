"""Data of one episode for the page: a short entry for the lists, and the content for the opened episode.

Names from an environment or an agent are values of this data, never keys, so a tool called `__proto__` is harmless.
Token arrays are sent as base64 of their little-endian bytes, which is exact and quick to read.
"""

import base64
import json
import math
from collections.abc import Mapping
from itertools import zip_longest
from pprint import pformat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Call, Episode, Message, Status, TokenRow, is_turn
from palaestra.record import Record
from palaestra.trainers.reward.judge_agreement import labelled_episode

_SHORT = 240
"""Largest number of characters of a text in a list."""
_PRETTY = 50_000
"""Largest length, in characters, of a value that is pretty-printed over several lines."""

Pairs = list[list[Any]]


def entry(record: Record) -> dict[str, Any]:
    """Return the data that the lists show, sort and filter by."""
    episode, lesson = record.episode, next(iter(record.lessons), None)
    attempt, verdict = episode.attempt, labelled_episode(record)
    statuses = [str(call.status) for call in attempt.calls]
    return {
        "step": None if lesson is None else lesson.step,
        "group": episode.start.group,
        "task": episode.start.task,
        "seed": str(episode.start.seed),  # JavaScript rounds numbers above 2^53.
        "seat": episode.start.seat,
        "prompt": _short(attempt.task.prompt),
        "expected": _short(as_text(attempt.task.answer)),
        "answer": None if attempt.answer is None else _short(attempt.answer),
        "env": record.env_id,
        "agent": record.agent,
        "synthetic": record.synthetic,
        "ending": str(episode.ending),
        "reward": number(episode.reward),
        "parts": numbers(episode.parts),
        "terms": [] if lesson is None else numbers(lesson.terms),
        "score": None if lesson is None else number(lesson.remarks.get("score")),
        "contradicts": (verdict and verdict.contradiction) or "",
        "advantage": None if lesson is None else number(sum(step_lesson.advantage for step_lesson in record.lessons)),
        "attempt": 2 if episode.start.prefix else 1,
        "turns": attempt.turns,
        "calls": len(attempt.calls),
        "failed": sum(status != Status.OK for status in statuses),
        "statuses": sorted(set(statuses)),
        "tokens": sum(len(row) for row in episode.rows),
        "sampled": episode.sampled_tokens,
        "seconds": number(episode.seconds),
        "versions": list(episode.versions or ()),
        "fault": _short(_failure(episode)),
    }


def content(record: Record) -> dict[str, Any]:
    """Return the data that an opened episode shows: messages, tool calls, data of the task, and tokens."""
    episode, lesson = record.episode, next(iter(record.lessons), None)
    attempt = episode.attempt
    trainer_logprobs = () if lesson is None else lesson.trainer_logprobs
    return {
        "messages": [_message(message) for message in _messages(episode)],
        "dialogues": len(episode.dialogues),
        "refused": attempt.refused,
        "prefix": _opening(episode),
        "earlier": len(episode.start.prefix),
        "calls": [_call(call) for call in attempt.calls],
        "tools": [_tool(schema) for schema in episode.tools],
        "prompt": attempt.task.prompt,
        "task_id": attempt.task.id,
        "expected": as_text(attempt.task.answer),
        "data": pairs(attempt.task.data),
        "options": pairs(record.options),
        "answer": attempt.answer,
        "fault": _failure(episode),
        "updates": None if lesson is None else lesson.updates,
        "remarks": [] if lesson is None else pairs(lesson.remarks),
        "rows": [_row(*pair) for pair in zip_longest(episode.rows, trainer_logprobs[: len(episode.rows)])],
    }


def texts(record: Record) -> list[str]:
    """Return the texts that a full-text search covers."""
    attempt = record.episode.attempt
    texts_found = [_message(message)["text"] for message in _messages(record.episode)]
    for call in attempt.calls:
        texts_found += [call.name, call.text, *(text for pair in pairs(call.arguments) for text in pair)]
    texts_found += [as_text(value) for lesson in record.lessons for value in lesson.remarks.values()]
    return [*texts_found, attempt.task.prompt, attempt.task.id, attempt.answer or "", _failure(record.episode)]


def embedded(value: Any) -> str:
    """Return JSON that is safe in a script element: no character in it can end the element or start another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def pairs(values: Mapping[Any, Any]) -> Pairs:
    """Return a mapping as a list of [name, text]."""
    return [[as_text(name), as_text(value)] for name, value in values.items()]


def numbers(values: Mapping[str, float]) -> Pairs:
    """Return a mapping as a list of [name, number]."""
    return [[name, number(value)] for name, value in values.items()]


def number(value: Any) -> float | None:
    """Return a finite number, rounded to 9 decimals; None for any other value."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return round(float(value), 9)
    return None


def as_text(value: Any) -> str:
    """Return a text unchanged, and any other value as its repr, over several lines if it is long."""
    if isinstance(value, str):
        return value
    try:
        plain = repr(value)
        return pformat(value, width=100, sort_dicts=False) if 100 < len(plain) <= _PRETTY else plain
    except (RecursionError, ValueError) as error:  # For deep nesting, or an integer of many thousand digits.
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _failure(episode: Episode) -> str:
    return episode.fault or episode.attempt.raised


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def _messages(episode: Episode) -> list[Message]:
    """Return the messages as the agent saw them; where they are several dialogues, a line at the beginning of each."""
    dialogues = episode.dialogues
    if len(dialogues) == 1:
        return list(episode.start.as_seen(episode.attempt.messages))
    messages: list[Message] = []
    for number, (dialogue, _) in enumerate(dialogues, start=1):
        messages += [{"role": "dialogue", "content": f"{number} of {len(dialogues)}"}, *dialogue]
    return messages


def _message(message: Message) -> dict[str, Any]:
    text = message.get("content")
    if isinstance(text, list):  # Content may be a list of parts: text and images.
        text = "\n".join(
            part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else as_text(part)
            for part in text
        )
    others = {name: value for name, value in message.items() if name not in ("role", "content", "name")}
    return {
        "role": as_text(message.get("role", "")),
        "turn": message.get("role") == "assistant" and is_turn(message),
        "name": as_text(message.get("name") or ""),
        "text": "" if text is None else as_text(text),
        "others": pairs(others),
    }


def _opening(episode: Episode) -> int:
    """Return the number of messages before the first turn of the agent: system, prompt and prefix."""
    messages, prefix = _messages(episode), len(episode.start.prefix)
    if prefix:  # The prefix may hold turns of an earlier attempt, so the first assistant message is no guide.
        return prefix + 1 + (messages[0].get("role") == "system")
    return next((i for i, message in enumerate(messages) if is_turn({"role": "", **message})), len(messages))


def _call(call: Call) -> dict[str, Any]:
    return {
        "name": call.name,
        "arguments": pairs(call.arguments),
        "text": call.text,
        "status": str(call.status),
        "seconds": number(call.seconds),
    }


def _tool(schema: Mapping[str, Any]) -> list[str]:
    function = schema.get("function", schema)
    if not isinstance(function, Mapping):
        return ["", "", as_text(schema)]
    defaults = {"name": "", "description": "", "parameters": {}}
    return [as_text(function.get(key, default)) for key, default in defaults.items()]


def _row(row: TokenRow, trainer_logprobs: NDArray[np.float32] | None) -> dict[str, Any]:
    edges = np.flatnonzero(np.diff(row.sampled.astype(np.int8), prepend=0, append=0))
    return {
        "ids": _base64(row.ids, "<i4"),
        "spans": edges.tolist(),
        "logprobs": _base64(row.logprobs[row.sampled], "<f4"),
        "versions": _base64(row.versions[row.sampled], "<i4"),
        "said": None if trainer_logprobs is None else _base64(trainer_logprobs[row.sampled], "<f4"),
    }


def _base64(values: NDArray[Any], form: str) -> str:
    return base64.b64encode(values.astype(form).tobytes()).decode()
