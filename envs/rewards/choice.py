r"""Multiple choice: which letter an attempt settled on. Whoever names two has chosen none.

Looked for, in this order, and the first place that names anything decides: \boxed{C}; "Answer: (C)"; the end of the
last line, as in "so it is (C)." or a bare "C". Left out: matching an option's words instead of its letter.
"""

import re
from itertools import pairwise

from palaestra.envs.rewards.answer import MARK
from palaestra.envs.rewards.mathematics import boxed, plain

LETTERS = "ABCD"
_BOXES = re.compile(r"\\(?:boxed|fbox)\{")
_MARKED = re.compile(rf"{MARK}\**\s*([^\n]*)", re.IGNORECASE)
_BOX_OF_A_BOX = re.compile(r"(?:\\(?:boxed|fbox)\{\s*)+(?=\\(?:boxed|fbox)\{)")
_ALONE = re.compile(r"[\s(\[*\"']*([A-Z])[\s)\]*\"']*(?:[.:)]\s.*|[.])?", re.DOTALL)
_ANOTHER = re.compile(r"[(\[][A-Z][)\]]|(?:\bor\b|\band\b|[/,&])\s*[(\[]?[A-Z]\b")
_ARTICLE = re.compile(r"A\s+(?!or\b|and\b)[a-z]")
_AT_THE_END = re.compile(r"(?:^|[\s(\[*:])([A-Z])[)\]*]*[.!]?\s*$")


def chosen(text: str | None, letters: str = LETTERS) -> str | None:
    """The letter that was chosen, or None: nothing was, or more than one."""
    if text is None:
        return None
    places = [_in_boxes(text), [found[1] for found in _MARKED.finditer(text)]]
    for named in places:
        if named:
            picked = {_letter(one, letters) for one in named}
            return _among(picked.pop() if len(picked) == 1 else None, letters)
    lines = text.strip().splitlines()
    last = lines[-1] if lines else ""
    found = _AT_THE_END.search(last)
    alone = set(re.findall(rf"(?<!\w)[{letters}](?!\w)", last))
    return _among(found[1], letters) if found and len(alone) == 1 else None


def chose(text: str | None, expected: str, letters: str = LETTERS) -> bool:
    """Whether an attempt chose the expected letter and no other."""
    return chosen(text, letters) == expected.strip().strip("()").upper()


def _in_boxes(text: str) -> list[str]:
    """What stands in every box, each text up to the next one; a box around a box is one."""
    text = _BOX_OF_A_BOX.sub("", text)
    edges = [*(found.start() for found in _BOXES.finditer(text)), len(text)]
    return [boxed(text[start:end]) or "" for start, end in pairwise(edges)]


def _letter(named: str, letters: str) -> str | None:
    """The one letter that a box or a marked line names, perhaps with the option's words behind it.

    Another option's letter among those words makes it two, but for a unit behind a number (40 C) and the article.
    """
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", named).strip().strip("$")
    found = _ALONE.fullmatch(text) or _ALONE.fullmatch(plain(named).upper() if len(plain(named)) == 1 else "")
    if found is None or _ANOTHER.search(text, found.end(1) + 1):
        return None
    others = re.finditer(rf"(?<![\w'])(?<![\d°])(?<![\d°] )[{letters}](?![\w'])", text[found.end(1) :])
    named_too = {one[0] for one in others if not _ARTICLE.match(one.string, one.start())}
    return found[1] if named_too <= {found[1]} else None


def _among(letter: str | None, letters: str) -> str | None:
    return letter if letter is not None and letter in letters else None
