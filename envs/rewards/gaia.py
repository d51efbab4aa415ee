"""Compares a short answer by the rules of GAIA, as a number, a list or a text; the expected answer decides which.

    number    equal as numbers, without $, % and thousands commas
    list      the same number of parts between commas or semicolons, in the same order; each part is compared as a
              number, or as a text with its punctuation
    text      the same letters and digits, whatever the case, the blanks and the punctuation

If mathematics is expected (as in HLE), `same_or_equal` also accepts an answer that `mathematics` calls the same. Left
out: units and meaning; benchmarks whose answers are sentences ask a model to judge.
"""

import math
import re
import unicodedata

from palaestra.envs.rewards.mathematics import settled
from palaestra.envs.rewards.structure import as_float, holds_mathematics

MAX_CHARS = 10_000
"""Longest answer in characters; a longer one is wrong."""


def same_answer(answer: str | None, expected: str) -> bool:
    """Return whether an answer is the expected one."""
    if answer is None or not answer.strip() or len(answer) > MAX_CHARS:
        return False
    if (expected_number := _number(expected)) is not None:
        return _number(_bare(answer)) == expected_number
    if re.search("[,;]", expected):
        answer_parts, parts = re.split("[,;]", answer), re.split("[,;]", expected)
        return len(answer_parts) == len(parts) and all(map(_same_part, answer_parts, parts))
    return _same_text(answer, expected)


def same_or_equal(answer: str | None, expected: str) -> bool:
    """Return whether an answer is the same as the expected one or, if mathematics is expected, equal to it."""
    if same_answer(answer, expected):
        return True
    return bool(answer) and holds_mathematics(expected) and settled(str(answer), expected) is True


def _same_part(part: str, expected: str) -> bool:
    expected_number = _number(expected)
    if expected_number is not None:
        return _number(_bare(part)) == expected_number
    return bool(expected.strip()) and _letters(part) == _letters(expected)


def _same_text(answer: str, expected: str) -> bool:
    expected_letters = _without_marks(_letters(expected))
    return (
        _without_marks(_letters(answer)) == expected_letters if expected_letters else answer.strip() == expected.strip()
    )


def _bare(text: str) -> str:
    return re.sub("[$%,]", "", text)


def _number(text: str) -> float | None:
    """Return a finite number or None.

    "inf" is no number: GAIA's own scorer takes it for one, and then accepts any word.
    """
    value = as_float(text)
    return value if value is not None and math.isfinite(value) else None


def _letters(text: str) -> str:
    return "".join(text.split()).lower()


def _without_marks(text: str) -> str:
    return "".join(letter for letter in text if not unicodedata.category(letter).startswith(("P", "S")))
