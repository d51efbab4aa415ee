"""The rule reward for Reagent's pool of questions (arXiv 2601.22154): one rule for each kind of answer.

    math      the same value or expression: 1, else 0 (`mathematics`)
    words     the same words: 1; else token F1 with the nearest expected answer, from 0.3 on; else 0 (`quotation`)
    whether   yes, no, true or false: 1 if a clause of the answer says only this ("It is yes, I think", but not "no
              idea" or "not true"), and nothing says its opposite, else 0

The kind is `whether` if yes, no, true or false is expected. Otherwise the name of the source decides: data sets of
mathematics (DeepScaleR, AIME, MATH) are `math`, those of search and reading `words`. Without such a name the expected
answer decides: a number or TeX is mathematics. An empty answer is never right. `answer` finds the answer in a text.
"""

import re
from collections.abc import Sequence
from itertools import dropwhile

from palaestra.envs.rewards import mathematics
from palaestra.envs.rewards.quotation import exact_match, normalised, token_f1

LEAST_F1 = 0.3
"""Smallest token F1 that counts; a smaller overlap is chance."""
_MATH = re.compile(r"math|aime|amc\b|gsm|deepscaler|dapo|olympiad|skywork|numina", re.IGNORECASE)
_WORDS = re.compile(r"qa\b|hotpot|musique|bamboogle|search|wiki|squad|vqa|trivia|walker", re.IGNORECASE)
_OPPOSITE = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_CLAUSES = re.compile(r"[.,;:!?()\n\u2013\u2014]|\s-+\s")
_LEADING = frozenset(normalised("my final answer is: it is, it's, that is, so, therefore, this statement is").split())
"""Words before a yes or no that say nothing of their own."""
_TEX = re.compile(r"\\[a-zA-Z]|[\^_]|\$")


def kind_of(expected: Sequence[str], source: str = "") -> str:
    """Return the rule that applies: "math", "words" or "whether"."""
    if all(normalised(text) in _OPPOSITE for text in expected):
        return "whether"
    if _MATH.search(source):
        return "math"
    if _WORDS.search(source):
        return "words"
    return "math" if all(mathematics.number(mathematics.plain(text)) is not None or _TEX.search(text)
                         for text in expected) else "words"  # fmt: skip


async def rule_reward(answer: str | None, expected: Sequence[str], source: str = "") -> float:
    """Return the best score over the expected answers, from 0 to 1."""
    if answer is None or not answer.strip() or not expected:
        return 0.0
    kind = kind_of(expected, source)
    if kind == "whether":
        clauses = [normalised(clause).split() for clause in _CLAUSES.split(answer)]
        # In the whole answer "yes,no" is one word, and so is "yes" of "yes-no" in its clause.
        words = {*normalised(answer).split(), *(word for clause in clauses for word in clause)}
        stated = [[*dropwhile(_LEADING.__contains__, clause)] for clause in clauses]
        return float(any([text] in stated and _OPPOSITE[text] not in words for text in map(normalised, expected)))
    if kind == "math":
        boxed_answer = mathematics.boxed(answer)
        for text in expected:
            if await mathematics.same(answer if boxed_answer is None else boxed_answer, text):
                return 1.0
        return 0.0
    if exact_match(answer, expected):
        return 1.0
    overlap = token_f1(answer, expected)
    return overlap if overlap >= LEAST_F1 else 0.0
