"""Dialogues and evaluations of other projects as recorded episodes: `palaestra import`.

    messages   lines with `messages`, `tools` and, where palaestra wrote them, `metadata`
    inspect    a log of inspect_ai, .json, or .eval where inspect_ai is installed

Such episodes have no tokens, and their calls are written as hermes. A file is a stranger's: what is not of the form is
a UsageError that names the place. What has no reward gets 0: `palaestra rescore` computes one.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from palaestra import formats
from palaestra.agents.policies.dialogue import to_text
from palaestra.endpoint import ChatCompletion, ToolCall
from palaestra.episode import Attempt, Call, Ending, Episode, Message, Start, Status, Task, is_turn
from palaestra.episode_json import finite, numbers_by_name
from palaestra.errors import UsageError
from palaestra.plain import from_plain
from palaestra.reading import parsed_json, regular_text
from palaestra.record import Record

_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""inspect's grades: correct, partial, incorrect, no answer."""
_ATTACHMENT = "attachment://"


def records_of(form: str, path: Path, env_id: str) -> Iterator[Record]:
    """Yield the episodes of a file. `env_id` names their environment where the file does not."""
    place, indices = "it", dict[str, int]()
    try:
        for place, read in _logged(path) if form == "inspect" else _lines(path):  # noqa: B007  (errors name it)
            messages, tools, facts = read()
            yield _record(messages, tools, {"env_id": env_id, **facts}, indices)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"{path}: {place} is not of the form {form}: {type(error).__name__}: {error}") from error


_Parts = tuple[Sequence[Any], Sequence[Any], Mapping[str, Any]]
"""Messages in the OpenAI form, schemas of tools, and what `records_out.facts` returns, as far as it is known."""


def _lines(path: Path) -> Iterator[tuple[str, Callable[[], _Parts]]]:
    for number, line in enumerate(regular_text(path).splitlines(), start=1):
        if line.strip():
            yield f"line {number}", partial(_from_line, line)


def _from_line(line: str) -> _Parts:
    content = parsed_json(line)
    return content["messages"], content.get("tools") or (), content.get("metadata") or {}


def _logged(path: Path) -> Iterator[tuple[str, Callable[[], _Parts]]]:
    log = _read_log(path)
    for number, sample in enumerate(log["samples"] or (), start=1):
        yield f"sample {number}", partial(_from_sample, log["eval"], sample)


def _from_sample(evaluation: Mapping[str, Any], sample: Mapping[str, Any]) -> _Parts:
    parts: dict[str, float] = {}
    for name, score in (sample.get("scores") or {}).items():  # A score of several values names them itself.
        values = score["value"] if isinstance(score["value"], Mapping) else {name: score["value"]}
        parts |= {str(each): _GRADES[value] if value in _GRADES else float(value) for each, value in values.items()}
    parts = {name: value for name, value in parts.items() if not isnan(value)}  # NaN stands for unscored.
    messages = [_from_inspect(message, sample.get("attachments") or {}) for message in sample["messages"]]
    reward = parts.pop("reward") if "reward" in parts else next(iter(parts.values()), 0.0)
    facts = {
        "env_id": evaluation["task"],
        "agent": evaluation["model"],
        "id": str(sample["id"]),
        "seed": sample["epoch"] - 1,
        "answer": sample["target"],
        "reward": reward,
        "parts": {"success": min(1.0, max(0.0, reward)), **parts},
    }
    if (error := sample.get("error")) is not None:
        facts |= {"ending": "broken", "fault": str(error["message"]), "reward": None, "parts": {}}
    return messages, (), facts | (sample.get("metadata") or {}).get("palaestra", {})


def _read_log(path: Path) -> Any:
    if path.suffix != ".eval":
        return parsed_json(regular_text(path))
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise UsageError(
            f"{path} is packed, and only inspect_ai reads it; install it here, or there: inspect log convert --to json"
        ) from None
    return json.loads(read_eval_log(str(path), resolve_attachments=True).model_dump_json())


