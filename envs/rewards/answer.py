"""Finding the answer in what an agent says at the end, and telling a person what was found."""

import re

MARK = "Answer:"
MAX_SHOWN = 300
"""Characters of what was read that a person is shown."""
_MARKED = re.compile(r"answer[*_`]*:(?:[*_`]+(?!\S))?", re.IGNORECASE)
"""Where an answer begins, whatever marks of Markdown end there: "Answer:", "**Final answer:**"."""
_OPENED = re.compile(r"(?<!\w)(\*{1,3}|_{1,3}|`)(?=[^\s*_`])[^*_`\n]*:$")
"""A mark of Markdown before it that is still open: "**Final answer:"."""
_EMPHASISED = re.compile(r"(\*{1,3}|`{1,3})([^*`]*[^*`\s][^*`]*)\1")


def final_answer(text: str | None) -> str | None:
    """What stands on the line of the last "Answer:", without it; the whole text where there is none.

    Marks of Markdown around either are no part of it. Underscores belong to names (__init__), unless they were opened
    before "Answer:".
    """
    if text is None:
        return None
    *_, last = (None, *_MARKED.finditer(text))
    if last is None:
        return _plain(text.strip())
    answer = text[last.end() :].strip().partition("\n")[0].strip()
    if opened := _OPENED.search(text[text.rfind("\n", 0, last.start()) + 1 : last.end()]):
        answer = answer.removesuffix(opened[1]).rstrip()
    return _plain(answer)


def reading(found: str | None, place: str, rule: str) -> str:
    """What a person is told of a reward (`ToolEnv.explain`): what was read, from which place, and how it counts."""
    return f"nothing can be read from {place}" if found is None else f"read {found[:MAX_SHOWN]!r} from {place}; {rule}"


def _plain(answer: str) -> str:
    """An answer without emphasis around all of it."""
    found = _EMPHASISED.fullmatch(answer)
    return found[2].strip() if found else answer
