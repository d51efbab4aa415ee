"""Finds equal prompts, nearly equal prompts, and prompts that hold a test's prompt, for the rules of a pool (`pool`).

    same    the texts are equal without letter case, blanks, quotation marks and punctuation behind words
    near    the numbers are equal, and both prompts have 0.8 of the runs of five words that either has (Jaccard)
    holds   a prompt has 0.8 of a test's runs of five words, and all of its numbers

Prompts that differ in a number are different questions. A run belongs to a template, and is ignored, if more than 20
prompts and more than one prompt in twenty have it. The search is exact, without sampled hashes: an index of each
prompt's rarest runs finds all prompts that may be near. A text of fewer than five words is one run. Left out:
paraphrases and translations.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

RUN = 5
NEAR = 0.8
"""Smallest share of common runs, as in arXiv 2107.06499 for near duplicates of whole documents."""
TEMPLATE, TEMPLATE_LEAST = 0.05, 20
_DROPPED = re.compile('["“”„«»`¿¡？。，、；：！…]|[.,;:?]+(?=\\s|$)')
_UNSPACED_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Letters of scripts that put no blanks between words; each is a word here."""
_WORD = re.compile(f"[{_UNSPACED_SCRIPTS}]|[^\\s{_UNSPACED_SCRIPTS}]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def key_of(prompt: str) -> str:
    """Return a key that is equal for prompts that are the same (see above). Mathematical signs are kept in it."""
    text = unicodedata.normalize("NFC", prompt).casefold().replace("’", "'")
    return " ".join(_WORD.findall(_DROPPED.sub(" ", text)))


class Prompts:
    """Index of prompts by their keys.

    It finds added prompts that are near a prompt, and prompts that hold an added test.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._place = {key: at for at, key in enumerate(keys)}
        self._numbers = [tuple(sorted(_NUMBER.findall(key))) for key in keys]
        self._runs = _by_rarity([_runs(key) for key in keys])
        self._near = defaultdict[tuple[int, tuple[str, ...]], list[int]](list)
        self._tests = defaultdict[int, list[int]](list)
        self._keys = keys

    def add(self, key: str, *, test: bool = False) -> None:
        """Add a prompt for `near` to find, or a test's prompt for `holds_test` to find."""
        at = self._place[key]
        for run in self._rarest(at):
            if test:
                self._tests[run].append(at)
            else:
                self._near[run, self._numbers[at]].append(at)

    def near(self, key: str) -> Iterator[str]:
        """Yield the keys of added prompts that are near the prompt of this key."""
        at = self._place[key]
        runs = {*self._runs[at].tolist()}
        for other in {
            candidate for run in self._rarest(at) for candidate in self._near.get((run, self._numbers[at]), ())
        }:
            shared = len(runs.intersection(self._runs[other].tolist()))
            if shared >= NEAR * (len(runs) + len(self._runs[other]) - shared):
                yield self._keys[other]

    def holds_test(self, key: str) -> bool:
        """Return whether a prompt holds, or nearly holds, the prompt of an added test."""
        at = self._place[key]
        if not self._tests:
            return False
        runs, numbers = {*self._runs[at].tolist()}, {*self._numbers[at]}
        for other in {candidate for run in runs for candidate in self._tests.get(run, ())}:
            test_runs = self._runs[other].tolist()
            if numbers.issuperset(self._numbers[other]) and len(runs.intersection(test_runs)) >= NEAR * len(test_runs):
                return True
        return False

    def _rarest(self, at: int) -> list[int]:
        """Return the rarest runs of a prompt, so many that every prompt which is near has at least one of them."""
        runs = self._runs[at]
        rarest: list[int] = runs[: len(runs) - ceil(NEAR * len(runs)) + 1].tolist() if len(runs) else []
        return rarest


def _runs(key: str) -> NDArray[np.int64]:
    words = key.split()
    return np.unique([hash(tuple(words[at : at + RUN])) for at in range(max(1, len(words) - RUN + 1))])


def _by_rarity(runs: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return each prompt's runs as ranks, the run that is rarest in all prompts first, without runs of templates."""
    if not runs:
        return []
    _, places, counts = np.unique(np.concatenate(runs), return_inverse=True, return_counts=True)
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    run_count = int(np.count_nonzero(counts <= max(TEMPLATE_LEAST, TEMPLATE * len(runs))))
    ends = np.cumsum([len(ranked_runs) for ranked_runs in runs])[:-1]
    return [np.sort(ranked_runs[ranked_runs < run_count]) for ranked_runs in np.split(ranks[places], ends)]
