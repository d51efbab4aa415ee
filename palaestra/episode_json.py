"""Convert episodes to JSON and back: the content of a line of an episode file, without the fields that `record` adds.

Token rows are compressed to spans and runs. A file is not trusted, so the type of each value is checked, and no object
is created that is larger than its text. Left out: lines, digests and files (`record`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Attempt, Branch, Call, Ending, Episode, Opening, Start, Status, Task, TokenRow
from palaestra.plain import from_plain, to_plain

_OF_CALLS: Mapping[str, Any] = {
    "name": str, "arguments": Mapping, "text": str, "written": Mapping | None, "answer": str | None,
    "result": str | None,
}  # fmt: skip
_COUNTS = ("refused", "unfollowed")
"""Counts of an attempt that are written if they are not 0."""
_LARGEST = 1e300
"""Largest number that is read: a larger integer is no float."""


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """Return an episode as values that `json` can write."""
    start, attempt = episode.start, episode.attempt
    return {
        "start": {
            "task": start.task,
            "seed": start.seed,
            "group": start.group,
            "seat": start.seat,
            "prefix": to_plain(list(start.prefix)),
            **({"env": start.env} if start.env else {}),
            **({"greedy": True} if start.greedy else {}),
            **({"branch": [start.branch.number, start.branch.parent, start.branch.turn]} if start.branch else {}),
        },
        "task": {
            "prompt": attempt.task.prompt,
            "answer": to_plain(attempt.task.answer, "Task.answer"),
            "id": attempt.task.id,
            "data": to_plain(attempt.task.data, "Task.data"),
        },
        "tools": to_plain(list(episode.tools), "tools"),
        "messages": to_plain(list(attempt.messages), "messages"),
        "answer": attempt.answer,
        "calls": [
            {
                "name": call.name,
                "arguments": to_plain(call.arguments, "arguments"),
                "text": call.text,
                "status": str(call.status),
                "seconds": round(call.seconds, 6),
                **({} if call.written is None else {"written": to_plain(call.written, "arguments")}),
                **({} if call.answer is None else {"answer": call.answer}),
                **({} if call.result is None else {"result": call.result}),
            }
            for call in attempt.calls
        ],
        **{
            name: to_plain(value, f"Attempt.{name}")
            for name, value in (("final", attempt.final), ("seat", attempt.seat), ("worlds", list(attempt.worlds)))
            if value
        },
        **(
            {"dialogues": [_opening_out(opening, episode) for opening in attempt.dialogues]}
            if attempt.dialogues
            else {}
        ),
        **{name: value for name in (*_COUNTS, "raised") if (value := getattr(attempt, name))},
        "turns": attempt.turns,
        "ending": str(episode.ending),
        "reward": episode.reward,
        "parts": {name: float(value) for name, value in episode.parts.items()},
        "fault": episode.fault,
        "seconds": round(episode.seconds, 6),
        "rows": [_row_out(row) for row in episode.rows],
    }


def episode_from_json(content: Mapping[str, Any]) -> Episode:
    """Return the episode in a line's content. Content that is no episode raises a Python error, such as KeyError."""
    start, task = content["start"], content["task"]
    attempt = Attempt(
        task=Task(
            of_kind(str, task["prompt"], "prompt"),
            from_plain(task["answer"]),
            of_kind(str, task["id"], "id"),
            of_kind(Mapping, from_plain(task["data"]), "data"),
        ),
        messages=_messages_in(content["messages"], "messages"),
        answer=of_kind(str | None, content["answer"], "answer"),
        calls=tuple(_call_in(call) for call in content["calls"]),
        turns=of_kind(int, content["turns"], "turns"),
        final=of_kind(Mapping, from_plain(content.get("final", {})), "final"),
        seat=of_kind(str | None, content.get("seat"), "seat"),
        worlds=_mappings_in(content.get("worlds", []), "worlds"),
        dialogues=_openings_in(content),
        **{name: of_kind(int, content.get(name, 0), name) for name in _COUNTS},
        raised=of_kind(str, content.get("raised", ""), "raised"),
    )
    return Episode(
        start=_start_in(start),
        attempt=attempt,
        rows=tuple(_row_in(row) for row in content["rows"]),
        ending=Ending(content["ending"]),
        reward=None if content["reward"] is None else finite(content["reward"], "reward"),
        parts=numbers_by_name(content["parts"], "parts"),
        fault=of_kind(str, content["fault"], "fault"),
        tools=_tools_in(content["tools"]),
        seconds=finite(content["seconds"], "seconds"),
    )


