"""The verdict of a reward model on an episode, in three blocks: <think>, <critique>, <score>.

    <think>It searched twice and never opened a result.</think>
    <critique>Open a result before you answer.</critique>
    <score>0.3</score>

The score block holds one number and nothing else, apart from marks of Markdown, quotation marks and a full stop. A
missing critique is read as "". Everything that makes the score doubtful (no number, words beside it, two numbers, 7/10,
70%, two scores, one that may be quoted in the critique or in thoughts, words on the line of the block or another number
after it, a block that is not closed) raises a ValueError with the reason. Such a verdict is requested again, and is
never a score of 0. Left out: that request (`palaestra.endpoint.judge`).
"""

import math
import re
from dataclasses import dataclass

_SCORE = re.compile(r"[\s*_`\"']*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)[\s*_`\"'.]*")
"""A block that is one number. A word beside it may make another number of it: 8 out of 10, not 1, 80 percent."""
_TAG = re.compile(r"<(/?)\s*(think|critique|score)\s*>", re.IGNORECASE)
_MARKUP = re.compile(r"<[^<>]*>")
_LABEL = re.compile(r"\W*(?:(?:my|the|final|overall)\s+)*score\W*", re.IGNORECASE)
"""Words that may stand before the block on its line."""
_QUOTED = re.compile(r"\s*[>|]")
_ANOTHER = re.compile(r"\d|\bscore", re.IGNORECASE)
"""Text after the block that may be another score."""
_WHOLE = ["think", "/think", "critique", "/critique", "score", "/score"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reward model's judgement of an episode."""

    score: float
    """Score from 0 (harmful) to 1 (flawless)."""
    critique: str = ""
    """Advice to the agent, for it to read."""
    analysis: str = ""
    """Thinking of the reward model."""
    whole: bool = True
    """True if all three blocks were there, in order."""
    written: float | None = None
    """The score as it was written, where it was out of range and has been moved to the nearer bound."""


def read_verdict(text: str, clamp: bool = True) -> Verdict:
    """Return the verdict in an answer. Raise a ValueError with the reason if there is none.

    A score out of range is moved to the nearer bound; without `clamp` it is an error too.
    """
    tags = [match[1] + match[2].lower() for match in _TAG.finditer(text)]
    thought, spoken = _divided(text)
    score = _block(spoken, "score")
    if score is None:
        raise ValueError("it has no <score> block")
    number = _SCORE.fullmatch(score)
    value = float(number[1]) if number else math.nan
    critique = (_block(spoken, "critique") or "").strip()
    if any(match[2].lower() == "score" for match in _TAG.finditer(critique)):
        raise ValueError("its <score> stands in its <critique>, where it may be quoted")
    if not math.isfinite(value):
        raise ValueError(f"its <score> holds {score.strip()[:40]!r}; expected one number from 0 to 1 and nothing else")
    _require_alone(spoken)
    within = min(max(value, 0.0), 1.0)
    if value != within and not clamp:
        raise ValueError(f"its <score> is {value:g}, which is not from 0 to 1")
    return Verdict(
        within,
        critique,
        thought.strip(),
        tags == _WHOLE,
        None if value == within else value,
    )


def written(verdict: Verdict) -> str:
    """Return the text of a verdict, as `read_verdict` reads it."""
    return f"<think>{verdict.analysis}</think><critique>{verdict.critique}</critique><score>{verdict.score:g}</score>"


def _divided(text: str) -> tuple[str, str]:
    """Return the thoughts, and the text after them. Only that text is parsed: thoughts may quote a score."""
    begin, end = [[*re.finditer(tag, text, re.IGNORECASE)] for tag in (r"<\s*think\s*>", r"</\s*think\s*>")]
    if begin and (not end or end[-1].start() < begin[-1].start()):
        raise ValueError("its <think> block is not closed")
    if not end:
        return "", text
    if re.search(r"<\s*score\s*>", text[end[0].end() : end[-1].start()], re.IGNORECASE):
        raise ValueError("it has a <score> between two </think>, which may be its own")
    return text[begin[0].end() if begin else 0 : end[-1].start()], text[end[-1].end() :]


def _require_alone(spoken: str) -> None:
    """Raise ValueError if the one score block may be a quotation, or a part of a score (<score>1</score>/10)."""
    text = re.sub(r"<\s*critique\s*>.*<\s*/\s*critique\s*>", "", spoken, flags=re.IGNORECASE | re.DOTALL)
    before, after = re.split(r"<\s*score\s*>.*<\s*/\s*score\s*>", text, maxsplit=1, flags=re.IGNORECASE | re.DOTALL)
    before, after = _MARKUP.sub("", before).rpartition("\n")[2], _MARKUP.sub("", after)
    words = re.search(r"\w", before) and not _LABEL.fullmatch(before)
    if words or _QUOTED.match(before) or re.search(r"\w", after.partition("\n")[0]):
        raise ValueError("words stand beside its <score> block, which may be quoted or be a part of the score")
    if _ANOTHER.search(after):
        raise ValueError("it names another score or number after its <score> block")


def _block(text: str, name: str) -> str | None:
    """Return the text in the block of this name; None if there is none. Raise a ValueError if it is not clear."""
    opened, closed = [[*re.finditer(rf"<{slash}\s*{name}\s*>", text, re.IGNORECASE)] for slash in ("", r"/")]
    if not opened and not closed:
        return None
    if len(opened) > 1 or len(closed) > 1:
        raise ValueError(f"it has {max(len(opened), len(closed))} <{name}> blocks where one was asked for")
    if not opened or not closed or closed[0].start() < opened[0].end():
        raise ValueError(f"its <{name}> block is not whole")
    return text[opened[0].end() : closed[0].start()]
