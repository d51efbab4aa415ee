"""Progressive rewards (PRS, arXiv 2512.07478): how much of each stage's score counts, and what the stages measure.

A stage counts once those before it are cleared. The paper's constants are not public; docs/papers.md explains ours.
Left out: how an environment declares its stages (`envs.rewards.progressive`), and their weights in training
(`trainers.reward.staged_shaping`).
"""

from collections.abc import Sequence

from palaestra.episode import Attempt, Status

MARKS = ("Answer:", "\\boxed{", "<answer>")
"""Marks that a task may require before or around the answer."""


def counted(scores: Sequence[float], thresholds: Sequence[float]) -> list[float]:
    """Return the part of each stage's score that counts. Scores after the first uncleared stage may be missing.

    The part of a score above its threshold counts only if all stages are cleared. Otherwise an attempt that fails early
    could score higher than one that clears more stages.
    """
    partial_scores = [0.0] * len(thresholds)
    for index, (score, threshold) in enumerate(zip(scores, thresholds, strict=False)):
        partial_scores[index] = min(score, threshold)
        if score < threshold:
            return partial_scores
    return list(scores)


def parsed_calls(attempt: Attempt, required: bool = False) -> float:
    """Return the share of calls that could be parsed. Without calls: 0 if a call is `required`, else 1."""
    read = [bool(call.name) or call.status is not Status.BAD_CALL for call in attempt.calls]
    return sum(read) / len(read) if read else float(not required)


def valid_calls(attempt: Attempt, required: bool = False) -> float:
    """Return the share of calls to an existing tool with valid arguments. Without calls, return what `parsed_calls`
    returns.
    """
    valid = [call.status is not Status.BAD_CALL for call in attempt.calls]
    return sum(valid) / len(valid) if valid else float(not required)


def formatted_answer(attempt: Attempt, mark: str | None = None) -> float:
    """Return 1 if there is an answer that has the mark exactly once, else 0. If `mark` is None, it is the one that the
    prompt contains; if the prompt contains none, any answer counts.
    """
    if mark is None:
        prompt = ""
        for message in attempt.messages:
            if message["role"] == "assistant":
                break
            prompt += str(message["content"])
        mark = next((candidate for candidate in MARKS if candidate in prompt), "")
    answer = (attempt.answer or "").strip()
    return float(answer.count(mark) == 1 if mark else bool(answer))
