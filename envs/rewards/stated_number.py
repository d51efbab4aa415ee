"""Reads the one number that a response states, alone or in a sentence, and compares it as a number.

    5,360    **5360**    5360.0    The answer is 5360.    80 * 67 = 5360.        each states 5360
    80 * 67    5360 or 5361    5360, 5361                                        none states a number

A response states a number if it holds one number, or if its last number comes right after "=", ":", "is", "equals" or
"equal to". After "Answer:" only the rest of that line is read. So a response never states two numbers, and listing
several gains nothing over guessing one. Left out: fractions, powers of ten, percent and units (`mathematics`).
"""

import re
from fractions import Fraction

from palaestra.envs.rewards.answer import final_answer

MAX_CHARS = 10_000
"""Longest response that is read, in characters; a longer one states nothing."""
_NUMBER = re.compile(
    r"(?:(?<![\w).])(?<![\w)] )[-\u2212])?(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w%]|[.,]\d)", re.ASCII
)
"""A number with its sign, which a minus between two operands is not."""
_STATES = re.compile(r"(?:=|:|\bis|\bequals|\bequal to)[\s*`$({\[]*(?:\\boxed\{\s*)?$", re.IGNORECASE)
"""The words or signs that end right before a stated number, with marks of Markdown and LaTeX."""


def stated_number(text: str | None) -> Fraction | None:
    """Return the number that a response states; None if it states none, or several."""
    answer = final_answer(text)
    if answer is None or len(answer) > MAX_CHARS:
        return None
    numbers = list(_NUMBER.finditer(answer))
    if not numbers or (len(numbers) > 1 and not _STATES.search(answer[: numbers[-1].start()])):
        return None
    return Fraction(numbers[-1][0].replace(",", "").replace("\u2212", "-"))


def states_number(text: str | None, expected: object) -> bool:
    """Return whether a response states the expected number. If none is expected, its answer must be the same text."""
    expected_text = str(expected).strip()
    if not _NUMBER.fullmatch(expected_text):
        return bool(expected_text) and final_answer(text) == expected_text
    return stated_number(text) == stated_number(expected_text)
