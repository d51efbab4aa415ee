"""Read and validate one answer of a vLLM server to a request to `/inference/v1/generate`.

Left out: sending the request (`replica`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

_POSITIVE = 1e-3
"""Largest log-prob above 0 that is accepted as rounding."""


class Wrong(Exception):
    """Raised if a server's answer is malformed or does not fit the request."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens that a server sampled, with their log-probs and the name of the weights that sampled each token."""

    ids: list[int]
    logprobs: list[float]
    tags: list[str]
    aborted: bool


def read(document: Any, *, max_tokens: int, stops: Collection[int], words: int) -> Sampled:
    """Return the turn in an answer. Raise `Wrong` if it is not valid. `words` is the size of the vocabulary."""
    choices = document.get("choices") if isinstance(document, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, Mapping):
        raise Wrong("it gave no choice")
    ids, finish = choice.get("token_ids") or [], choice.get("finish_reason")
    aborted = finish == "abort"
    if not isinstance(ids, list) or not all(type(word) is int and 0 <= word < words for word in ids):
        raise Wrong(f"its token ids are not all whole numbers from 0 to {words - 1}")
    if len(ids) > max_tokens:
        raise Wrong(f"it gave {len(ids)} tokens, and at most {max_tokens} were asked for")
    if aborted:  # Only its count of tokens is used.
        return Sampled(ids, [], [], True)
    if finish not in ("stop", "length"):
        raise Wrong(f"it ended for {finish!r}; expected 'stop' or 'length'")
    if not ids or any(word in stops for word in ids[:-1]) or (ids[-1] in stops) != (finish == "stop"):
        raise Wrong(f"its {len(ids)} tokens do not end where a turn ends, though it says {finish!r}")
    if finish == "length" and len(ids) < max_tokens:
        raise Wrong(
            f"it stopped after {len(ids)} of {max_tokens} tokens, for its rows are full; start it with a "
            "--max-model-len of at least the run's longest row"
        )
    return Sampled(ids, _logprobs(choice.get("logprobs"), ids), _tags(choice.get("weight_versions"), len(ids)), False)


def _logprobs(field: Any, ids: Sequence[int]) -> list[float]:
    content = field.get("content") if isinstance(field, Mapping) else None
    if not isinstance(content, list) or len(content) != len(ids):
        raise Wrong(f"it gave {len(content) if isinstance(content, list) else 'no'} log-probs for {len(ids)} tokens")
    logprobs = []
    for entry, word in zip(content, ids, strict=True):
        value = entry.get("logprob") if isinstance(entry, Mapping) else None
        if not isinstance(value, float | int) or not isfinite(value) or value > _POSITIVE:
            raise Wrong(f"it gave a log-prob of {value!r}")
        if entry.get("token_id") != word:
            raise Wrong(f"its log-probs are of other tokens: {entry.get('token_id')!r} where {word} was sampled")
        logprobs.append(float(value))
    return logprobs


def _tags(spans: Any, count: int) -> list[str]:
    """Return the name of the weights that sampled each of `count` tokens."""
    tags: list[str] = []
    for span in spans if isinstance(spans, list) else []:
        if not (isinstance(span, Mapping) and span.get("start") == len(tags) and type(span.get("end")) is int):
            break
        tags += [str(span.get("version"))] * min(span["end"] - len(tags), count + 1 - len(tags))
    if len(tags) != count:
        raise Wrong(f"it does not say which weights chose its {count} tokens")
    return tags
