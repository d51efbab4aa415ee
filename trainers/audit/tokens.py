"""Checks of token rows: what is marked as sampled is what the engine sampled, whole turns of it, and nothing else.

A row's mask, log-probs, versions and ids come by different ways, and so does the text of a turn: one that is wrong
contradicts the others. Left out: whether the learner's log-probs agree with the engine's (`live`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.agents import Chat
from palaestra.episode import Ending, Episode, TokenRow
from palaestra.errors import UsageError
from palaestra.trainers.audit.findings import Finding, place_of

_ROUNDING = 1e-3
"""By which a log-prob of another arithmetic may lie above 0."""
_KINDS: dict[str, Any] = {"ids": np.int32, "sampled": np.bool_, "logprobs": np.float32, "versions": np.int32}


@dataclass(frozen=True, slots=True)
class Flat:
    """The rows of some episodes, one behind the other: a check looks at all tokens at once."""

    rows: tuple[tuple[Episode, int, TokenRow], ...]
    ids_N: NDArray[np.int32]
    sampled_N: NDArray[np.bool_]
    logprobs_N: NDArray[np.float32]
    versions_N: NDArray[np.int32]
    ends_R: NDArray[np.int_]
    """Behind the last token of each row."""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "Flat":
        """Of their rows."""
        rows = tuple((episode, number, row) for episode in episodes for number, row in enumerate(episode.rows))
        ids_N, sampled_N, logprobs_N, versions_N = (
            np.concatenate([np.zeros(0, kind), *(getattr(row, name) for *_, row in rows)])
            for name, kind in _KINDS.items()
        )
        ends_R = np.cumsum([len(row) for *_, row in rows], dtype=np.int_)
        return cls(rows, ids_N, sampled_N, logprobs_N, versions_N, ends_R)

    def places(self, wrong_N: NDArray[np.bool_]) -> Iterator[tuple[Episode, int, TokenRow, int]]:
        """The first wrong token of each row that has one."""
        found = np.flatnonzero(wrong_N)
        of_row, firsts = np.unique(np.searchsorted(self.ends_R, found, side="right"), return_index=True)
        for at, first in zip(of_row.tolist(), found[firsts].tolist(), strict=True):
            yield *self.rows[at], first - (int(self.ends_R[at]) - len(self.rows[at][2]))


def mask_findings(flat: Flat) -> Iterator[Finding]:
    """Exactly the sampled tokens have a version and a log-prob, which is a number and no more than 0."""
    said_N = (flat.logprobs_N <= _ROUNDING) & np.isfinite(flat.logprobs_N)
    right_N = np.where(flat.sampled_N, said_N, flat.logprobs_N == 0) & (flat.sampled_N == (flat.versions_N >= 0))
    for episode, number, row, token in flat.places(~right_N):
        said = "is marked as sampled" if row.sampled[token] else "is not marked as sampled"
        found = f"{said}, and has the log-prob {row.logprobs[token]} and the version {row.versions[token]}"
        yield Finding("token mask", place_of(episode, number, token), found)


def turn_findings(flat: Flat, chat: Chat) -> Iterator[Finding]:
    """Each turn ends with a stop that is learned, but the one that was cut; no stop lies in it, none stands twice."""
    size, sampled_N = len(flat.ids_N), flat.sampled_N
    stop_N = np.isin(flat.ids_N, list(chat.stops))
    is_last_N = np.zeros(size, np.bool_)
    is_last_N[flat.ends_R[flat.ends_R > 0] - 1] = True
    ends_N = sampled_N & (is_last_N | ~np.append(sampled_N[1:], False))
    twice_N = ends_N & stop_N & ~is_last_N & np.append(flat.ids_N[1:] == chat.end_of_turn, False)
    open_N = ends_N & ~stop_N
    for (episode, number, row), end in zip(flat.rows, flat.ends_R.tolist(), strict=True):
        if episode.ending is Ending.LENGTH_LIMIT and number == len(episode.rows) - 1 and row.sampled.any():
            open_N[end - 1 - int(row.sampled[::-1].argmax())] = False  # Where it was cut.
    wrongs = {
        "a turn ends here without a stop that is learned, and was not cut": open_N,
        "a turn goes on behind this stop": sampled_N & stop_N & ~ends_N,
        "the end of a turn stands here twice": twice_N,
    }
    for wrong, wrong_N in wrongs.items():
        for episode, number, _, token in flat.places(wrong_N):
            yield Finding("turn ends", place_of(episode, number, token), f"{wrong}; its episode is {episode.ending}")


def version_findings(flat: Flat, step: int, staleness: int) -> Iterator[Finding]:
    """Tokens are of the weights that learn in step `step + 1`, or at most `staleness` updates older."""
    age_N = step - flat.versions_N
    for episode, number, row, token in flat.places(flat.sampled_N & ((age_N < 0) | (age_N > staleness))):
        found = f"it is of the weights {row.versions[token]} and learned from at {step}, at most {staleness} older"
        yield Finding("versions", place_of(episode, number, token), found)


def length_findings(episodes: Sequence[Episode], longest: int, turn: int) -> Iterator[Finding]:
    """No row and no turn is longer than it may be."""
    for episode in episodes:
        for number, row in enumerate(episode.rows):
            said = max((end - begin for begin, end in spans(row.sampled)), default=0)
            if len(row) > longest or said > turn:
                found = f"{len(row)} tokens, at most {longest}; its longest turn {said}, at most {turn}"
                yield Finding("row lengths", place_of(episode, number), found)


def text_findings(episode: Episode, chat: Chat) -> Iterator[Finding]:
    """What the sampled ids say is what the assistant's messages say, turn by turn."""
    messages = [message for message in episode.attempt.messages if message["role"] == "assistant"]
    heard = [str(message.get("content") or "") for message in messages]
    said = [chat.decode(row.ids[begin:end].tolist()) for row in episode.rows for begin, end in spans(row.sampled)]
    heard, said = [text for text in heard if text], [text for text in said if text]
    if episode.start.prefix:  # Earlier turns are context there.
        heard = heard[max(0, len(heard) - len(said)) :]
    if episode.ending is Ending.LENGTH_LIMIT and len(said) == len(heard) + 1:
        said.pop()  # Not every arena writes down what was cut.
    if messages and said != heard:
        turn = next((i for i, pair in enumerate(zip(said, heard, strict=False)) if pair[0] != pair[1]), None)
        differs = f"{len(said)} turns were sampled, {len(heard)} are in its messages"
        if turn is not None:
            differs = f"turn {turn + 1} says {said[turn]!r:.80} in tokens and {heard[turn]!r:.80} in messages"
        yield Finding("turn texts", place_of(episode), differs)


