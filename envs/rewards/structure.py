r"""What an answer is made of, read off its text in microseconds: is it worked out, would it explode, is it cheap?

    names_a_number(r"\frac{3\sqrt{2}}{4}")   True: arithmetic on written numbers
    names_a_number(r"\binom{20}{10}")        False: the question itself, for a library to work out
    explodes("9^{9^{9^{9}}}")                True: no computer holds it

Left out: LaTeX's grammar. What looks like arithmetic here may be nonsense still; then nothing equals it.
"""

import re
import unicodedata

MAX_EXPONENT_DIGITS = 4
"""Longest written exponent of an answer that is computed with."""
MAX_LIGHT_CHARS = 80
MAX_LIGHT_BRACKETS = 8
MAX_LIGHT_ROOTS = 3
MAX_LIGHT_LETTERS = 3
_ARITHMETIC = {"frac", "sqrt", "cdot", "times", "div", "pi", "degree"}
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_SYMBOLS = frozenset("√×÷·∙−π°")
_OPERATION = re.compile(r"[=<>!,;|&\[\]]|\\\{|(?:[a-zA-Z]{2,}|_)[\d({\[]|%.")
_ROOT = re.compile(r"\\sqrt\[\d+\]|(?<![a-zA-Z\\])(?:sqrt|pi)(?=[\d({])")
_EXPONENT = re.compile(r"\^\s*(\{|\(|[+-]?\d+)")
_CHAIN = re.compile(r"\^\s*(?:\{[^{}]*\}|\d+|\w)\s*\^")
_FACTORIAL_OF_MUCH = re.compile(r"\d{4,}\s*!")
_FACTORIAL_OF_A_TERM = re.compile(r"[)}\]!]\s*!")
_LIGHT_POWER = re.compile(r"(?:\d\^\{?\d{1,3}|[a-zA-Z]\^\{?\d|[)}]\^\{?[23])(?![\w^])")
_BRACKET_POWER = re.compile(r"[)}]\^")
_LIGHT_COMMANDS = _ARITHMETIC | {"left", "right", "text", "theta", "alpha", "beta", "infty", "cup", "pm", "in"}
_MATHEMATICS = re.compile(r"[\d\\=^+*/<>~|\[\]{}]|(?<![^\W\d_])-|-(?![^\W\d_])")


def holds_mathematics(text: str) -> bool:
    """Whether a digit, an operator, a bracket or a command of LaTeX stands in it, so that its marks mean something.

    The hyphen of a word is no operator.
    """
    return _MATHEMATICS.search(text) is not None or any(unicodedata.category(one) == "Sm" for one in text)


def names_a_number(text: str) -> bool:
    r"""Whether an evened-out answer can stand for a number as it is.

    It may hold numbers, the four operations, fractions, roots, powers (2^{10}), \pi and letters behind a number (a
    unit). What still holds an operation, or says more than one thing, does not: sums, products, integrals, limits,
    binomials, determinants, matrices, gcd, mod, factorials, logarithms and every other function, powers in powers,
    relations (1=2), alternatives (3 \vee 4, \pm 4), sets and lists.
    """
    if not _ARITHMETIC.issuperset(_COMMAND.findall(text)) or _powers_in_powers(text):
        return False
    if any(unicodedata.category(one) == "Sm" and not one.isascii() and one not in _SYMBOLS for one in text):
        return False
    return _OPERATION.search(_COMMAND.sub(" ", _ROOT.sub(" ", text))) is None


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
