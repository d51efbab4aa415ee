"""Finding the answer in what an agent says at the end."""

MARK = "Answer:"


def final_answer(text: str | None) -> str | None:
    """What stands on the line of the last "Answer:", without it; the whole text where there is none."""
    if text is None:
        return None
    _, mark, after = text.rpartition(MARK)
    return after.strip().partition("\n")[0].strip() if mark else text.strip()
