"""Recorded episodes in the files of other projects: `palaestra export`.

    messages   a dialogue a line: OpenAI's fine-tuning, and whoever reads `messages` and `tools`
    trl        SFTTrainer: the episode's own tokens, `input_ids` and `assistant_masks`; a dialogue where it has none
    verl       `messages` and `tools` for its SFT, `prompt`, `reward_model` and `extra_info` for its RL
    sharegpt   `conversations` as LLaMA-Factory reads them
    inspect    one log of inspect_ai, for its viewer and its data frames

Calls of any format become objects, and thinking becomes `reasoning_content`. A BROKEN episode is an error in a log, and
left out of all other forms. Left out: choosing episodes (`palaestra collect`, `jq`).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from palaestra import formats
from palaestra.agents.policies.dialogue import to_native
from palaestra.episode import Ending, Message
from palaestra.errors import UsageError
from palaestra.plain import to_plain
from palaestra.record import Record

_THINKING = re.compile(r"<think>\s*(.*?)\s*</think>", re.DOTALL)
_SPEAKERS = {"user": "human", "tool": "observation", "assistant": "gpt"}


def dialogues(record: Record) -> list[tuple[list[Message], list[Any]]]:
    """Return the messages and tools of each dialogue as the agent saw them, with calls as objects and thinking
    apart."""
    start, native = record.episode.start, list[tuple[list[Message], list[Any]]]()
    for messages_seen, tools in record.episode.dialogues:
        recorded = start.as_seen(messages_seen)
        messages = to_native(recorded, tools, formats.get("auto"))
        turns = [message for message in messages if message["role"] == "assistant"]
        for turn, text in zip(turns, (each for each in recorded if each["role"] == "assistant"), strict=True):
            if thinking := _THINKING.search(str(text.get("content") or "")):
                turn["reasoning_content"] = thinking[1]
            if text.get("weight") == 0:
                turn["weight"] = 0
        native.append((messages, [dict(tool) for tool in tools]))
    return native


def facts(record: Record) -> dict[str, Any]:
    """Return what an episode is besides its dialogue; `records_in` reads it again."""
    episode = record.episode
    return {
        "env_id": record.env_id,
        "options": to_plain(record.options, "options"),
        "agent": record.agent,
        "task": episode.start.task,
        "seed": episode.start.seed,
        "id": episode.attempt.task.id,
        "answer": to_plain(episode.attempt.task.answer, "Task.answer"),
        "ending": str(episode.ending),
        "said": episode.attempt.answer,
        "reward": episode.reward,
        "parts": dict(episode.parts),
        "fault": episode.fault,
    }


def rows(form: str, records: Iterator[Record]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file in one of the forms, except `inspect`."""
    columns: set[str] = set()
    for record in records:
        if record.episode.ending is Ending.BROKEN:
            continue
        for row in _ROWS[form](record):
            columns = columns or set(row)
            if set(row) != columns:
                raise UsageError(
                    "some episodes have tokens and some have none, and a data set has rows of one kind; export the "
                    "files of models and those of scripts or endpoints apart"
                )
            yield row


def log_of(records: Iterator[Record]) -> dict[str, Any]:
    """Return episodes of one environment and agent as a log of inspect_ai."""
    samples, epochs, sources = list[dict[str, Any]](), Counter[Any](), set[tuple[str, str]]()
    for record in records:
        sources.add((record.env_id, record.agent))
        epochs[record.episode.start.task] += 1
        samples.append(_sample(record, epochs[record.episode.start.task]))
    if len(sources) != 1:
        names = "; ".join(f"{env_id} by {agent}" for env_id, agent in sorted(sources)) or "none"
        raise UsageError(f"a log of inspect is of one environment and one agent, and these episodes are of: {names}")
    ((env_id, agent),) = sources
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in sample["scores"].items():
            values.setdefault(name, []).append(score["value"])
    scores = [
        {"name": name, "scorer": "palaestra", "metrics": {"mean": {"name": "mean", "value": fmean(each)}}}
        for name, each in values.items()
    ]
    evaluation = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "task": env_id,
        "model": agent or "unknown",
        "dataset": {"name": env_id, "samples": len(epochs)},
        "config": {},
    }
    counted = {"total_samples": len(samples), "completed_samples": sum(not sample["error"] for sample in samples)}
    results = {**counted, "scores": scores}
    return {"version": 2, "status": "success", "eval": evaluation, "results": results, "samples": samples}


