r"""Multiple choice: which letter an attempt settled on. Whoever names two has chosen none.

Looked for, in this order, and the first place that names anything decides: \boxed{C}; <answer>C</answer>; "Answer:
(C)"; the last line, where it says "the answer is C", or ends as in "so it is (C)." or with a bare "C". What the last
line denies ("I exclude C") is no choice. Left out: matching an option's words instead of its letter.
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
"""What may stand before the letter in a box."""
_SAID = re.compile(
    r"\b(?i:answer|option|choice)\s+(?i:is|must\s+be)[\s:*]+(?:(?i:option)\s+)?"
    r"(?:[(\[]([A-Z])[)\]]|([A-Z])(?=[.,;:!?*)]|\s*$|\s+(?:or|and|because|since|as|due|for|with|which)\b))\**"
)
"""A bare letter before any other word may be that word's article."""
_ALTERNATIVE = re.compile(r"[\s,/&]*(?:\b(?:or|and)\b)?[\s,/&]*(?:(?:maybe|perhaps|option)\s+)*[(\[]?[A-Z](?![\w'])")
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|nor|exclud\w*|eliminat\w*|reject\w*|rul(?:e|es|ed|ing)\s+out|except|unlike"
    r"|(?:any|every)thing\s+but|all\s+but|instead\s+of|rather\s+than|(?<!no )(?<!without )(?<!beyond )doubt)"
    r"|n['\u2019]t)"
    r"(?:\s+(?:think|believe|say|that|it|this|is|be|to|the|an?|option|letter|answer|choice|choose|pick|go|with|for"
    r"|likely|probably|possibly|sure|certain|correct|right))*[\s(\[*]*$",
    re.IGNORECASE,
)
"""What leads to a letter by nothing but small words, and denies it."""
_MAX_DENIAL_CHARS = 200
"""How far before a letter that is looked for."""


def chosen(text: str | None, letters: str = LETTERS) -> str | None:
    """The letter that was chosen, or None: nothing was, or more than one."""
    if text is None:
        return None
    places = [_in_boxes(text), *([found[1] for found in place.finditer(text)] for place in (_TAGGED, _MARKED))]
    for named in places:
        if named:
            picked = {_letter(one, letters) for one in named}
            return _among(picked.pop() if len(picked) == 1 else None, letters)
    return _among(_in_line(text.strip().rpartition("\n")[2], letters), letters)


def chose(text: str | None, expected: str, letters: str = LETTERS) -> bool:
    """Whether an attempt chose the expected letter and no other."""
    return chosen(text, letters) == expected.strip().strip("()").upper()


def _in_boxes(text: str) -> list[str]:
    """What stands in every box, each text up to the next one; a box around a box is one."""
    text = _BOX_OF_A_BOX.sub("", text)
    edges = [*(found.start() for found in _BOXES.finditer(text)), len(text)]
    return [boxed(text[start:end]) or "" for start, end in pairwise(edges)]


def _in_line(line: str, letters: str) -> str | None:
    """The one letter that a last line says is the answer, or else ends with."""
    if said := list(_SAID.finditer(line)):
        if any(_denied(line, one.start()) or _ALTERNATIVE.match(line, one.end()) for one in said):
            return None
        picked = {one[1] or one[2] for one in said}
        return picked.pop() if len(picked) == 1 else None
    found = _AT_THE_END.search(line)
    if found is None or _denied(line, found.start(1)):
        return None
    return found[1] if len(set(re.findall(rf"(?<!\w)[{letters}](?!\w)", line))) == 1 else None


def _denied(line: str, at: int) -> bool:
    return _DENIED.search(line, max(0, at - _MAX_DENIAL_CHARS), at) is not None


def _letter(named: str, letters: str) -> str | None:
    """The one letter that a box or a marked line names, perhaps with the option's words behind it.

    Another option's letter among those words makes it two, but for a unit behind a number (40 C) and the article.
    """
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", named).strip().strip("$")
    text = _INTRODUCED.sub("", text, count=1) if _INTRODUCED.match(text) else text
    found = _ALONE.fullmatch(text) or _ALONE.fullmatch(plain(named).upper() if len(plain(named)) == 1 else "")
    if found is None or _ANOTHER.search(text, found.end(1) + 1):
        return None
    others = re.finditer(rf"(?<![\w'])(?<![\d°])(?<![\d°] )[{letters}](?![\w'])", text[found.end(1) :])
    named_too = {one[0] for one in others if not _ARTICLE.match(one.string, one.start())}
    return found[1] if named_too <= {found[1]} else None


def _among(letter: str | None, letters: str) -> str | None:
    return letter if letter is not None and letter in letters else None
