"""The rule reward of Reagent's pool of questions (arXiv 2601.22154): a rule a kind of answer, named or seen.

    math      the same value or expression: 1, else 0 (`mathematics`)
    words     the same words: 1; else token F1 with the nearest expected answer, from 0.3 on; else 0 (`quotation`)
    whether   yes, no, true or false: 1 where the answer says it, and not its opposite, else 0

A source names its kind: that of mathematics (DeepScaleR, AIME, MATH) is `math`, of search and reading `words`. Without
one the expected answer tells: what is a number or holds TeX is mathematics. An empty answer is never right. Left out:
finding the answer in a text (`answer`).
"""

import re
from collections.abc import Sequence

from palaestra.envs.rewards import mathematics
from palaestra.envs.rewards.quotation import exact_match, normalised, token_f1

LEAST_F1 = 0.3
"""A smaller overlap is chance."""
_MATH = re.compile(r"math|aime|amc\b|gsm|deepscaler|dapo|olympiad|skywork|numina", re.IGNORECASE)
_WORDS = re.compile(r"qa\b|hotpot|musique|bamboogle|search|wiki|squad|vqa|trivia|walker", re.IGNORECASE)
_OPPOSITE = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_TEX = re.compile(r"\\[a-zA-Z]|[\^_]|\$")


def kind_of(expected: Sequence[str], source: str = "") -> str:
    """Which rule holds: math, words or whether."""
    if all(normalised(one) in _OPPOSITE for one in expected):
        return "whether"
    if _MATH.search(source):
        return "math"
    if _WORDS.search(source):
        return "words"
    return "math" if all(mathematics.number(mathematics.plain(one)) is not None or _TEX.search(one)
                         for one in expected) else "words"  # fmt: skip


async def rule_reward(answer: str | None, expected: Sequence[str], source: str = "") -> float:
    """From 0 to 1: the best over the expected answers."""
    if answer is None or not answer.strip() or not expected:
        return 0.0
    kind = kind_of(expected, source)
    if kind == "whether":
        said = set(normalised(answer).split())
        return float(any(one in said and _OPPOSITE[one] not in said for one in map(normalised, expected)))
    if kind == "math":
        found = mathematics.boxed(answer)
        for one in expected:
            if await mathematics.same(answer if found is None else found, one):
                return 1.0
        return 0.0
    if exact_match(answer, expected):
        return 1.0
    overlap = token_f1(answer, expected)
    return overlap if overlap >= LEAST_F1 else 0.0
