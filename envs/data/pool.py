"""Builds a pool of training tasks from several files, without rows that are ambiguous, repeated, in a test or unfit.

A row that one of these rules describes is dropped, and counted under the first of them:

    for eval, no answer, contradicted, in a test, the same, disputed, unfit, nearly the same

arXiv 2601.22154, section 3.3, has the same three stages (ambiguity, duplicates across sources, difficulty), but does
not publish its rules; these are ours. The same rows in the same order give the same pool. `pool_files` reads the files,
and `palaestra curate` measures difficulty.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from palaestra.envs.data.alike import Prompts, key_of
from palaestra.envs.data.pool_files import PoolRow, is_empty
from palaestra.envs.rewards import mathematics
from palaestra.envs.rewards.quotation import normalised
from palaestra.episode import Episode

RULES = (
    *("for eval", "no answer", "contradicted", "in a test", "the same"),
    *("disputed", "unfit", "nearly the same"),
)
"""Reasons to drop a row, in the order in which they are tested."""
ATTEMPTS, AGREED = 4, 0.75
"""A label is disputed if there are at least ATTEMPTS attempts, and at least the share AGREED of them gave another
answer, the same one."""
_FORMULA = re.compile(r"[\\^_$=+*/<>]|(?<!\w)-|\b\w\s*-\s*\w\b")


@dataclass(frozen=True, slots=True)
class TaskPool:
    """The rows of a pool, in their order, and the counts of all rows that were read."""

    rows: tuple[PoolRow, ...]
    counts: Mapping[str, Mapping[str, int]]
    """Counts by source: `rows`, each of RULES, `kept`."""


def pooled(
    rows: Sequence[PoolRow],
    tests: Iterable[str] = (),
    *,
    disputed: Collection[str] = (),
    fits: Callable[[str], bool] = lambda prompt: True,
) -> TaskPool:
    """Return the pool of these rows. No row of it repeats a prompt of `tests` or of a row for eval.

    `disputed` holds keys from `disputed_by`. `fits` returns whether a prompt is neither too easy nor too hard.
    """
    keys = [key_of(row.task.prompt) for row in rows]
    answered = any(not is_empty(row.task.answer) for row in rows)
    own_reasons = [_alone(row, answered) for row in rows]
    contradicted = _contradicted((key, row) for key, row, why in zip(keys, rows, own_reasons, strict=True) if not why)
    tested = {*map(key_of, tests), *(key for key, row in zip(keys, rows, strict=True) if row.for_eval)}
    prompts = Prompts([*dict.fromkeys([*tested, *keys])])
    for key in sorted(tested):
        prompts.add(key, test=True)
    rows_by_key: dict[str, PoolRow] = {}

    def among_others(key: str, row: PoolRow) -> str:
        if key in contradicted:
            return "contradicted"
        if key in tested or prompts.holds_test(key):
            return "in a test"
        if key in rows_by_key:
            return "the same"
        if key in disputed:
            return "disputed"
        if not fits(row.task.prompt):
            return "unfit"
        return "nearly the same" if any(_agree(rows_by_key[other], row) for other in prompts.near(key)) else ""

    counts: dict[str, Counter[str]] = {}
    for key, row, alone in zip(keys, rows, own_reasons, strict=True):
        why = alone or among_others(key, row)
        counts.setdefault(row.source, Counter()).update(("rows", why or "kept"))
        if not why:
            rows_by_key[key] = row
            prompts.add(key)
    names = ("rows", *RULES, "kept")
    return TaskPool(
        tuple(rows_by_key.values()),
        {source: {name: counter[name] for name in names} for source, counter in counts.items()},
    )


def disputed_by(episodes: Iterable[Episode], least: int = ATTEMPTS, share: float = AGREED) -> set[str]:
    """Return the keys of prompts to which a model repeatedly gives one answer that is never right.

    Such a prompt has at least `least` attempts, and at least the fraction `share` of them gave this answer.
    """
    attempts_by_key: dict[str, list[tuple[str, bool]]] = {}
    for episode in episodes:
        if episode.reward is not None:
            answer = episode.attempt.answer
            name = "" if is_empty(answer) else answer_key(answer)
            solved = episode.parts.get("success", episode.reward) > 0
            attempts_by_key.setdefault(key_of(episode.attempt.task.prompt), []).append((name, solved))
    disputed_keys = set()
    for key, attempts in attempts_by_key.items():
        (answer, count), *_ = Counter(name for name, _ in attempts).most_common(1)
        wrong = answer and (answer, True) not in attempts
        if wrong and len(attempts) >= least and count >= share * len(attempts):
            disputed_keys.add(key)
    return disputed_keys


def answer_key(answer: Any) -> str:
    """Return a key that is equal for the same answers: numbers by value, formulas by letter, other texts by words."""
    text = answer if isinstance(answer, str) else json.dumps(answer, sort_keys=True, ensure_ascii=False)
    plain = mathematics.plain(text)
    number = mathematics.number(plain) if len(plain) <= mathematics.MAX_ANSWER_CHARS else None
    if number is not None:
        return str(number)
    return plain.casefold() if _FORMULA.search(text) else normalised(text) or plain


def _alone(row: PoolRow, answered: bool) -> str:
    """Return the rule that drops a row by its own columns, or "". If `answered` is False, no row needs an answer."""
    if row.for_eval:
        return "for eval"
    answer = row.task.answer
    asks = isinstance(answer, str) and answer.rstrip().endswith(("?", "？"))
    return "no answer" if asks or (answered and is_empty(answer)) else ""


def _answers(row: PoolRow) -> frozenset[str]:
    """Return the keys of all accepted answers."""
    task = row.task
    answers = [*mathematics.alternatives(task.answer)] if isinstance(task.answer, str | list) else [task.answer]
    aliases = task.data.get("aliases")
    return frozenset(map(answer_key, (*answers, *(aliases if isinstance(aliases, list) else ()))))


def _agree(first: PoolRow, second: PoolRow) -> bool:
    return not _answers(first).isdisjoint(_answers(second))


def _contradicted(rows: Iterable[tuple[str, PoolRow]]) -> set[str]:
    """Return the keys of prompts for which two rows have no answer in common."""
    answers_by_key: dict[str, set[frozenset[str]]] = {}
    for key, row in rows:
        answers_by_key.setdefault(key, set()).add(_answers(row))
    return {
        key
        for key, sets in answers_by_key.items()
        if any(first.isdisjoint(second) for first, second in combinations(sets, 2))
    }
