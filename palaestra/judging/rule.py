"""A verdict by rule: what can be seen in an episode without understanding it, and whether it succeeded.

For worlds whose outcome is known, where a teacher costs too much: labels that a small judge can learn. The critique
names what went wrong and never the answer. Left out: everything that takes reading.
"""

from palaestra.episode import Attempt, Status
from palaestra.judging.verdict import Verdict


def by_rule(attempt: Attempt, solved: bool, has_tools: bool) -> Verdict:
    """A score of 1, less something for each kind of fault."""
    calls = attempt.calls
    failed = sum(call.status is not Status.OK for call in calls)
    said = [(call.name, repr(call.arguments)) for call in calls]
    found = [
        (0.4, "No tool was used.", "Look it up with a tool before you answer.", has_tools and not calls),
        (
            0.15 * min(failed, 2),
            f"Calls that failed: {failed}.",
            "Read why a call failed before you go on.",
            failed > 0,
        ),
        (0.15, "A call was repeated.", "Do not repeat a call: its result stays.", len(set(said)) < len(said)),
        (0.3, "There is no answer.", "Answer before your turns run out.", attempt.answer is None),
        (0.3, "The outcome is wrong.", "Check your answer against what the tools said.", not solved),
    ]
    faults = [(points, seen, advice) for points, seen, advice, there in found if there]
    score = round(max(0.0, 1 - sum(points for points, _, _ in faults)), 2)
    analysis = " ".join(seen for _, seen, _ in faults) or "No fault is seen."
    return Verdict(score, " ".join(advice for *_, advice in faults) or "Go on like this.", analysis)
