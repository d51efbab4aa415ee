"""Length-aware BLEU of a short answer (arXiv 2512.07478; docs/papers.md defines it, because its formula is not public).

The order of n-grams is at most the reference's length, so a short answer is not scored by n-grams that it cannot have:
`exp(mean of ln p_n)` times a brevity penalty, where `p_1` is the share of words that match and `p_n` above it is
`(matches + 1) / (total + 1)`. Words and numbers are those of `quotation`; articles stay. In scripts without spaces
between words, each letter is a word. If yes, no, true or false is expected, only an exact match counts.

With `plain`, extra words raise the score of a short answer ("new x x" beats "new"), because the brevity penalty counts
words that match nothing. Without `plain` it counts only matching words, so that a wrong word never helps.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from math import exp, inf, log

from palaestra.envs.rewards.quotation import WHETHER, exact_match, normalised, without_punctuation

ORDER = 4
WORD_CHARS = 20
"""More characters a word than any language has on average."""
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def length_aware_bleu(
    answer: str | None, expected: str | Iterable[str], *, verbosity: float = inf, plain: bool = False
) -> float:
    """Return the best score over the expected answers, from 0 to 1; an exact match is 1.

    An answer with more than `verbosity` times the reference's words loses score with each further word. With `plain`,
    words that match nothing count as length too.
    """
    references = [expected] if isinstance(expected, str) else list(expected)
    if not answer or not answer.strip():
        return 0.0
    return max((_against(answer, reference, verbosity, plain) for reference in references), default=0.0)


def _against(answer: str, expected: str, verbosity: float, plain: bool) -> float:
    if exact_match(answer, expected):
        return 1.0
    answer_words, expected_words = words(answer), words(expected)
    matches = _matches(answer_words, expected_words, 1)
    if not matches or normalised(expected) in WHETHER:
        return 0.0
    order = min(ORDER, len(expected_words))
    total = log(matches / len(answer_words))
    for length in range(2, order + 1):
        count = max(0, len(answer_words) - length + 1)
        total += log((_matches(answer_words, expected_words, length) + 1) / (count + 1))
    counted = len(answer_words) if plain else matches
    brevity = 1.0 if counted >= len(expected_words) else exp(1 - len(expected_words) / counted)
    return brevity * wordiness(answer, expected, verbosity) * exp(total / order)


def wordiness(answer: str, expected: str, verbosity: float) -> float:
    """Return 1 for an answer of up to `verbosity` times the reference's words, and less with each further word."""
    if verbosity == inf:
        return 1.0
    return min(1.0, exp(1 - length(answer) / (verbosity * max(1, length(expected)))))


def length(text: str) -> int:
    """Return the number of words, or one for each WORD_CHARS characters if that is more (dashes can join words)."""
    return max(len(words(text)), len(" ".join(text.split())) // WORD_CHARS)


def words(text: str) -> list[str]:
    """Return the words of a text; in scripts without spaces each letter is a word."""
    tokens: list[str] = []
    for word in without_punctuation(text).split():
        joined = ""
        for letter in word:
            if unicodedata.name(letter, "").startswith(_UNSPACED):
                tokens += [joined] * bool(joined) + [letter]
                joined = ""
            else:
                joined += letter
        tokens += [joined] * bool(joined)
    return tokens


def _matches(answer: Sequence[str], expected: Sequence[str], length: int) -> int:
    """Count the n-grams of the answer that the reference has too, each at most as often as the reference has it."""
    return sum((_grams(answer, length) & _grams(expected, length)).values())


def _grams(text: Sequence[str], length: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(text[at : at + length]) for at in range(len(text) - length + 1))
