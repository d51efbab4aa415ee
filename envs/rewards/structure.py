r"""What an answer is made of, read off its text in microseconds: is it mathematics, would it explode, is it cheap?

    holds_mathematics("X-ray")                 False: the hyphen of a word
    explodes("9^{9^{9^{9}}}")                  True: no computer holds it
    light(r"\frac{3\sqrt{2}}{4}")              True: compared in a fraction of a second

Left out: LaTeX's grammar, and which answer is a number (`mathematics.number`).
"""

import re
import unicodedata

MAX_EXPONENT_DIGITS = 4
"""Longest written exponent of an answer that is computed with."""
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
    """Whether a digit, an operator, a bracket or a command of LaTeX stands in it, so that its marks mean something.

    The hyphen of a word is no operator.
    """
    return _MATHEMATICS.search(text) is not None or any(unicodedata.category(one) == "Sm" for one in text)


def explodes(text: str) -> bool:
    """Whether working it out cannot end: a tower of written numbers, a huge exponent, a large factorial."""
    text = text.replace("**", "^")
    if _FACTORIAL_OF_MUCH.search(text) or (_of_numbers(text) and _FACTORIAL_OF_A_TERM.search(text)):
        return True
    return any(
        len(digits := exponent.strip("+-{} ")) > MAX_EXPONENT_DIGITS and digits.isdigit()
        for exponent in _exponents(text)
    ) or _powers_in_powers(text, of_numbers=True)


def light(text: str) -> bool:
    """Whether comparing it takes a fraction of a second: short, few letters, no function but roots, no large power."""
    if len(text) > MAX_LIGHT_CHARS or text.count("(") + text.count("{") > MAX_LIGHT_BRACKETS:
        return False
    if text.count("sqrt") > MAX_LIGHT_ROOTS or "!" in text or "**" in text or len(_BRACKET_POWER.findall(text)) > 1:
        return False
    if len(set(re.findall("[a-zA-Z]", _COMMAND.sub("", text)))) > MAX_LIGHT_LETTERS:
        return False
    return _LIGHT_COMMANDS.issuperset(_COMMAND.findall(text)) and "^" not in _LIGHT_POWER.sub("", text)


def _powers_in_powers(text: str, of_numbers: bool = False) -> bool:
    """Whether an exponent has a power in it; with `of_numbers` one without any letter."""
    text = text.replace("**", "^")
    inside = [one for one in _exponents(text) if "^" in one]
    if of_numbers:
        inside = [one for one in inside if _of_numbers(one)]
    return bool(inside) or _CHAIN.search(text) is not None


def _of_numbers(text: str) -> bool:
    return re.search("[a-zA-Z]", _COMMAND.sub("", text)) is None


def _exponents(text: str) -> list[str]:
    """The text of each exponent, up to where its bracket closes."""
    return [text[found.start(1) : _end(text, found.start(1), found.end())] for found in _EXPONENT.finditer(text)]


def _end(text: str, start: int, otherwise: int) -> int:
    if text[start] not in "{(":
        return otherwise
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)
