r"""Finds the letter that an attempt chose in a multiple-choice question. An attempt that names two letters chose none.

The following places are searched in this order, and the first that names any letter decides: \boxed{C};
<answer>C</answer>; "Answer: (C)"; the last line, if it says "the answer is C", or ends as in "so it is (C)." or with
only "C". A letter that the last line denies ("I exclude C") is not a choice. Left out: an answer that gives an option's
words instead of its letter.
"""

import re
from itertools import pairwise

from palaestra.envs.rewards.answer import MARK
from palaestra.envs.rewards.mathematics import boxed, plain

LETTERS = "ABCD"
_BOXES = re.compile(r"\\(?:boxed|fbox)\{")
_TAGGED = re.compile(r"<answer>([^<]*)</answer>", re.IGNORECASE)
_MARKED = re.compile(rf"{MARK}\**\s*([^\n]*)", re.IGNORECASE)
_BOX_OF_A_BOX = re.compile(r"(?:\\(?:boxed|fbox)\{\s*)+(?=\\(?:boxed|fbox)\{)")
_ALONE = re.compile(r"[\s(\[*\"']*([A-Z])[\s)\]*\"']*(?:[.:)]\s.*|[.])?", re.DOTALL)
_ANOTHER = re.compile(r"[(\[][A-Z][)\]]|(?:\bor\b|\band\b|[/,&])\s*[(\[]?[A-Z]\b")
_ARTICLE = re.compile(r"A\s+(?!or\b|and\b)[a-z]")
_AT_THE_END = re.compile(r"(?:^|[\s(\[*:])([A-Z])[)\]*]*[.!]?\s*$")
_INTRODUCED = re.compile(
    r"(?:the\s+)?(?:(?:correct|right|final|best)\s+)?(?:answer|option|choice)(?:\s+is)?[\s:*]+", re.IGNORECASE
)
"""Words that may come before the letter in a box."""
_SAID = re.compile(
    r"\b(?i:answer|option|choice)\s+(?i:is|must\s+be)[\s:*]+(?:(?i:option)\s+)?"
    r"(?:[(\[]([A-Z])[)\]]|([A-Z])(?=[.,;:!?*)]|\s*$|\s+(?:or|and|because|since|as|due|for|with|which)\b))\**"
)
"""A statement of the choice. A bare letter counts only before these words, since "A" may be an article."""
_ALTERNATIVE = re.compile(r"[\s,/&]*(?:\b(?:or|and)\b)?[\s,/&]*(?:(?:maybe|perhaps|option)\s+)*[(\[]?[A-Z](?![\w'])")
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|nor|exclud\w*|eliminat\w*|reject\w*|rul(?:e|es|ed|ing)\s+out|except|unlike"
    r"|(?:any|every)thing\s+but|all\s+but|instead\s+of|rather\s+than|(?<!no )(?<!without )(?<!beyond )doubt)"
    r"|n['\u2019]t)"
    r"(?:\s+(?:think|believe|say|that|it|this|is|be|to|the|an?|option|letter|answer|choice|choose|pick|go|with|for"
    r"|likely|probably|possibly|sure|certain|correct|right))*[\s(\[*]*$",
    re.IGNORECASE,
)
"""A denial that is separated from a letter by small words alone."""
_MAX_DENIAL_CHARS = 200
"""Characters before a letter that are searched for a denial."""


def chosen(text: str | None, letters: str = LETTERS) -> str | None:
    """Return the chosen letter, or None if no letter or several letters were chosen."""
    if text is None:
        return None
    places = [_in_boxes(text), *([match[1] for match in place.finditer(text)] for place in (_TAGGED, _MARKED))]
    for labels in places:
        if labels:
            picked = {_letter(label, letters) for label in labels}
            return _among(picked.pop() if len(picked) == 1 else None, letters)
    return _among(_in_line(text.strip().rpartition("\n")[2], letters), letters)


def _in_boxes(text: str) -> list[str]:
    """Return the content of every box; a box around a box counts as one."""
    text = _BOX_OF_A_BOX.sub("", text)
    edges = [*(match.start() for match in _BOXES.finditer(text)), len(text)]
    return [boxed(text[start:end]) or "" for start, end in pairwise(edges)]


def _in_line(line: str, letters: str) -> str | None:
    """Return the only letter that the last line states as the answer, or ends with; None if there is no such letter."""
    if statements := list(_SAID.finditer(line)):
        if any(
            _denied(line, statement.start()) or _ALTERNATIVE.match(line, statement.end()) for statement in statements
        ):
            return None
        picked = {statement[1] or statement[2] for statement in statements}
        return picked.pop() if len(picked) == 1 else None
    ending = _AT_THE_END.search(line)
    if ending is None or _denied(line, ending.start(1)):
        return None
    return ending[1] if len(set(re.findall(rf"(?<!\w)[{letters}](?!\w)", line))) == 1 else None


def _denied(line: str, at: int) -> bool:
    return _DENIED.search(line, max(0, at - _MAX_DENIAL_CHARS), at) is not None


def _letter(label: str, letters: str) -> str | None:
    """Return the only letter that a box or a marked line names, perhaps followed by the option's words; otherwise None.

    Another option's letter among those words counts as a second letter, except a unit after a number (40 C) and the
    article "A".
    """
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", label).strip().strip("$")
    text = _INTRODUCED.sub("", text, count=1) if _INTRODUCED.match(text) else text
    match = _ALONE.fullmatch(text) or _ALONE.fullmatch(plain(label).upper() if len(plain(label)) == 1 else "")
    if match is None or _ANOTHER.search(text, match.end(1) + 1):
        return None
    others = re.finditer(rf"(?<![\w'])(?<![\d°])(?<![\d°] )[{letters}](?![\w'])", text[match.end(1) :])
    other_letters = {other[0] for other in others if not _ARTICLE.match(other.string, other.start())}
    return match[1] if other_letters <= {match[1]} else None


def _among(letter: str | None, letters: str) -> str | None:
    return letter if letter is not None and letter in letters else None
