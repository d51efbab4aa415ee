r"""Checks an answer's text in microseconds: is it mathematics, is it too large to compute, is it quick to compare?

    holds_mathematics("X-ray")                 False: the only mark is the hyphen of a word
    explodes("9^{9^{9^{9}}}")                  True: no computer can hold this number
    light(r"\frac{3\sqrt{2}}{4}")              True: it can be compared in a fraction of a second

Left out: LaTeX's grammar, and which answer is a number (`mathematics.number`).
"""

import re
import unicodedata
from collections.abc import Iterator

MAX_EXPONENT_DIGITS = 4
"""Largest number of digits of an exponent that is computed."""
MAX_LIGHT_CHARS = 80
MAX_LIGHT_BRACKETS = 8
MAX_LIGHT_ROOTS = 3
MAX_LIGHT_LETTERS = 3
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_EXPONENT = re.compile(r"\^\s*(\{|\(|[+-]?\d+)")
_CHAIN = re.compile(r"\^\s*(?:\{[^{}]*\}|\d+|\w)\s*\^")
_FACTORIAL_OF_MUCH = re.compile(r"\d{4,}\s*!")
_FACTORIAL_OF_A_TERM = re.compile(r"[)}\]!]\s*!")
_LIGHT_POWER = re.compile(r"(?:\d\^\{?\d{1,3}|[a-zA-Z]\^\{?\d|[)}]\^\{?[23])(?![\w^])")
_BRACKET_POWER = re.compile(r"[)}]\^")
_LIGHT_COMMANDS = frozenset(
    "frac sqrt cdot times div pi degree left right text theta alpha beta infty cup pm in".split()  # noqa: SIM905
)
_MATHEMATICS = re.compile(r"[\d\\=^+*/<>~|\[\]{}]|(?<![^\W\d_])-|-(?![^\W\d_])")


def holds_mathematics(text: str) -> bool:
    """Return whether a text contains a digit, operator, bracket or LaTeX command, so that its punctuation matters.

    The hyphen of a word is not an operator.
    """
    return _MATHEMATICS.search(text) is not None or any(unicodedata.category(char) == "Sm" for char in text)


def as_float(text: str) -> float | None:
    """Return the number that a text is written as, perhaps infinity or NaN; None for any other text."""
    try:
        return float(text)
    except ValueError:
        return None


def explodes(text: str) -> bool:
    """Return whether a text is too large to be computed: a tower of numbers, a huge exponent, or a large factorial."""
    text = text.replace("**", "^")
    if _FACTORIAL_OF_MUCH.search(text) or (_of_numbers(text) and _FACTORIAL_OF_A_TERM.search(text)):
        return True
    for exponent in _exponents(text):
        digits = exponent.strip("+-{} ")
        if (len(digits) > MAX_EXPONENT_DIGITS and digits.isdigit()) or ("^" in exponent and _of_numbers(exponent)):
            return True
    return _CHAIN.search(text) is not None


def light(text: str) -> bool:
    """Return whether a text can be compared in a fraction of a second: short, with few letters and small powers."""
    if len(text) > MAX_LIGHT_CHARS or text.count("(") + text.count("{") > MAX_LIGHT_BRACKETS:
        return False
    if text.count("sqrt") > MAX_LIGHT_ROOTS or "!" in text or "**" in text or len(_BRACKET_POWER.findall(text)) > 1:
        return False
    if len(set(re.findall("[a-zA-Z]", _COMMAND.sub("", text)))) > MAX_LIGHT_LETTERS:
        return False
    return _LIGHT_COMMANDS.issuperset(_COMMAND.findall(text)) and "^" not in _LIGHT_POWER.sub("", text)


def _of_numbers(text: str) -> bool:
    return re.search("[a-zA-Z]", _COMMAND.sub("", text)) is None


def _exponents(text: str) -> Iterator[str]:
    """Yield the text of each exponent, up to its closing bracket."""
    for match in _EXPONENT.finditer(text):
        end = closing(text, match.end(), "{(", "})") if match[1] in "{(" else match.end() - 1
        yield text[match.start(1) : None if end is None else end + 1]


def closing(text: str, begin: int, opening: str = "{", ending: str = "}") -> int | None:
    """Return the index of the bracket that closes the one right before `begin`; None if it is not closed."""
    depth = 1
    for at in range(begin, len(text)):
        depth += (text[at] in opening) - (text[at] in ending)
        if depth == 0:
            return at
    return None
