"""Short answers in words: exact match and token F1, normalised as SQuAD and Search-R1 do.

Lower case, no punctuation, no articles, single blanks; of several expected answers the best one counts. Where the
expected answer is yes or no (true or false), F1 is the exact match: sharing words with "no" means nothing; nor is there
anything to share with one that has no words left (A, The, !). An empty answer is never right. Left out, as it is gamed
by long answers: asking only whether the expected answer occurs somewhere.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable

from palaestra.errors import UsageError

WHETHER = frozenset({"yes", "no", "true", "false", "noanswer"})
"""Answers that are right or wrong as a whole."""
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ASCII = frozenset(string.punctuation)


def normalised(text: str) -> str:
    """The text as it is compared. Punctuation of every script goes, which SQuAD leaves there beyond ASCII."""
    kept = "".join(one for one in text.lower() if one not in _ASCII and not unicodedata.category(one).startswith("P"))
    return " ".join(_ARTICLES.sub(" ", kept).split())


def exact_match(answer: str | None, expected: str | Iterable[str]) -> bool:
    """Whether the answer is one of the expected ones. For words: signs and decimal points are punctuation here."""
    return any(_same(answer, one) for one in _each(expected)) if answer and answer.strip() else False


def token_f1(answer: str | None, expected: str | Iterable[str]) -> float:
    """The harmonic mean of precision and recall over words, the best over the expected answers."""
    return 0.0 if answer is None else max((_f1(answer, one) for one in _each(expected)), default=0.0)


def _same(answer: str, expected: str) -> bool:
    wanted = normalised(expected)
    return answer.strip() == expected.strip() if wanted == "" else normalised(answer) == wanted


def _f1(answer: str, expected: str) -> float:
    if exact_match(answer, expected):
        return 1.0
    said, wanted = normalised(answer), normalised(expected)
    if said in WHETHER or wanted in WHETHER:
        return 0.0
    shared = sum((Counter(said.split()) & Counter(wanted.split())).values())
    return 2 * shared / (len(said.split()) + len(wanted.split())) if shared else 0.0


def _each(expected: str | Iterable[str]) -> Iterable[str]:
    if expected is None:
        raise UsageError("no answer is expected (None), so none is right; expected a text, or several")
    return (expected,) if isinstance(expected, str) else expected
