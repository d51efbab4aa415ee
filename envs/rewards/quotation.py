"""Scores short answers in words: exact match and token F1, normalised as in SQuAD and Search-R1; numbers stay numbers.

A normalised text is in lower case, without punctuation and articles, with single blanks. Punctuation stays if the text
would become another number or name without it: -5 is not 5, 3.14 not 314, 1e-3 not 1e3, C++ not C. If several answers
are expected, the best score counts. If yes, no, true or false is expected, F1 is the exact match, because shared words
mean nothing then. If the expected answer is empty after normalising (A, The, !), only the same text matches. An empty
answer is never right. Left out: a test whether the expected answer occurs anywhere, because long answers would exploit
that.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable

from palaestra.errors import UsageError

WHETHER = frozenset({"yes", "no", "true", "false", "noanswer"})
"""Answers for which F1 is the exact match."""
_ARTICLES = re.compile(r"\b(?:a|an|the)\b(?![+#])")
_MARKS = re.compile(
    r"""(?P<minus>(?<![\w\-\u2212\u2013])(?<!\d\s)[-\u2212\u2013\ufe63\uff0d](?=[$\u20ac\u00a3]?\.?\d)
        |(?<=\de)[-\u2212\u2013\ufe63\uff0d](?=\d))
    |(?P<kept>(?<![^\W\d])(?<!\.)\.(?=\d)|(?<=[^\W\d_])[+#]+(?!\w))
    |(?P<grouping>(?<=\d),(?=\d{3}(?!\d)))
    |(?P<between>(?<=\d)[^\w\s]+?(?=[-\u2212\u2013]?\.?\d))
    |[^\w\s]|_""",
    re.VERBOSE,
)
"""Kinds of marks: a minus sign; a decimal point or name ending; a thousands mark; marks between numbers; others."""
_DECIMAL = re.compile(r"(?<![\w.])(-?\d*)\.(\d+)(?![\w.])")
_ASCII = frozenset(string.punctuation)


def without_punctuation(text: str) -> str:
    """Return the text in lower case, without punctuation of any script (SQuAD keeps marks beyond ASCII).

    Numbers keep their sign and decimal point, stay separate (3/4, 10-12), and are written in one form (1,200.50 as
    1200.5).
    """
    return _DECIMAL.sub(_shortest, _MARKS.sub(_without_mark, text.lower()))


def _without_mark(match: re.Match[str]) -> str:
    mark = match[0]
    if mark[0] not in _ASCII and unicodedata.category(mark[0])[0] != "P" and match.lastgroup != "minus":
        return mark
    return {"minus": "-", "kept": mark, "between": " "}.get(match.lastgroup or "", "")


def _shortest(match: re.Match[str]) -> str:
    whole, decimals = match[1], match[2].rstrip("0")
    return f"{whole if whole[-1:].isdigit() else f'{whole}0'}.{decimals}".removesuffix(".")


def normalised(text: str) -> str:
    """Return the form of a text that is compared: lower case, no punctuation, no articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", without_punctuation(text)).split())


def exact_match(answer: str | None, expected: str | Iterable[str]) -> bool:
    """Return whether the answer is one of the expected ones."""
    if not answer or not answer.strip():
        return False
    return any(_same(answer, expected_answer) for expected_answer in _each(expected))


def token_f1(answer: str | None, expected: str | Iterable[str]) -> float:
    """Return the best token F1 over the expected answers, from 0 to 1."""
    if answer is None:
        return 0.0
    return max((_f1(answer, expected_answer) for expected_answer in _each(expected)), default=0.0)


def _same(answer: str, expected: str) -> bool:
    expected_text = normalised(expected)
    return answer.strip() == expected.strip() if expected_text == "" else normalised(answer) == expected_text


def _f1(answer: str, expected: str) -> float:
    if exact_match(answer, expected):
        return 1.0
    answer_tokens, expected_tokens = normalised(answer), normalised(expected)
    if answer_tokens in WHETHER or expected_tokens in WHETHER:
        return 0.0
    shared = sum((Counter(answer_tokens.split()) & Counter(expected_tokens.split())).values())
    return 2 * shared / (len(answer_tokens.split()) + len(expected_tokens.split())) if shared else 0.0


def _each(expected: str | Iterable[str]) -> Iterable[str]:
    if expected is None:
        raise UsageError("no answer is expected (None), so none is right; expected a text, or several")
    return (expected,) if isinstance(expected, str) else expected
