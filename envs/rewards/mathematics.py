r"""Compares mathematical answers: the last \boxed{} of a text with the expected answer, as numbers, then as symbols.

    matches(r"... \boxed{\frac{2}{4}}", "0.5")      the text of an attempt against the expected answer
    same(r"2\sqrt{2}", r"\sqrt{8}")                 two answers

Most comparisons are decided by this module, in microseconds: the texts are equal in one normal spelling, or both are
numbers (whole, decimal, repeating, fraction, mixed, percent, times a power of ten, with thousands marks), which are
compared exactly. If a number is expected, the answer must be a written number, perhaps with a unit. An expression to be
computed (2^{10}, 3!, \sqrt{81}) is wrong, because it may be the question itself; so are several values. All other
comparisons are made by math-verify in a separate process (`symbolic`), which accepts any equal form, also that of the
question. Left out: units that change a value, intervals as inequalities, and a tolerance for rounding.
"""

import asyncio
import json
import re
from fractions import Fraction
from typing import Any

from palaestra.envs.rewards import structure, symbolic
from palaestra.errors import UsageError

MAX_ANSWER_CHARS = 300
"""Longest answer that is compared; a longer one is right only if it is the expected text."""
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad\b|~|\s+|\\(?:left|right|displaystyle)\b(?![a-zA-Z])")
_GROUPS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\,|\s)\d{3})+(?!\d)")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s+(?=\d)")
_APART = ";"
"""Replaces a blank between digits, which makes them two numbers; 1 000 is one number."""
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|operatorname|mbox|ce)\s*\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\frac(?:(\d)(\d)|(\d)\{(-?\d+)\}|\{(-?\d+)\}(\d))(?!\d)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,3}))?")
_NAMED = re.compile(r"\\?[a-zA-Z]+(?:_(?:\w|\{\w+\}))?(?:\([^()=]*\))?(?:\+[a-zA-Z])*=(?=[^=])")
"""Left side of an answer that is an equation: x=, f(2)=, S_n=, a+b=."""
_PART = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_FRACTION = re.compile(rf"([+-]?)(\d*)(?:\\frac\{{({_PART})\}}\{{({_PART})\}}|(?<!\d)(\d+)/(\d+))")
_POWER_OF_TEN = re.compile(
    rf"(?:({_PART})(?:\\times|\\cdot|[×·*])|([+-]?))10(?:\^|\*\*)[{{(]?(?P<exponent>[+-]?\d{{1,3}})[)}}]?"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}")
_UNIT = re.compile(
    r"(?<![a-zA-Z\\])(?:\\(?:mu|Omega|AA)|[a-zA-Zµμ\u2126Ω])(?:\\(?:cdot|times|mu|Omega)|[a-zA-ZµμΩ/·*]|\^\{?-?\d\}?)*$"
)
"""Factor behind a number: a unit, or a product of letters."""
UNIT = r"(?:[pnuµμmcdhkMGT]?(?:mol|cal|bar|cd|Hz|Pa|eV|[mgsAKNJWCVFΩTHLlM])|min|h|d|u|atm|mmHg|rad|°[CF])"
"""A unit as science writes it, with its prefix."""
_FORMULA = re.compile(r"(?:\(|(?:[A-Z][a-z]?|\))(?:_?\d+|_\{\d+\})?)+(?:\^?\{?\d*[+-]\}?)?")
"""Chemical formula: H_2O, Ca(OH)2, SO_4^{2-}."""
_COUNTS = re.compile(r"(?!.*(?<!\d)[01](?!\d)).*\d")
"""Numbers that count atoms, for which HO2 is not H2O; an index 0 or 1 is one of a product, such as R_1R_2."""
_SPELLINGS = {
    "\\%": "%", "^{\\circ}": "", "^\\circ": "", "°": "", "\\$": "", "$": "", "\u2212": "-",
    "\\varnothing": "\\emptyset",
}  # fmt: skip


def boxed(text: str | None) -> str | None:
    r"""Return the content of the last \boxed{} of a text, or None if there is none or it is not closed."""
    if text is not None and not isinstance(text, str):
        raise UsageError(f"an answer to be read is {text!r:.50}; expected text, or None")
    start = -1 if text is None else max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if text is None or start < 0:
        return None
    begin = text.index("{", start) + 1
    end = structure.closing(text, begin)
    return None if end is None else text[begin:end].strip()


def strictly_boxed(text: str | None) -> str | None:
    r"""Return the \boxed{} that the released code of arXiv 2510.11701 finds in the last 100 characters, or None.

    That code takes the last 300 characters of a response and then the last 100 of these, which is the same. Blanks are
    kept.
    """
    _, mark, last = (text or "")[-100:].rpartition("\\boxed{")
    end = structure.closing(last, 0) if mark else None
    return None if end is None else last[:end]


def alternatives(expected: Any) -> list[str]:
    """Return all accepted answers, from a list, a list written as JSON text (as Skywork-OR1 does), or one answer."""
    if isinstance(expected, str) and expected.lstrip().startswith("["):
        try:
            answers = json.loads(expected)
        except (ValueError, RecursionError):
            answers = None
        if isinstance(answers, list) and answers and all(isinstance(item, str) for item in answers):
            return answers
    if isinstance(expected, list | tuple):
        return [str(item) for item in expected]
    return [] if expected is None else [str(expected)]


def unwrapped(text: str) -> str:
    r"""Return a text without \text{} and similar commands around words."""
    return _WORDS.sub(r"\1", text)


