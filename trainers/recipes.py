"""Named presets of the algorithm, every value with where it comes from.

"Paper" is arXiv 2510.11701, "code" its released training code, which is followed where the two differ. A recipe says
how rewards become a gradient; how much is played and how fast is learned is `GRPOConfig`'s.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import Field

from palaestra.errors import ConfigError
from palaestra.trainers.checked import COUNT, NOT_NEGATIVE, POSITIVE, check_fields


@dataclass(frozen=True, slots=True)
class Recipe:
    """One preset."""

    name: str
    """What --recipe calls it."""
    epsilon: Annotated[float, Field(gt=0, lt=1)]
    """Lower clip of the ratio."""
    epsilon_high: Annotated[float, POSITIVE]
    """Upper clip of the ratio."""
    beta: Annotated[float, NOT_NEGATIVE]
    """Weight of the KL to the starting policy."""
    overlong: bool
    """Whether long responses are penalised."""
    max_completion_length: Annotated[int, COUNT]
    """Longest response in tokens, tool results included."""
    overlong_cache: Annotated[int, COUNT] = 4096
    """The last so many tokens before the limit in which the penalty grows (code)."""
    dual_clip: Annotated[float | None, Field(gt=1)] = 10.0
    """Bound on the loss of tokens with negative advantage (code)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whose ratio is clipped: each token's, or its whole sequence's (paper, eq. 6 and 7)."""
    aggregation: Literal["token", "sample"] = "token"
    """What weighs the same: every token of the mini-batch (paper, eq. 4), or every sample (eq. 5)."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL is estimated: k1, k2 or k3 (code)."""
    tool_bonus: float = 0.1
    """Per call that worked, for wrong answers (paper and code; they count every call, which is farmed)."""
    bonus_on_correct: bool = False
    """The paper prints the bonus for right answers too, the released code does not give it; code is followed."""
    wrong_cap: float = -0.6
    """Highest outcome of a wrong answer with its bonus (code)."""

    def __post_init__(self) -> None:
        check_fields(self)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        # Paper 2.3, 4.1 and appendix A: symmetric clip, KL 0.001, no length term, 16 384 tokens.
        Recipe("grpo-t", epsilon=0.2, epsilon_high=0.2, beta=0.001, overlong=False, max_completion_length=16_384),
        # Paper 2.3 and 4.1, code: raised clip, no KL, length term, 20 480 tokens.
        Recipe("grpo-tcr", epsilon=0.2, epsilon_high=0.28, beta=0.0, overlong=True, max_completion_length=20_480),
        # Paper 2.3 and 4.1: the ratio of the sequence in a narrow clip, the mean over samples, length term; code: no
        # bound for negative advantages. No KL and 20 480 tokens are inferred: the paper calls only GRPO-T's KL strong.
        Recipe(
            "grpo-scr",
            epsilon=3e-4,
            epsilon_high=4e-4,
            beta=0.0,
            overlong=True,
            max_completion_length=20_480,
            dual_clip=None,
            importance_sampling_level="sequence",
            aggregation="sample",
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """The preset of that name."""
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=1, cutoff=0.0)[0]
        raise ConfigError(f"no recipe is called {name!r}; did you mean {close!r}? recipes: {', '.join(RECIPES)}")
    return RECIPES[name]
