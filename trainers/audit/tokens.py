"""Checks of token rows: exactly the tokens that the engine sampled are marked as sampled, in whole turns.

The mask, log-probs, versions and ids of a row, and the text of a turn, come from different sources, so a wrong one
contradicts the others. Left out: whether the learner's log-probs agree with the engine's (`learn.online_audit`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.agents import Chat
from palaestra.episode import Ending, Episode, TokenRow, is_turn
from palaestra.errors import UsageError
from palaestra.trainers.audit.audit_findings import AuditFinding, place_of

_ROUNDING = 1e-3
"""Rounding tolerance: a log-prob may exceed 0 by this much."""
_KINDS: dict[str, Any] = {"ids": np.int32, "sampled": np.bool_, "logprobs": np.float32, "versions": np.int32}


@dataclass(frozen=True, slots=True)
class Flat:
    """The rows of some episodes, concatenated, so that a check handles all tokens at once."""

    rows: tuple[tuple[Episode, int, TokenRow], ...]
    ids_N: NDArray[np.int32]
    sampled_N: NDArray[np.bool_]
    logprobs_N: NDArray[np.float32]
    versions_N: NDArray[np.int32]
    ends_R: NDArray[np.int_]
    """End of each row: the index after its last token."""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "Flat":
        """Concatenate the token rows of these episodes."""
        rows = tuple((episode, number, row) for episode in episodes for number, row in enumerate(episode.rows))
        ids_N, sampled_N, logprobs_N, versions_N = (
            np.concatenate([np.zeros(0, kind), *(getattr(row, name) for *_, row in rows)])
            for name, kind in _KINDS.items()
        )
        ends_R = np.cumsum([len(row) for *_, row in rows], dtype=np.int_)
        return cls(rows, ids_N, sampled_N, logprobs_N, versions_N, ends_R)

    def places(self, wrong_N: NDArray[np.bool_]) -> Iterator[tuple[Episode, int, TokenRow, int]]:
        """Yield (episode, row number, row, index of the first wrong token) for each row with a wrong token."""
        wrong_positions = np.flatnonzero(wrong_N)
        of_row, firsts = np.unique(np.searchsorted(self.ends_R, wrong_positions, side="right"), return_index=True)
        for at, first in zip(of_row.tolist(), wrong_positions[firsts].tolist(), strict=True):
            yield *self.rows[at], first - (int(self.ends_R[at]) - len(self.rows[at][2]))


def mask_findings(flat: Flat) -> Iterator[AuditFinding]:
    """Check that exactly the sampled tokens have a version and a log-prob, which is finite and at most 0."""
    valid_logprob_N = (flat.logprobs_N <= _ROUNDING) & np.isfinite(flat.logprobs_N)
    right_N = np.where(flat.sampled_N, valid_logprob_N, flat.logprobs_N == 0)
    right_N &= flat.sampled_N == (flat.versions_N >= 0)
    for episode, number, row, token in flat.places(~right_N):
        marking = "is marked as sampled" if row.sampled[token] else "is not marked as sampled"
        details = f"{marking}, and has the log-prob {row.logprobs[token]} and the version {row.versions[token]}"
        yield AuditFinding("token mask", place_of(episode, number, token), details)


def turn_findings(flat: Flat, chat: Chat) -> Iterator[AuditFinding]:
    """Check that each turn, unless it was cut, ends with a sampled stop token, and has no other stop token."""
    size, sampled_N = len(flat.ids_N), flat.sampled_N
    stop_N = np.isin(flat.ids_N, list(chat.stops))
    is_last_N = np.zeros(size, np.bool_)
    is_last_N[flat.ends_R[flat.ends_R > 0] - 1] = True
    ends_N = sampled_N & (is_last_N | ~np.append(sampled_N[1:], False))
    twice_N = ends_N & stop_N & ~is_last_N & np.append(flat.ids_N[1:] == chat.end_of_turn, False)
    open_N = ends_N & ~stop_N
    for (episode, number, row), end in zip(flat.rows, flat.ends_R.tolist(), strict=True):
        if episode.ending is Ending.LENGTH_LIMIT and number == len(episode.rows) - 1 and row.sampled.any():
            open_N[end - 1 - int(row.sampled[::-1].argmax())] = False  # The turn was cut here.
    wrongs = {
        "a turn ends here without a stop that is learned, and was not cut": open_N,
        "a turn goes on behind this stop": sampled_N & stop_N & ~ends_N,
        "the end of a turn stands here twice": twice_N,
    }
    for wrong, wrong_N in wrongs.items():
        for episode, number, _, token in flat.places(wrong_N):
            details = f"{wrong}; its episode is {episode.ending}"
            yield AuditFinding("turn ends", place_of(episode, number, token), details)


def version_findings(flat: Flat, step: int, staleness: int) -> Iterator[AuditFinding]:
    """Check that each token was sampled by the weights after `step` steps, or at most `staleness` steps earlier."""
    age_N = step - flat.versions_N
    for episode, number, row, token in flat.places(flat.sampled_N & ((age_N < 0) | (age_N > staleness))):
        details = f"it is of the weights {row.versions[token]} and learned from at {step}, at most {staleness} older"
        yield AuditFinding("versions", place_of(episode, number, token), details)


def length_findings(episodes: Sequence[Episode], longest: int, turn: int) -> Iterator[AuditFinding]:
    """Check that no row and no turn is longer than allowed."""
    for episode in episodes:
        for number, row in enumerate(episode.rows):
            longest_turn = max((end - begin for begin, end in spans(row.sampled)), default=0)
            if len(row) > longest or longest_turn > turn:
                details = f"{len(row)} tokens, at most {longest}; its longest turn {longest_turn}, at most {turn}"
                yield AuditFinding("row lengths", place_of(episode, number), details)


def text_findings(episode: Episode, chat: Chat) -> Iterator[AuditFinding]:
    """Check that the sampled ids, decoded, equal the texts of the assistant's messages, turn by turn."""
    messages = [message for message in episode.attempt.messages if is_turn(message)]
    texts = [str(message.get("content") or "") for message in messages]
    decoded = [chat.decode(row.ids[begin:end].tolist()) for row in episode.rows for begin, end in spans(row.sampled)]
    texts, decoded = [text for text in texts if text], [text for text in decoded if text]
    if episode.start.prefix:  # The turns of the prefix are context.
        texts = texts[max(0, len(texts) - len(decoded)) :]
    if episode.ending is Ending.LENGTH_LIMIT and len(decoded) == len(texts) + 1:
        decoded.pop()  # Not every arena records a turn that was cut.
    if messages and decoded != texts:
        turn = next((i for i, pair in enumerate(zip(decoded, texts, strict=False)) if pair[0] != pair[1]), None)
        differs = f"{len(decoded)} turns were sampled, {len(texts)} are in its messages"
        if turn is not None:
            differs = f"turn {turn + 1} says {decoded[turn]!r:.80} in tokens and {texts[turn]!r:.80} in messages"
        yield AuditFinding("turn texts", place_of(episode), differs)