def plain(answer: str) -> str:
    """Return an answer in the normal spelling in which answers are compared."""
    text = answer.strip().strip("$").removeprefix("\\(").removesuffix("\\)").strip().rstrip(".").rstrip()
    text = unwrapped(text.replace("{,}", ",").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    text = _GROUPS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _SPACES.sub("", _BETWEEN_DIGITS.sub(_APART, text))
    for spelled, meant in _SPELLINGS.items():
        text = text.replace(spelled, meant)
    if len(text) <= MAX_ANSWER_CHARS and _FORMULA.fullmatch(text):
        text = re.sub(r"[_{}^]", "", text)
    text = re.sub(r"\\mathbb\{(\w)\}", r"\\mathbb\1", text)
    return _SHORT_FRACTION.sub(lambda match: "\\frac{{{}}}{{{}}}".format(*filter(None, match.groups())), text)


def number(text: str) -> Fraction | None:
    """Return the number that an answer in normal spelling (`plain`) states; None for an expression or another text."""
    if text.endswith("%"):
        value = number(text[:-1])
        return None if value is None else value / 100
    if text[:1] + text[-1:] in ("()", "{}"):
        return number(text[1:-1])
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if match := _POWER_OF_TEN.fullmatch(text):
        return Fraction(match[1] or f"{match[2]}1") * Fraction(f"1e{match['exponent']}")
    if match := _REPEATING.fullmatch(text):
        sign, whole, before, again = match.groups()
        value = Fraction(int(f"0{whole}{before}{again}") - int(f"0{whole}{before}"), 10 ** len(again) - 1)
        return Fraction(f"{sign}1") * value * Fraction(f"1e-{len(before)}")
    return _fraction(text)


def _fraction(text: str) -> Fraction | None:
    r"""Return the value of a fraction or a mixed number (1\frac{1}{2} is 3/2); None for any other text."""
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    sign, whole, top, bottom, plain_top, plain_bottom = match.groups()
    above, below = Fraction(top or plain_top), Fraction(bottom or plain_bottom)
    if below == 0 or (whole and not 0 < above < below):
        return None
    return Fraction(f"{sign}1") * (int(whole or 0) + above / below)


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """Return a number and the unit or letters behind it; None for any other text."""
    unit_match = _UNIT.search(text)
    value = number(text[: unit_match.start()] if unit_match else text)
    return None if value is None else (value, unit_match[0] if unit_match else "")


def _same_quantity(actual: tuple[Fraction, str], expected: tuple[Fraction, str]) -> bool | None:
    """Return whether two quantities are the same; None if a unit is unknown, or the units differ only in case."""
    if actual[1] == expected[1]:
        return actual[0] == expected[0]
    units = [unit for _, unit in (actual, expected) if re.fullmatch(UNIT, unit)]
    return False if len(units) == 2 and units[0].lower() != units[1].lower() else None


def settled(answer: str, expected: str) -> bool | None:
    """Return whether two answers are the same; None if their text does not decide it, so that math-verify must compare.

    10% equals 0.1. An answer of 10% also matches an expected 10, and an answer of 10 an expected 10%, because "What
    percent?" is answered in both ways.
    """
    if answer.strip() == expected.strip():
        return bool(answer.strip())
    if max(len(answer), len(expected)) > MAX_ANSWER_CHARS:
        return False
    answer_text, expected_text = plain(answer), plain(expected)
    if answer_text == expected_text:
        return bool(answer_text)
    if not answer_text or not expected_text or (_FORMULA.fullmatch(expected_text) and _COUNTS.match(expected_text)):
        return False
    actual, expected_value = number(answer_text), number(expected_text)
    if actual is None and expected_value is not None:
        answer_text = _NAMED.sub("", answer_text, count=1) if _NAMED.match(answer_text) else answer_text
        actual = number(answer_text)
    if expected_value is None or actual is None:
        ours_measured, theirs_measured = _quantity(answer_text), _quantity(expected_text)
        if structure.explodes(answer_text) or (expected_value is not None and ours_measured is None):
            return False
        return _same_quantity(ours_measured, theirs_measured) if ours_measured and theirs_measured else None
    if answer_text.endswith("%") and not expected_text.endswith("%"):
        return expected_value in (actual, actual * 100)
    if expected_text.endswith("%") and not answer_text.endswith("%"):
        return actual in (expected_value, expected_value * 100)
    return actual == expected_value


async def same(answer: str, expected: str) -> bool:
    """Return whether two answers are the same. Raise Broken if math-verify cannot run."""
    verdict = settled(answer, expected)
    return (
        verdict if verdict is not None else await symbolic.equal(answer.replace("~", " "), expected.replace("~", " "))
    )


async def matches(text: str | None, expected: Any) -> bool:
    r"""Return whether the last \boxed{} of a text holds one of the expected answers."""
    answer = boxed(text)
    if answer is None:
        return False
    expected_answers = alternatives(expected)
    if any(settled(answer, expected_answer) for expected_answer in expected_answers):
        return True
    return any(
        await asyncio.gather(*(same(answer, expected_answer) for expected_answer in expected_answers))
    )  # At once, so that they are queued once.


def rule(answer: str, expected: Any) -> str:
    """Return a text for a person that says which comparison decides."""
    verdicts = [settled(answer, expected_answer) for expected_answer in alternatives(expected)]
    decided = any(verdicts) or None not in verdicts
    return "compared as text and as numbers" if decided else "compared as symbols, by math-verify"


def number_matches(text: str | None, expected: Any) -> bool:
    r"""Return whether the last \boxed{} is an expected number as a written number.

    An expression, such as the question, is not.
    """
    answer = boxed(text)
    return answer is not None and any(
        settled(answer, expected_answer) is True for expected_answer in alternatives(expected)
    )


def strictly_matches(text: str | None, expected: Any) -> bool:
    """Return whether the boxed text is exactly an expected one, as the released code of arXiv 2510.11701 compares."""
    answer = strictly_boxed(text)
    return answer is not None and answer in alternatives(expected)
