"""Finds the final answer in a response, and describes to a person what was read."""

import re

MARK = "Answer:"
MAX_SHOWN = 300
"""Characters of the answer that `reading` shows."""
_MARKED = re.compile(r"answer[*_`]*:(?:[*_`]+(?!\S))?", re.IGNORECASE)
"""The start of an answer, with the Markdown marks that end there: "Answer:", "**Final answer:**"."""
_OPENED = re.compile(r"(?<!\w)(\*{1,3}|_{1,3}|`)(?=[^\s*_`])[^*_`\n]*:$")
"""A Markdown mark before "Answer:" that is still open: "**Final answer:"."""
_EMPHASISED = re.compile(r"(\*{1,3}|`{1,3})([^*`]*[^*`\s][^*`]*)\1")


def final_answer(text: str | None) -> str | None:
    """Return the rest of the line after the last "Answer:", or the whole text if there is no "Answer:".

    Markdown emphasis around the answer is removed. Underscores are kept, because they may belong to a name (__init__),
    unless the emphasis was opened before "Answer:".
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


def reading(value: str | None, place: str, rule: str) -> str:
    """Return the explanation of a reward (`ToolEnv.explain`): what was read, from where, and the rule that counts."""
    return f"nothing can be read from {place}" if value is None else f"read {value[:MAX_SHOWN]!r} from {place}; {rule}"


def _plain(answer: str) -> str:
    """Return an answer without the Markdown emphasis around all of it."""
    emphasised = _EMPHASISED.fullmatch(answer)
    return emphasised[2].strip() if emphasised else answer
