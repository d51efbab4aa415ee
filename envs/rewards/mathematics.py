r"""Whether two mathematical answers are the same: the last \boxed{} of each text, as numbers, then as symbols.

    matches(r"... \boxed{\frac{2}{4}}", "0.5")      the text of an attempt against the expected answer
    same(r"2\sqrt{2}", r"\sqrt{8}")                 two answers

Most comparisons are settled here, in microseconds: equal text once spelling is evened out, or two numbers (whole,
decimal, repeating, fraction, mixed, percent, times a power of ten, with thousands marks), which are compared exactly.
Where a number is expected, one has to be written out, perhaps with a unit: what has still to be worked out (2^{10}, 3!,
\sqrt{81}) may be the question itself, and what says several things is no answer. The rest goes to math-verify in a
process of its own (`symbolic`), which is awaited; what it expects may be boxed in any form it calls equal, also as the
question put it. Left out: units that change a value, intervals as inequalities, and a tolerance for rounding.
"""

import asyncio
import json
import re
from fractions import Fraction
from typing import Any

from palaestra.envs.rewards import structure, symbolic
from palaestra.errors import UsageError

MAX_ANSWER_CHARS = 300
"""Longest answer that is looked at; a longer one is right only if it is the expected text."""
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad\b|~|\s+|\\(?:left|right|displaystyle)\b(?![a-zA-Z])")
_GROUPS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\,|\s)\d{3})+(?!\d)")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s+(?=\d)")
_APART = ";"
"""Stands for a blank between digits, which are two numbers then; 1 000 is one."""
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|operatorname|mbox|ce)\s*\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\frac(?:(\d)(\d)|(\d)\{(-?\d+)\}|\{(-?\d+)\}(\d))(?!\d)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,3}))?")
_NAMED = re.compile(r"\\?[a-zA-Z]+(?:_(?:\w|\{\w+\}))?(?:\([^()=]*\))?(?:\+[a-zA-Z])*=(?=[^=])")
"""What an answer may be said to be: x=, f(2)=, S_n=, a+b=."""
_PART = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_FRACTION = re.compile(rf"([+-]?)(\d*)(?:\\frac\{{({_PART})\}}\{{({_PART})\}}|(?<!\d)(\d+)/(\d+))")
_POWER_OF_TEN = re.compile(
    rf"(?:({_PART})(?:\\times|\\cdot|[×·*])|([+-]?))10(?:\^|\*\*)[{{(]?(?P<exponent>[+-]?\d{{1,3}})[)}}]?"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}")
_UNIT = re.compile(
    r"(?<![a-zA-Z\\])(?:\\(?:mu|Omega|AA)|[a-zA-Zµμ\u2126Ω])(?:\\(?:cdot|times|mu|Omega)|[a-zA-ZµμΩ/·*]|\^\{?-?\d\}?)*$"
)
"""What stands behind a number and is multiplied with it: a unit, or a product of letters."""
UNIT = r"(?:[pnuµμmcdhkMGT]?(?:mol|cal|bar|cd|Hz|Pa|eV|[mgsAKNJWCVFΩTHLlM])|min|h|d|u|atm|mmHg|rad|°[CF])"
"""A unit as science writes it, with its prefix."""
_FORMULA = re.compile(r"(?:\(|(?:[A-Z][a-z]?|\))(?:_?\d+|_\{\d+\})?)+(?:\^?\{?\d*[+-]\}?)?")
"""Of a substance: H_2O, Ca(OH)2, SO_4^{2-}."""
_COUNTS = re.compile(r"(?!.*(?<!\d)[01](?!\d)).*\d")
"""Numbers that count atoms, for which HO2 is not H2O; an index 0 or 1 is one of a product, such as R_1R_2."""
_SPELLINGS = {
    "\\%": "%", "^{\\circ}": "", "^\\circ": "", "°": "", "\\$": "", "$": "", "\u2212": "-",
    "\\varnothing": "\\emptyset",
}  # fmt: skip


def boxed(text: str | None) -> str | None:
    r"""What stands in the last \boxed{} of a text; None where there is none that is closed."""
    if text is not None and not isinstance(text, str):
        raise UsageError(f"an answer to be read is {text!r:.50}; expected text, or None")
    start = -1 if text is None else max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if text is None or start < 0:
        return None
    begin = text.index("{", start) + 1
    end = structure.closing(text, begin)
    return None if end is None else text[begin:end].strip()


def strictly_boxed(text: str | None) -> str | None:
    r"""The \boxed{} that the released code of arXiv 2510.11701 finds: it looks at the last 100 characters alone.

    Its own order, the last 300 of a response and the last 100 of those, comes to the same. Nothing is stripped.
    """
    _, mark, last = (text or "")[-100:].rpartition("\\boxed{")
    end = structure.closing(last, 0) if mark else None
    return None if end is None else last[:end]


def alternatives(expected: Any) -> list[str]:
    """The answers any of which is right: a list, a list written as JSON text (as Skywork-OR1 does), or the one."""
    if isinstance(expected, str) and expected.lstrip().startswith("["):
        try:
            listed = json.loads(expected)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and listed and all(isinstance(one, str) for one in listed):
            return listed
    if isinstance(expected, list | tuple):
        return [str(one) for one in expected]
    return [] if expected is None else [str(expected)]


def unwrapped(text: str) -> str:
    r"""A text without \text{} and its like around words."""
    return _WORDS.sub(r"\1", text)


