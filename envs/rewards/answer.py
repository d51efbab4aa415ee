"""Finding the answer in what an agent says at the end, and telling a person what was found."""

MARK = "Answer:"
MAX_SHOWN = 300
"""Characters of what was read that a person is shown."""


def final_answer(text: str | None) -> str | None:
    """What stands on the line of the last "Answer:", without it; the whole text where there is none."""
    if text is None:
        return None
    _, mark, after = text.rpartition(MARK)
    return after.strip().partition("\n")[0].strip() if mark else text.strip()


def reading(found: str | None, place: str, rule: str) -> str:
    """What a person is told of a reward (`ToolEnv.explain`): what was read, from which place, and how it counts."""
    return f"nothing can be read from {place}" if found is None else f"read {found[:MAX_SHOWN]!r} from {place}; {rule}"