def prompt_findings(episode: Episode, chat: Chat) -> Iterator[Finding]:
    """An episode begins with its prompt as the template renders it, whole."""
    if not episode.rows or episode.start.prefix or episode.start.seat is not None:
        return
    if "strftime_now" in str(chat.tokenizer.chat_template):  # It shows the date, which is another one now.
        return
    messages, row = episode.attempt.messages, episode.rows[0]
    said = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    try:
        opening = chat.opening(messages[:said], episode.tools)
    except UsageError:  # Another template, which cannot show it.
        return
    first = int(row.sampled.argmax()) if row.sampled.any() else len(row)
    if row.ids[:first].tolist() != opening:
        yield Finding("prompts", place_of(episode), f"its prompt has {first} tokens, and rendered anew {len(opening)}")


def spans(sampled: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where each turn of a row begins and ends."""
    edges = np.flatnonzero(np.diff(sampled.view(np.int8), prepend=0, append=0)).reshape(-1, 2)
    return [(begin, end) for begin, end in edges.tolist()]


def repetition(flat: Flat, size: int = 4) -> float:
    """Share of the runs of so many sampled tokens that an episode has said before."""
    owners_R = np.cumsum([number == 0 for _, number, _ in flat.rows])
    ids_S = flat.ids_N[flat.sampled_N].astype(np.uint64)
    owner_S = np.repeat(owners_R, np.diff(flat.ends_R, prepend=0))[flat.sampled_N]
    count = len(ids_S) - size + 1
    if count < 1:
        return 0.0
    keys = owner_S[:count].astype(np.uint64)
    for shift in range(size):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + ids_S[shift : shift + count]
    keys = keys[owner_S[:count] == owner_S[size - 1 :]]
    return 1 - len(np.unique(keys)) / len(keys) if len(keys) else 0.0
