"""Episodes as JSON and back: the content of a line of an episode file, but for what `record` adds to it.

Token rows are compressed to spans and runs. Left out: lines, digests and files (`record`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Attempt, Call, Ending, Episode, Start, Status, Task, TokenRow
from palaestra.plain import from_plain, to_plain


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
        "turns": attempt.turns,
        "ending": str(episode.ending),
        "reward": episode.reward,
        "parts": {name: float(value) for name, value in episode.parts.items()},
        "fault": episode.fault,
        "seconds": round(episode.seconds, 6),
        "rows": [_row_out(row) for row in episode.rows],
    }


def episode_from_json(content: Mapping[str, Any]) -> Episode:
    """Return the episode of a line's content. Other content raises an error of Python, such as a KeyError."""
    start, task = content["start"], content["task"]
    attempt = Attempt(
        task=Task(task["prompt"], from_plain(task["answer"]), task["id"], from_plain(task["data"])),
        messages=tuple(from_plain(content["messages"])),
        answer=content["answer"],
        calls=tuple(_call_in(call) for call in content["calls"]),
        turns=content["turns"],
        final=from_plain(content.get("final", {})),
        seat=content.get("seat"),
        worlds=tuple(from_plain(content.get("worlds", []))),
    )
    return Episode(
        start=Start(**{**start, "prefix": tuple(from_plain(start["prefix"]))}),
        attempt=attempt,
        rows=tuple(_row_in(row) for row in content["rows"]),
        ending=Ending(content["ending"]),
        reward=content["reward"],
        parts=content["parts"],
        fault=content["fault"],
        tools=tuple(from_plain(content["tools"])),
        seconds=content["seconds"],
    )


def _call_in(content: Mapping[str, Any]) -> Call:
    plain = {"arguments": from_plain(content["arguments"]), "written": from_plain(content.get("written"))}
    return Call(**{**content, **plain, "status": Status(content["status"])})


def _row_out(row: TokenRow) -> dict[str, Any]:
    """Return a row as JSON: spans [begin, end) of sampled tokens, and log-probs and version runs of these tokens."""
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
    sampled = np.zeros(len(ids), np.bool_)
    for begin, end in content["sampled"]:
        if not 0 <= begin < end <= len(ids):
            raise ValueError(f"the sampled span {begin} to {end} lies outside its row of {len(ids)} tokens")
        sampled[begin:end] = True
    versions = np.full(len(ids), -1, np.int32)
    runs = content["versions"]
    versions[sampled] = np.repeat([version for version, _ in runs], [length for _, length in runs])
    return TokenRow(ids, sampled, numbers_from_json(sampled, content["logprobs"]), versions)


def numbers_to_json(values: NDArray[np.float32]) -> list[float | None]:
    """Return the values with nine digits, which restore a float32 exactly; NaN and infinities become None."""
    return [float(f"{value:.9g}") if math.isfinite(value) else None for value in values.tolist()]


def numbers_from_json(sampled: NDArray[np.bool_], values: list[float | None]) -> NDArray[np.float32]:
    """Return one value for each token of a row, from those of its sampled tokens; 0 where not sampled."""
    spread = np.zeros(len(sampled), np.float32)
    spread[sampled] = [float("nan") if value is None else value for value in values]
    return spread