def plain(answer: str) -> str:
    """An answer with the spelling evened out."""
    text = answer.strip().strip("$").removeprefix("\\(").removesuffix("\\)").strip().rstrip(".").rstrip()
    text = unwrapped(text.replace("{,}", ",").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    text = _GROUPS.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _SPACES.sub("", _BETWEEN_DIGITS.sub(_APART, text))
    for spelled, meant in _SPELLINGS.items():
        text = text.replace(spelled, meant)
    if len(text) <= MAX_ANSWER_CHARS and _FORMULA.fullmatch(text):
        text = re.sub(r"[_{}^]", "", text)
    text = re.sub(r"\\mathbb\{(\w)\}", r"\\mathbb\1", text)
    return _SHORT_FRACTION.sub(lambda found: "\\frac{{{}}}{{{}}}".format(*filter(None, found.groups())), text)


def number(text: str) -> Fraction | None:
    """The number that an evened-out answer is; None where it is no number, or one that still has to be computed."""
    if text.endswith("%"):
        value = number(text[:-1])
        return None if value is None else value / 100
    if text[:1] + text[-1:] in ("()", "{}"):
        return number(text[1:-1])
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if found := _POWER_OF_TEN.fullmatch(text):
        return Fraction(found[1] or f"{found[2]}1") * Fraction(f"1e{found['exponent']}")
    if found := _REPEATING.fullmatch(text):
        sign, whole, before, again = found.groups()
        value = Fraction(int(f"0{whole}{before}{again}") - int(f"0{whole}{before}"), 10 ** len(again) - 1)
        return Fraction(f"{sign}1") * value * Fraction(f"1e-{len(before)}")
    return _fraction(text)


def _fraction(text: str) -> Fraction | None:
    r"""The number that a fraction is, or a mixed number: 1\frac{1}{2} is 3/2."""
    found = _FRACTION.fullmatch(text)
    if found is None:
        return None
    sign, whole, top, bottom, plain_top, plain_bottom = found.groups()
    above, below = Fraction(top or plain_top), Fraction(bottom or plain_bottom)
    if below == 0 or (whole and not 0 < above < below):
        return None
    return Fraction(f"{sign}1") * (int(whole or 0) + above / below)


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """A number and the unit behind it, or the letters; None where it is anything else."""
    found = _UNIT.search(text)
    value = number(text[: found.start()] if found else text)
    return None if value is None else (value, found[0] if found else "")


def _same_quantity(ours: tuple[Fraction, str], theirs: tuple[Fraction, str]) -> bool | None:
    """Whether two quantities are the same; None where one of their units is none, or is written in another way."""
    if ours[1] == theirs[1]:
        return ours[0] == theirs[0]
    units = [one for _, one in (ours, theirs) if re.fullmatch(UNIT, one)]
    return False if len(units) == 2 and units[0].lower() != units[1].lower() else None


def settled(answer: str, expected: str) -> bool | None:
    """Whether they are the same, where the text alone can tell; else None, and math-verify has to be asked.

    Percent: 10% is 0.1. Besides, since "What percent?" is answered with 10 and with 10%, a found 10% is an expected
    10, and a found 10 an expected 10%.
    """
    if answer.strip() == expected.strip():
        return bool(answer.strip())
    if max(len(answer), len(expected)) > MAX_ANSWER_CHARS:
        return False
    ours, theirs = plain(answer), plain(expected)
    if ours == theirs:
        return bool(ours)
    if not ours or not theirs or (_FORMULA.fullmatch(theirs) and _COUNTS.match(theirs)):
        return False
    found, wanted = number(ours), number(theirs)
    if found is None and wanted is not None:
        ours = _NAMED.sub("", ours, count=1) if _NAMED.match(ours) else ours
        found = number(ours)
    if wanted is None or found is None:
        ours_measured, theirs_measured = _quantity(ours), _quantity(theirs)
        if structure.explodes(ours) or (wanted is not None and ours_measured is None):
            return False
        return _same_quantity(ours_measured, theirs_measured) if ours_measured and theirs_measured else None
    if ours.endswith("%") and not theirs.endswith("%"):
        return wanted in (found, found * 100)
    if theirs.endswith("%") and not ours.endswith("%"):
        return found in (wanted, wanted * 100)
    return found == wanted


async def same(answer: str, expected: str) -> bool:
    """Whether two answers are the same. Broken where math-verify cannot be run; never because of what it was asked."""
    verdict = settled(answer, expected)
    return (
        verdict if verdict is not None else await symbolic.equal(answer.replace("~", " "), expected.replace("~", " "))
    )


async def matches(text: str | None, expected: Any) -> bool:
    r"""Whether the last \boxed{} of a text holds one of the expected answers."""
    found = boxed(text)
    if found is None:
        return False
    wanted = alternatives(expected)
    if any(settled(found, one) for one in wanted):
        return True
    return any(await asyncio.gather(*(same(found, one) for one in wanted)))  # At once: they wait in line but once.


def rule(found: str, expected: Any) -> str:
    """Which comparison decides, for a person."""
    verdicts = [settled(found, one) for one in alternatives(expected)]
    decided = any(verdicts) or None not in verdicts
    return "compared as text and as numbers" if decided else "compared as symbols, by math-verify"


def number_matches(text: str | None, expected: Any) -> bool:
    r"""Whether the last \boxed{} holds an expected number, written out: the question itself, boxed, is no answer."""
    found = boxed(text)
    return found is not None and any(settled(found, one) is True for one in alternatives(expected))


def strictly_matches(text: str | None, expected: Any) -> bool:
    """The comparison of the released code of arXiv 2510.11701: the same text, to the letter."""
    found = strictly_boxed(text)
    return found is not None and found in alternatives(expected)
