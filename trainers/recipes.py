"""Named presets of the algorithm, every value with where it comes from.

"Paper" is arXiv 2510.11701, "code" its released training code, which is followed where the two differ. A recipe names
the functions that turn episodes into a gradient, with their settings; each is a frozen dataclass that is called. How
much is played and how fast is learned is `config`'s.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Literal

import tyro

from palaestra.errors import ConfigError
from palaestra.trainers.checked import PARTS, check_fields
from palaestra.trainers.losses.advantages import ADVANTAGES, Group, Shuffled, Successes
from palaestra.trainers.losses.correction import CORRECTIONS, Masked, Truncated
from palaestra.trainers.losses.kl import KL
from palaestra.trainers.losses.policy import Clip
from palaestra.trainers.sampling.uniform import Uniform
from palaestra.trainers.scoring.terms import Shaping


@dataclass(frozen=True, slots=True)
class Recipe:
    """How episodes become a gradient. --recipe.advantage is group, or one of the controls successes and shuffled;
    --recipe.correction is none, truncated or masked.
    """

    recipe_name: Annotated[str, tyro.conf.Suppress]
    """The preset that this is, or was made from."""
    sampler: Uniform = field(default_factory=Uniform, metadata={PARTS: {"uniform": Uniform}})
    """What is played next, and which groups make a batch."""
    shaping: Shaping = field(default_factory=Shaping)
    """The terms of the training reward."""
    advantage: Group | Successes | Shuffled = field(default_factory=Group, metadata={PARTS: ADVANTAGES})
    """What an episode's reward is compared with: group; the controls successes and shuffled."""
    loss: Clip = field(default_factory=Clip, metadata={PARTS: {"clip": Clip}})
    """The policy loss of a token."""
    correction: Truncated | Masked | None = field(default=None, metadata={PARTS: CORRECTIONS})
    """How tokens are weighed that other weights or another arithmetic sampled: none, truncated (TIS), masked (MIS)."""
    kl: KL = field(default_factory=KL)
    """The penalty for leaving the starting policy."""
    aggregation: Literal["token", "sample"] = "token"
    """What weighs the same in the loss: every token of the mini-batch (paper, eq. 4), or every sample (eq. 5)."""

    def __post_init__(self) -> None:
        check_fields(self)


RECIPES = {
    recipe.recipe_name: recipe
    for recipe in (
        # Paper 2.3, 4.1 and appendix A: symmetric clip, KL 0.001, no length term, 16 384 tokens. Code: dual clip 10,
        # as in the next; the bonus of 0.1 up to -0.6 in all three (paper and code).
        Recipe("grpo-t", shaping=Shaping(16_384, None), loss=Clip(0.2, 0.2), kl=KL(0.001)),
        # Paper 2.3 and 4.1, code: raised clip, no KL, length term in the last 4,096 of 20,480 tokens.
        Recipe("grpo-tcr"),
        # Paper 2.3 and 4.1: the ratio of the sequence in a narrow clip, the mean over samples, length term; code: no
        # bound for negative advantages. No KL and 20 480 tokens are inferred: the paper calls only GRPO-T's KL strong.
        Recipe("grpo-scr", loss=Clip(3e-4, 4e-4, None, "sequence"), aggregation="sample"),
    )
}
"""The presets by name, as `--recipe` takes them."""


def find_recipe(name: str) -> Recipe:
    """The preset of that name."""
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=1, cutoff=0.0)[0]
        raise ConfigError(f"no recipe is called {name!r}; did you mean {close!r}? recipes: {', '.join(RECIPES)}")
    return RECIPES[name]
