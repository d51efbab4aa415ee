"""Labels by rule for episodes of generated worlds, where no teacher is at hand: what a judge may be trained on first.

It looks at the calls alone: calls that failed, calls that were made before, an answer that no tool has given, no answer
at all. Each has a sentence in the critique. Left out: whether the answer is right, which no judge is shown either.
"""

from collections.abc import Sequence

from palaestra.episode import Call, Episode, Status
from palaestra.judging.verdict import Verdict

GUESSED, FAILED, REPEATED, SILENT = 0.5, 0.25, 0.25, 0.5
"""What each fault takes from a score of 1: a guess and silence at once, the others by their share of the calls."""


def annotated(episode: Episode) -> Verdict:
    """A verdict on an episode."""
    return annotated_calls(episode.attempt.calls, episode.attempt.answer, bool(episode.tools))


def annotated_calls(calls: Sequence[Call], answer: str | None, has_tools: bool = True) -> Verdict:
    """The same of calls, and of an answer, whose value is what follows its last colon."""
    seen: set[str] = set()
    failed = repeated = 0
    for call in calls:
        key = f"{call.name} {sorted(call.arguments.items())!r}"
        failed += call.status is not Status.OK
        repeated += key in seen
        seen.add(key)
    value = (answer or "").rpartition(":")[2].strip().casefold()
    guessed = has_tools and bool(value) and not any(value in call.text.casefold() for call in calls)
    count = max(len(calls), 1)
    score = 1.0 - GUESSED * guessed - FAILED * failed / count - REPEATED * repeated / count - SILENT * (not value)
    faults = {
        "Look up what you answer before you answer it.": guessed,
        "Read why a call failed and change it.": failed,
        "Do not repeat a call whose result you have.": repeated,
        "Give an answer.": not value,
    }
    analysis = f"{len(calls)} calls, {failed} failed, {repeated} repeated; " + (
        "no answer" if not value else "the answer is a guess" if guessed else "the answer was looked up"
    )
    return Verdict(round(max(score, 0.0), 2), " ".join(said for said, found in faults.items() if found), analysis)


def written(verdict: Verdict) -> str:
    """A verdict as a judge writes it."""
    return (
        f"<think>{verdict.analysis}</think>\n<critique>{verdict.critique}</critique>\n<score>{verdict.score:g}</score>"
    )
