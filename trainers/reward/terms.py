"""Terms of the training reward: the outcome, the tool bonus and the overlong penalty.

They are pure functions of a finished episode (arXiv 2510.11701, eq. 8 and 9). Environments do not use them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from palaestra.episode import Episode, Status
from palaestra.trainers.validation import COUNT, check_fields


@dataclass(frozen=True, slots=True)
class Shaping:
    """Function that computes the terms of an episode's training reward. Their sum is compared within a group."""

    max_completion_length: Annotated[int, COUNT] = 20_480
    """Longest response in tokens; the overlong penalty reaches -1 there."""
    overlong_share: Annotated[float | None, Field(gt=0, le=1)] = 0.2
    """Last share of the longest response over which the penalty grows; None means no penalty."""
    tool_bonus: float = 0.1
    """Bonus for each call that succeeded, for wrong answers. The paper and its code count every call, which agents can
    exploit."""
    bonus_on_correct: bool = False
    """True to give right answers the bonus too, as the paper prints it. The paper's code does not, like the default."""
    outcome_range: Literal["signed", "unit"] = "signed"
    """Range of the outcome: -1 to 1 (arXiv 2510.11701), or 0 to 1 as environments give it (2601.22154), to which a
    judge's score is added."""
    wrong_cap: float = -0.6
    """Highest outcome of a wrong answer with its bonus."""
    overlong_counts: Literal["all", "sampled"] = "all"
    """Tokens that count as length: all after the prompt, with tool results (code), or the sampled ones (paper)."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return the smallest and largest sum of the terms, for a reward from 0 to 1 and no bonus on right answers."""
        worst = 0.0 if self.outcome_range == "unit" else -1.0
        return worst - (self.overlong_share is not None), 1.0

    def __call__(self, episode: Episode) -> Mapping[str, float]:
        """Return the terms of an episode that has a reward."""
        assert episode.reward is not None, "a BROKEN episode has no reward and is never shaped"
        outcome = 2 * episode.reward - 1
        terms = {"outcome": outcome, "tool_bonus": self.bonus(outcome, worked_calls(episode))}
        if self.outcome_range == "unit":
            terms["outcome"] = episode.reward
        if self.overlong_share is not None:
            cache = max(1, round(self.overlong_share * self.max_completion_length))
            terms["overlong"] = overlong(self.length(episode), self.max_completion_length, cache)
        return terms

    def length(self, episode: Episode) -> int:
        """Return the length of an episode's response in tokens, as the overlong penalty counts it."""
        return response_length(episode) if self.overlong_counts == "all" else episode.sampled_tokens

    def bonus(self, outcome: float, calls: int) -> float:
        """Return the bonus for calls: a wrong answer gets `tool_bonus` per call, up to a reward of `wrong_cap`."""
        if outcome < 0:
            return max(min(self.wrong_cap, outcome + self.tool_bonus * calls) - outcome, 0.0)
        return self.tool_bonus * calls if self.bonus_on_correct else 0.0


def worked_calls(episode: Episode) -> int:
    """Return the number of calls that succeeded. With a bonus for failed ones, agents would make them on purpose."""
    return sum(call.status is Status.OK for call in episode.attempt.calls)


def overlong(length: int, longest: int, cache: int) -> float:
    """Return the penalty: 0 up to `longest - cache` tokens, then linear down to -1 at `longest`."""
    return max(-1.0, min(0.0, (longest - cache - length) / cache))


def response_length(episode: Episode) -> int:
    """Return the number of tokens after the prompt, tool results included; of several dialogues, their sum."""
    if not episode.rows:
        return 0
    if episode.attempt.dialogues:  # Each of its rows has a prompt of its own.
        return sum(len(row) - int(row.sampled.argmax()) for row in episode.rows if row.sampled.any())
    first, last = episode.rows[0], episode.rows[-1]
    prompt = int(first.sampled.argmax()) if first.sampled.any() else len(first)
    return len(last) - prompt