def _messages(record: Record) -> Iterator[dict[str, Any]]:
    for messages, tools in dialogues(record):
        yield {"messages": messages, "tools": tools, "metadata": facts(record)}


def _trl(record: Record) -> Iterator[dict[str, Any]]:
    for row in record.episode.rows:
        yield {"input_ids": row.ids.tolist(), "assistant_masks": row.sampled.astype(int).tolist()}
    for messages, tools in dialogues(record) if not record.episode.rows else ():
        # As text, for a data set would give each row the arguments of all the others.
        yield {"messages": [_with_arguments(each) for each in messages], "tools": json.dumps(tools)}


def _verl(record: Record) -> Iterator[dict[str, Any]]:
    attempt = record.episode.attempt
    for messages, tools in dialogues(record):
        first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        yield {
            "data_source": record.env_id,
            "prompt": messages[:first],
            "messages": messages,
            "tools": json.dumps(tools),
            "reward_model": {"style": "rule", "ground_truth": str(attempt.task.answer)},
            "extra_info": {"index": attempt.task.id, "reward": record.episode.reward, **record.episode.parts},
        }


def _sharegpt(record: Record) -> Iterator[dict[str, Any]]:
    for messages, tools in dialogues(record):
        functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        system = "\n\n".join(str(message["content"]) for message in messages if message["role"] == "system")
        yield {"conversations": _by_turns(messages), "system": system, "tools": functions}


def _by_turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return one turn of each side after the other, as LLaMA-Factory asks: several calls, and results, are one."""
    turns = list[dict[str, str]]()
    for message in messages:
        calls = [_arguments(call) for call in message.get("tool_calls") or ()]
        if message["role"] == "system":
            continue
        speaker = "function_call" if calls else _SPEAKERS[message["role"]]
        text = json.dumps(calls if len(calls) > 1 else calls[0], ensure_ascii=False) if calls else message["content"]
        if speaker == "observation" and turns and turns[-1]["from"] == speaker:
            turns[-1]["value"] += f"\n{text}"
        else:
            turns.append({"from": speaker, "value": str(text or "")})
    return turns


def _sample(record: Record, epoch: int) -> dict[str, Any]:
    episode = record.episode
    messages = [_chat_message(message) for dialogue, _ in dialogues(record) for message in dialogue]
    first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    turns = [message for message in messages if message["role"] == "assistant"]
    answer, broken = episode.attempt.answer, episode.ending is Ending.BROKEN
    scores = {} if broken else {"reward": episode.reward, **episode.parts}
    return {
        "id": episode.attempt.task.id or str(episode.start.task),
        "epoch": epoch,
        "input": messages[:first],
        "target": str(episode.attempt.task.answer),
        "messages": messages,
        "output": {"model": record.agent, "choices": [{"message": turns[-1]}] if turns else []},
        "scores": {name: {"value": value, "answer": answer} for name, value in scores.items()},
        "metadata": {"palaestra": facts(record)},
        "error": {"message": episode.fault, "traceback": "", "traceback_ansi": ""} if broken else None,
        "total_time": episode.seconds,
    }


def _chat_message(message: Message) -> dict[str, Any]:
    """Return a message as a log of inspect has it: thinking is a part of the content."""
    if message["role"] == "tool":
        return {"role": "tool", "content": message["content"], "tool_call_id": message.get("tool_call_id")}
    content: Any = message.get("content") or ""
    if thinking := message.get("reasoning_content"):
        content = [{"type": "reasoning", "reasoning": thinking}, {"type": "text", "text": content}]
    calls = [
        {"id": call["id"], "function": call["function"]["name"], "arguments": _arguments(call)["arguments"]}
        for call in message.get("tool_calls") or ()
    ]
    return {"role": message["role"], "content": content, **({"tool_calls": calls} if calls else {})}


def _with_arguments(message: Message) -> Message:
    """Return a message whose calls have arguments as objects, as chat templates read them."""
    calls = [{**call, "function": _arguments(call)} for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls} if calls else message


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}


_ROWS: Mapping[str, Callable[[Record], Iterator[dict[str, Any]]]] = {
    "messages": _messages,
    "trl": _trl,
    "verl": _verl,
    "sharegpt": _sharegpt,
}