def _from_inspect(message: Mapping[str, Any], attachments: Mapping[str, str]) -> Message:
    """Return a message of a log in the OpenAI form."""
    parts = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
    texts = {"text": "", "reasoning": ""}
    for part in parts:
        for name in texts:
            text = part.get(name) or ""
            is_elsewhere = text.startswith(_ATTACHMENT)
            texts[name] += attachments[text.removeprefix(_ATTACHMENT)] if is_elsewhere else text
    calls = [
        {"id": call["id"], "function": {"name": call["function"], "arguments": json.dumps(call["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    failed = {"error": True} if message.get("error") else {}
    identity = {"tool_call_id": message["tool_call_id"]} if message.get("tool_call_id") else {}
    fields = {"role": message["role"], "content": texts["text"], "reasoning_content": texts["reasoning"]}
    return {**fields, **identity, **failed, **({"tool_calls": calls} if calls else {})}


def _record(messages: Sequence[Any], tools: Sequence[Any], facts: Mapping[str, Any], indices: dict[str, int]) -> Record:
    """Return an episode. `indices` has the number of each task so far, by its id or prompt."""
    converted, calls, answer = _converted(messages, tools)
    prompt = next((message["content"] for message in converted if message["role"] == "user"), "")
    index = indices.setdefault(str(facts.get("id") or prompt), len(indices))
    answer = facts.get("said", answer)  # A harness may answer in other words than its last turn's.
    ending = Ending(facts.get("ending") or ("turn_limit" if answer is None else "answered"))
    reward = None if ending is Ending.BROKEN else float(finite(facts.get("reward") or 0.0, "reward"))
    task = Task(prompt, from_plain(facts.get("answer")), str(facts.get("id") or ""))
    turns = sum(map(is_turn, converted))
    attempt = Attempt(task, converted, answer if ending is Ending.ANSWERED else None, calls, turns)
    start = Start(int(facts.get("task", index)), int(facts.get("seed", 0)), group=int(facts.get("task", index)))
    parts = {str(name): float(value) for name, value in numbers_by_name(facts.get("parts") or {}, "parts").items()}
    fault, options = str(facts.get("fault") or ""), {**from_plain(facts.get("options") or {}), "format": "hermes"}
    episode = Episode(start, attempt, (), ending, reward, parts, fault, tuple(tools))
    return Record(str(facts["env_id"]), episode, options, str(facts.get("agent") or ""))


def _converted(
    messages: Sequence[Any], tools: Sequence[Any]
) -> tuple[tuple[Message, ...], tuple[Call, ...], str | None]:
    """Return the messages with calls as text, the calls with their results, and the answer, if there is one."""
    converted, calls, open_calls, answer = list[Message](), list[Call](), dict[str, tuple[str, Any]](), None
    for message in messages:
        text, answer = str(message.get("content") or ""), None
        if message["role"] == "tool":
            name, arguments = open_calls.get(str(message.get("tool_call_id")), (str(message.get("name") or ""), {}))
            status = Status.TOOL_ERROR if message.get("error") else Status.OK
            calls.append(Call(name, arguments, text, status))
            converted.append({"role": "tool", "name": name, "content": text})
            continue
        if message["role"] == "assistant":
            functions = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
            open_calls |= {identity: (each["name"], _object(each["arguments"])) for identity, each in functions}
            objects = tuple(ToolCall(each["name"], each["arguments"]) for _, each in functions)
            completion = ChatCompletion(text, str(message.get("reasoning_content") or ""), objects)
            answer = None if functions else text
            text = to_text(completion, tools, formats.get("hermes"))
        context = {"weight": 0} if message["role"] == "assistant" and message.get("weight") == 0 else {}
        converted.append({"role": str(message["role"]), "content": text, **context})
    return tuple(converted), tuple(calls), answer


def _object(arguments: str) -> Any:
    try:
        value = parsed_json(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
