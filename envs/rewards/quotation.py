"""Short answers in words: exact match and token F1, normalised as SQuAD and Search-R1 do.

Lower case, no punctuation, no articles, single blanks; of several expected answers the best one counts. Where the
expected answer is yes or no (true or false), F1 is the exact match: sharing words with "no" means nothing. Left out, as
it is gamed by long answers: asking only whether the expected answer occurs somewhere.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable

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
    return answer is not None and any(
        normalised(answer) == normalised(one) and (normalised(one) != "" or answer.strip() == one.strip())
        for one in _each(expected)
    )


def token_f1(answer: str | None, expected: str | Iterable[str]) -> float:
    """The harmonic mean of precision and recall over words, the best over the expected answers."""
    return (
        0.0 if answer is None else max((_f1(normalised(answer), normalised(one)) for one in _each(expected)), default=0)
    )


def _f1(answer: str, expected: str) -> float:
    if answer == expected:
        return 1.0
    if answer in WHETHER or expected in WHETHER:
        return 0.0
    said, wanted = answer.split(), expected.split()
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0


def _each(expected: str | Iterable[str]) -> Iterable[str]:
    return (expected,) if isinstance(expected, str) else expected
