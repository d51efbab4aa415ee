"""A verdict by rule: from an episode's calls, its answer and its outcome, without understanding its text.

It labels episodes of known outcome for a small judge to learn from, if a teacher would cost too much. The critique
names what went wrong and never the answer. Left out: every finding that needs reading.
"""

from palaestra.episode import Attempt, Status
from palaestra.judging.verdict import Verdict


def by_rule(attempt: Attempt, solved: bool, has_tools: bool) -> Verdict:
    """Return a verdict. Its score is 1 minus a deduction for each kind of fault, and at least 0."""
    calls = attempt.calls
    failed = sum(call.status is not Status.OK for call in calls)
    signatures = [(call.name, repr(call.arguments)) for call in calls]
    rules = [
        (0.4, "No tool was used.", "Look it up with a tool before you answer.", has_tools and not calls),
        (
            0.15 * min(failed, 2),
            f"Calls that failed: {failed}.",
            "Read why a call failed before you go on.",
            failed > 0,
        ),
        (
            0.15,
            "A call was repeated.",
            "Do not repeat a call: its result stays.",
            len(set(signatures)) < len(signatures),
        ),
        (0.3, "There is no answer.", "Answer before your turns run out.", attempt.answer is None),
        (0.3, "The outcome is wrong.", "Check your answer against what the tools said.", not solved),
    ]
    faults = [(points, finding, advice) for points, finding, advice, there in rules if there]
    score = round(max(0.0, 1 - sum(points for points, _, _ in faults)), 2)
    analysis = " ".join(finding for _, finding, _ in faults) or "No fault is seen."
    return Verdict(score, " ".join(advice for *_, advice in faults) or "Go on like this.", analysis)
