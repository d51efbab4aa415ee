"""Progressive rewards (PRS, arXiv 2512.07478): how far each stage of an attempt counts, and what the stages measure.

A stage counts once those before it are cleared. The paper's constants are not public; what is here is docs/papers.md's.
Left out: how an environment declares its stages (`envs.rewards.progressive`), and their weights in training
(`trainers.scoring.progressive`).
"""

from collections.abc import Sequence

from palaestra.episode import Attempt, Status

MARKS = ("Answer:", "\\boxed{", "<answer>")
"""What an answer may have to stand behind, or in."""


def counted(scores: Sequence[float], thresholds: Sequence[float]) -> list[float]:
    """How far each stage counts. Scores behind the first stage that is not cleared may be missing.

    The surplus of a cleared stage waits for the last one: else an attempt that is stuck could have more than one that
    went on.
    """
    held = [0.0] * len(thresholds)
    for at, (score, threshold) in enumerate(zip(scores, thresholds, strict=False)):
        held[at] = min(score, threshold)
        if score < threshold:
            return held
    return list(scores)


def parsed_calls(attempt: Attempt, required: bool = False) -> float:
    """Share of the calls that could be read as one. Without any: 0 where a call is `required`, else 1."""
    read = [bool(call.name) or call.status is not Status.BAD_CALL for call in attempt.calls]
    return sum(read) / len(read) if read else float(not required)


def valid_calls(attempt: Attempt, required: bool = False) -> float:
    """Share of the calls to a tool that exists, with arguments it takes."""
    valid = [call.status is not Status.BAD_CALL for call in attempt.calls]
    return sum(valid) / len(valid) if valid else float(not required)


def formatted_answer(attempt: Attempt, mark: str | None = None) -> float:
    """1 where there is an answer, with the mark in it once. Without a mark: with the one that the task asks for."""
    if mark is None:
        told = ""
        for message in attempt.messages:
            if message["role"] == "assistant":
                break
            told += str(message["content"])
        mark = next((one for one in MARKS if one in told), "")
    answer = (attempt.answer or "").strip()
    return float(answer.count(mark) == 1 if mark else bool(answer))
