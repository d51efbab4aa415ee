"""What training adds to an environment's reward: the outcome from -1 to 1, the tool bonus, the overlong penalty.

Pure functions of a finished episode (arXiv 2510.11701, eq. 8 and 9); an environment sees none of it.
"""

from collections.abc import Mapping

from palaestra.episode import Episode, Status
from palaestra.trainers.recipes import Recipe


def shape(episode: Episode, recipe: Recipe) -> Mapping[str, float]:
    """The terms of an episode's training reward, by name; their sum is what is compared within a group."""
    assert episode.reward is not None, "a BROKEN episode has no reward and is never shaped"
    outcome = 2 * episode.reward - 1
    terms = {"outcome": outcome, "tool_bonus": tool_bonus(outcome, worked_calls(episode), recipe)}
    if recipe.overlong:
        terms["overlong"] = overlong(response_length(episode), recipe.max_completion_length, recipe.overlong_cache)
    return terms


def worked_calls(episode: Episode) -> int:
    """Calls that a tool served. Malformed and failing calls do not count: a bonus for them is farmed."""
    return sum(call.status is Status.OK for call in episode.attempt.calls)


def tool_bonus(outcome: float, calls: int, recipe: Recipe) -> float:
    """What the calls add to the outcome: wrong answers rise by `tool_bonus` a call up to `wrong_cap`."""
    if outcome < 0:
        return max(min(recipe.wrong_cap, outcome + recipe.tool_bonus * calls) - outcome, 0.0)
    return recipe.tool_bonus * calls if recipe.bonus_on_correct else 0.0


def overlong(length: int, longest: int, cache: int) -> float:
    """0 up to `longest - cache` tokens, then falling in a line to -1 at `longest`."""
    return max(-1.0, min(0.0, (longest - cache - length) / cache))


def response_length(episode: Episode) -> int:
    """Tokens after the prompt, tool results included."""
    if not episode.rows:
        return 0
    first, last = episode.rows[0], episode.rows[-1]
    prompt = int(first.sampled.argmax()) if first.sampled.any() else len(first)
    return len(last) - prompt