def prompt_findings(episode: Episode, chat: Chat) -> Iterator[AuditFinding]:
    """Check that an episode begins with its whole prompt, as the template renders it."""
    if not episode.rows or episode.start.prefix or episode.start.seat is not None:
        return
    # A template with the current date shows another one by now.
    if "strftime_now" in str(chat.tokenizer.chat_template):
        return
    (messages, tools), row = episode.dialogues[0], episode.rows[0]
    first_turn = next((i for i, message in enumerate(messages) if is_turn(message)), len(messages))
    try:
        opening = chat.opening(messages[:first_turn], tools)
    except UsageError:  # Another template that cannot render these messages.
        return
    first = int(row.sampled.argmax()) if row.sampled.any() else len(row)
    if row.ids[:first].tolist() != opening:
        details = f"its prompt has {first} tokens, and rendered anew {len(opening)}"
        yield AuditFinding("prompts", place_of(episode), details)


def spans(sampled: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (begin, end) of each turn in a row, which is an unbroken series of sampled tokens."""
    edges = np.flatnonzero(np.diff(sampled.view(np.int8), prepend=0, append=0)).reshape(-1, 2)
    return [(begin, end) for begin, end in edges.tolist()]


def repetition(flat: Flat, size: int = 4) -> float:
    """Return the share of `size`-grams of sampled tokens that occurred earlier in the same episode."""
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
