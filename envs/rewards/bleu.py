"""Length-aware BLEU of a short answer (arXiv 2512.07478; its formula is not public, this one is docs/papers.md's).

The order of n-grams is at most the reference's length, so a short answer is not scored by n-grams that it cannot have:
`exp(mean of ln p_n)` times a brevity penalty, where `p_1` is the share of words that match and `p_n` above it is
`(matches + 1) / (total + 1)`. Words are in lower case, without punctuation; articles stay. Of letters that are written
without spaces between words, each is a word.

In the plain form padding pays below the reference's length ("new x x" beats "new"), for the penalty counts words that
match nothing. Here it counts those that match, unless the plain form is asked for: then a wrong word never helps.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from math import exp, inf, log

from palaestra.envs.rewards.quotation import exact_match

ORDER = 4
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def length_aware_bleu(
    answer: str | None, expected: str | Iterable[str], *, verbosity: float = inf, plain: bool = False
) -> float:
    """Between 0 and 1, the best over the expected answers; an exact match is 1.

    Beyond `verbosity` times the reference's length a penalty falls with each further word. `plain` counts words that
    match nothing against brevity too.
    """
    references = [expected] if isinstance(expected, str) else list(expected)
    if not answer or not answer.strip():
        return 0.0
    return max((_against(answer, one, verbosity, plain) for one in references), default=0.0)


def _against(answer: str, expected: str, verbosity: float, plain: bool) -> float:
    if exact_match(answer, expected):
        return 1.0
    said, wanted = words(answer), words(expected)
    matches = _matches(said, wanted, 1)
    if not matches:
        return 0.0
    order = min(ORDER, len(wanted))
    total = log(matches / len(said))
    for length in range(2, order + 1):
        count = max(0, len(said) - length + 1)
        total += log((_matches(said, wanted, length) + 1) / (count + 1))
    counted = len(said) if plain else matches
    brevity = 1.0 if counted >= len(wanted) else exp(1 - len(wanted) / counted)
    return brevity * wordiness(answer, expected, verbosity) * exp(total / order)


def wordiness(answer: str, expected: str, verbosity: float) -> float:
    """1 up to `verbosity` times as many words as the reference has, and then falling with each further one."""
    if verbosity == inf:
        return 1.0
    return min(1.0, exp(1 - len(words(answer)) / (verbosity * max(1, len(words(expected))))))


def words(text: str) -> list[str]:
    """What is compared."""
    found: list[str] = []
    for word in text.lower().split():
        plain = "".join(one for one in word if not unicodedata.category(one).startswith("P"))
        joined = ""
        for letter in plain:
            if unicodedata.name(letter, "").startswith(_UNSPACED):
                found += [joined] * bool(joined) + [letter]
                joined = ""
            else:
                joined += letter
        found += [joined] * bool(joined)
    return found


def _matches(said: Sequence[str], wanted: Sequence[str], length: int) -> int:
    """Of the n-grams said, how many the reference has, each no oftener than there."""
    return sum((_grams(said, length) & _grams(wanted, length)).values())


def _grams(text: Sequence[str], length: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(text[at : at + length]) for at in range(len(text) - length + 1))