def of_kind(kind: Any, value: Any, name: str) -> Any:
    """Return the value if it is of this kind. If not, raise a TypeError that names it."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r:.60}; expected {getattr(kind, '__name__', kind)}")
    return value


def finite(value: Any, name: str) -> Any:
    """Return the value if it is a finite number. If not, raise a TypeError that names it."""
    if not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise TypeError(f"{name} is {value!r:.60}; expected a finite number")
    return value


def numbers_by_name(values: Any, name: str) -> Mapping[str, Any]:
    """Return the mapping if all its values are finite numbers. If not, raise a TypeError."""
    for part, value in of_kind(Mapping, values, name).items():
        finite(value, f"{name}[{part!r:.60}]")
    return values  # type: ignore[no-any-return]


def _mappings_in(values: Any, name: str) -> tuple[Any, ...]:
    return tuple(of_kind(Mapping, value, name) for value in of_kind(list, from_plain(values), name))


def _messages_in(values: Any, name: str) -> tuple[Any, ...]:
    messages = _mappings_in(values, name)
    for message in messages:
        of_kind(str, message["role"], "role")
        if isinstance(content := message.get("content"), list | tuple):
            for part in content:
                of_kind(Mapping, part, "a part of content")
    return messages


def _tools_in(values: Any) -> tuple[Any, ...]:
    tools = _mappings_in(values, "tools")
    for schema in tools:
        function = of_kind(Mapping, schema.get("function", {}), "function")
        parameters = of_kind(Mapping, function.get("parameters", {}), "parameters")
        of_kind(Mapping, parameters.get("properties", {}), "properties")
    return tools


def _opening_out(opening: Opening, episode: Episode) -> dict[str, Any]:
    """Return where a dialogue begins, and its tools where they are not those of the episode."""
    different = opening.tools != episode.tools
    return {"begin": opening.begin, **({"tools": to_plain(list(opening.tools), "tools")} if different else {})}


def _openings_in(content: Mapping[str, Any]) -> tuple[Opening, ...]:
    openings = tuple(
        Opening(of_kind(int, opening["begin"], "begin"), _tools_in(opening.get("tools", content["tools"])))
        for opening in content.get("dialogues", [])
    )
    begins = sorted(opening.begin for opening in openings)
    if begins and (begins[0] != 0 or len(set(begins)) < len(begins) or begins[-1] >= len(content["messages"])):
        raise ValueError(f"the dialogues begin at the messages {begins}, of {len(content['messages'])}")
    return openings


def _start_in(content: Mapping[str, Any]) -> Start:
    branch = content.get("branch")
    branches = {} if branch is None else {"branch": Branch(*(of_kind(int, number, "branch") for number in branch))}
    start = Start(**{**content, "prefix": _messages_in(content["prefix"], "prefix"), **branches})
    for name in ("task", "seed", "group"):
        of_kind(int, getattr(start, name), name)
    of_kind(str | None, start.seat, "seat")
    of_kind(str, start.env, "env")
    return start


def _call_in(content: Mapping[str, Any]) -> Call:
    plain = {"arguments": from_plain(content["arguments"]), "written": from_plain(content.get("written"))}
    call = Call(**{**content, **plain, "status": Status(content["status"])})
    for name, kind in _OF_CALLS.items():
        of_kind(kind, getattr(call, name), name)
    finite(call.seconds, "seconds")
    return call


def _row_out(row: TokenRow) -> dict[str, Any]:
    """Return a row as JSON: all ids, the spans [begin, end) of sampled tokens, and of these tokens the log-probs and
    the versions, as pairs (version, number of consecutive tokens with it).
    """
    versions = row.versions[row.sampled]
    ends = np.flatnonzero(np.diff(versions, append=versions[-1:] - 1))
    lengths = np.diff(ends, prepend=-1)
    return {
        "ids": row.ids.tolist(),
        "sampled": np.flatnonzero(np.diff(row.sampled.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist(),
        "logprobs": numbers_to_json(row.logprobs[row.sampled]),
        "versions": [[int(versions[end]), int(length)] for end, length in zip(ends, lengths, strict=True)],
    }


def _row_in(content: Mapping[str, Any]) -> TokenRow:
    ids = np.array(content["ids"], np.int32)
    if ids.ndim != 1:
        raise ValueError("the ids of a row are no list of numbers")
    sampled = np.zeros(len(ids), np.bool_)
    for begin, end in content["sampled"]:
        if not 0 <= begin < end <= len(ids):
            raise ValueError(f"the sampled span {begin} to {end} lies outside its row of {len(ids)} tokens")
        sampled[begin:end] = True
    versions = np.full(len(ids), -1, np.int32)
    runs = content["versions"]
    lengths = [length for _, length in runs]
    if min(lengths, default=1) < 1 or sum(lengths) != sampled.sum():  # Before they are written out one by one.
        raise ValueError(f"the versions of a row are of {sum(lengths)} tokens, and {sampled.sum()} were sampled")
    versions[sampled] = np.repeat([version for version, _ in runs], lengths)
    return TokenRow(ids, sampled, numbers_from_json(sampled, content["logprobs"]), versions)


def numbers_to_json(values: NDArray[np.float32]) -> list[float | None]:
    """Return the values with nine digits, which restore a float32 exactly; NaN and infinities become None."""
    return [float(f"{value:.9g}") if math.isfinite(value) else None for value in values.tolist()]


def numbers_from_json(sampled: NDArray[np.bool_], values: list[float | None]) -> NDArray[np.float32]:
    """Return one value for each token of a row: `values` in order for its sampled tokens, 0 for the others."""
    spread = np.zeros(len(sampled), np.float32)
    spread[sampled] = [float("nan") if value is None else value for value in values]
    return spread
