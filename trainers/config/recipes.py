"""Recipes: named presets of the training algorithm.

A recipe holds the functions (parts) that compute a gradient from episodes, with their settings. Not here: the sources
of the values (`recipe_sources`), how a part is called (`part_protocols`) and found (`trainers.parts`), and the settings
of play and optimizer (`grpo_config`).
"""

from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from palaestra.errors import ConfigError
from palaestra.trainers.config.part_protocols import (
    AdvantagePart,
    AggregationPart,
    CorrectionPart,
    JudgePart,
    LossPart,
    SamplerPart,
    ShapingPart,
)
from palaestra.trainers.losses.aggregation import AGGREGATIONS
from palaestra.trainers.losses.covariance import ClipCov, KLCov
from palaestra.trainers.losses.critic import ValueHead
from palaestra.trainers.losses.group_advantages import (
    GreedyBaseline,
    GroupNormalized,
    LeaveOneOut,
    OptimalBaseline,
    Shuffled,
    Successes,
)
from palaestra.trainers.losses.importance_correction import CORRECTIONS
from palaestra.trainers.losses.kl import KL
from palaestra.trainers.losses.policy import CISPO, GMPO, Clip, PolicyGradient
from palaestra.trainers.losses.token_advantages import GAE, TurnAdvantage, Whitened
from palaestra.trainers.losses.tree_advantages import TreeNormalized
from palaestra.trainers.parts import part_name
from palaestra.trainers.reward.reward_model import ReasoningReward
from palaestra.trainers.reward.staged_shaping import StagedShaping
from palaestra.trainers.reward.terms import Shaping
from palaestra.trainers.samplers.dapo import Dynamic
from palaestra.trainers.samplers.posterior import Posterior
from palaestra.trainers.samplers.reagent_u import Refined
from palaestra.trainers.samplers.tree import Tree
from palaestra.trainers.samplers.uniform import Uniform
from palaestra.trainers.samplers.vspo import VSPO
from palaestra.trainers.validation import NOT_NEGATIVE, PARTS, POSITIVE, check_fields

SAMPLERS = {
    "uniform": Uniform,
    "dynamic": Dynamic,
    "value": VSPO,
    "posterior": Posterior,
    "refined": Refined,
    "tree": Tree,
}
"""Samplers by name: they choose the tasks to play and the groups of a batch."""
SHAPINGS = {"outcome": Shaping, "progressive": StagedShaping}
"""Functions by name that compute the terms of the training reward."""
ADVANTAGES = {
    "group": GroupNormalized,
    "leave-one-out": LeaveOneOut,
    "optimal-baseline": OptimalBaseline,
    "greedy-baseline": GreedyBaseline,
    "whitened": Whitened,
    "turns": TurnAdvantage,
    "tree": TreeNormalized,
    "gae": GAE,
    "successes": Successes,
    "shuffled": Shuffled,
}
"""Advantage functions by name; the last two are controls."""
CRITICS = {"none": type(None), "head": ValueHead}
JUDGES = {"none": type(None), "rrm": ReasoningReward}
"""Judges by name, which read each episode when it ends."""
LOSSES = {
    "clip": Clip,
    "cispo": CISPO,
    "gmpo": GMPO,
    "policy-gradient": PolicyGradient,
    "clip-cov": ClipCov,
    "kl-cov": KLCov,
}
"""Policy losses of a token by name."""


if TYPE_CHECKING:
    OptionalJudge = ReasoningReward | JudgePart | None
    OptionalCorrection = CorrectionPart | None
    NameOrAggregation = str | AggregationPart
else:  # The command line reads the options of the part that is chosen, which may be of any type.
    OptionalJudge = OptionalCorrection = NameOrAggregation = Any
DEFAULT_LENGTH = 20_480
"""Longest response in tokens for a shaping that does not say so."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How episodes become a gradient. --recipe.PART NAME chooses a part: a built-in one (`palaestra recipes` lists
    them), or your own as module:name.
    """

    recipe_name: Annotated[str, tyro.conf.Suppress]
    """Name of the preset that this recipe is, or was made from."""
    sampler: SamplerPart = field(default_factory=Uniform, metadata={PARTS: SAMPLERS})
    """Sampler: it chooses the tasks to play and the groups of a batch."""
    shaping: ShapingPart = field(default_factory=Shaping, metadata={PARTS: SHAPINGS})
    """The terms of the training reward."""
    judge: OptionalJudge = field(default=None, metadata={PARTS: JUDGES})
    """A judge that reads each episode as it ends; the score is one more term."""
    advantage: AdvantagePart = field(default_factory=GroupNormalized, metadata={PARTS: ADVANTAGES})
    """The comparison of an episode's reward with others."""
    max_advantage: Annotated[float | None, POSITIVE] = None
    """Bound of the absolute value of an advantage; no bound if it is None."""
    loss: LossPart = field(default_factory=Clip, metadata={PARTS: LOSSES})
    """The policy loss of a token."""
    critic: ValueHead | None = field(default=None, metadata={PARTS: CRITICS})
    """A value head that predicts rewards, for the advantage `gae`."""
    correction: OptionalCorrection = field(default=None, metadata={PARTS: CORRECTIONS})
    """Weight of tokens that were sampled with other weights or other arithmetic: none, truncated (TIS),
    masked (MIS)."""
    kl: KL = field(default_factory=KL)
    """Penalty for the distance from the initial policy."""
    aggregation: NameOrAggregation = field(default="token", metadata={PARTS: AGGREGATIONS})
    """Units with equal weight in the loss: `token` (paper, eq. 4) or `sample` (eq. 5); `sum` adds up a sample's tokens,
    `constant` divides that by max_completion_length."""
    entropy_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Coefficient of the entropy bonus in the loss."""

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.advantage, GAE) != (self.critic is not None):
            raise ConfigError(
                "the advantage gae and a critic belong together; expected --recipe.advantage gae --recipe.critic head, "
                "or neither"
            )
        if not isinstance(self.critic, ValueHead | None):
            raise ConfigError(f"critic is {self.critic!r}; expected head or none")
        if isinstance(self.sampler, Refined) and self.judge is None:
            raise ConfigError(
                "the sampler refined plays second attempts that have read a critique, and this recipe has no judge to "
                "write one; expected --recipe.judge rrm --recipe.judge.url URL, or another sampler"
            )
        if self.kl.kl_in_reward and not self.kl.beta:
            raise ConfigError("kl_in_reward is True and beta is 0: nothing would be charged; expected a beta above 0")

        if isinstance(self.sampler, VSPO) and self.sampler.compared == "reward" and self.reward_range is None:
            raise ConfigError(
                "the sampler value compares rewards, whose range is unknown; give your shaping or judge a "
                "`reward_range`, its smallest and largest value"
            )

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Return the smallest and the largest possible training reward, including a judge's term; None if a part of
        your own has no `reward_range`.
        """
        low, high = 0.0, 0.0
        for part in (self.shaping, self.judge):
            part_range = (0.0, 0.0) if part is None else getattr(part, "reward_range", None)
            if part_range is None:
                return None
            low, high = low + part_range[0], high + part_range[1]
        return low, high

    @property
    def max_completion_length(self) -> int:
        """Return the longest response in tokens, which the recipe's `shaping` declares."""
        return int(getattr(self.shaping, "max_completion_length", DEFAULT_LENGTH))

    @property
    def longest_prefix(self) -> int:
        """Return the most tokens of context that the sampler may put between the prompt and the trained attempt."""
        return self.sampler.max_prefix_tokens if isinstance(self.sampler, Refined) else 0


OUTCOME = Shaping(overlong_share=None, tool_bonus=0.0)
"""The outcome without further terms."""
PLAIN = Clip(0.2, 0.2, None)
"""The clip of PPO, with the same bound on both sides."""
SEQUENCE = Clip(3e-4, 4e-4, None, "sequence")
RULE = Shaping(10_000, None, 0.0, outcome_range="unit")
"""The rule's reward without further terms; a judge's score may be added."""
RECIPES = {
    recipe.recipe_name: recipe
    for recipe in (
        Recipe("grpo-t", shaping=Shaping(16_384, None), loss=Clip(0.2, 0.2), kl=KL(0.001)),
        Recipe("grpo-tcr"),
        Recipe("grpo-scr", loss=SEQUENCE, aggregation="sample"),
        Recipe("demyagent", loss=Clip(epsilon_high=0.315)),
        Recipe("dapo", sampler=Dynamic(), shaping=Shaping(tool_bonus=0.0), loss=Clip(0.2, 0.28, None)),
        Recipe("dr-grpo", shaping=OUTCOME, advantage=GroupNormalized("none"), loss=PLAIN, aggregation="constant"),
        Recipe("gspo", shaping=OUTCOME, loss=SEQUENCE, aggregation="sample"),
        Recipe("cispo", shaping=OUTCOME, loss=CISPO()),
        Recipe("rloo", shaping=OUTCOME, advantage=LeaveOneOut(), loss=PLAIN, aggregation="sum"),
        Recipe("remax", shaping=OUTCOME, advantage=GreedyBaseline(), loss=PLAIN, aggregation="sum"),
        Recipe("reinforce++", shaping=OUTCOME, advantage=Whitened(), loss=PLAIN, kl=KL(0.01, "k1", True)),
        Recipe("reinforce++-baseline", shaping=OUTCOME, advantage=Whitened(True), loss=PLAIN, kl=KL(0.01, "k2")),
        Recipe("ppo", shaping=OUTCOME, advantage=GAE(), critic=ValueHead(), loss=PLAIN, kl=KL(0.001, "k1", True)),
        Recipe("reagent-none", Dynamic(), RULE, loss=Clip(0.2, 0.28, None), aggregation="sample"),
        Recipe(
            "reagent-r", Dynamic("reward"), RULE, ReasoningReward(), loss=Clip(0.2, 0.28, None), aggregation="sample"
        ),
        Recipe(
            "reagent-u",
            Refined(max_rounds=10),
            replace(RULE, max_completion_length=11_000),
            ReasoningReward(tries=10),
            loss=Clip(0.2, 0.34, None),
            aggregation="sample",
        ),
        Recipe("tree-grpo", Tree(), OUTCOME, advantage=TreeNormalized(), loss=PLAIN, kl=KL(0.001)),
        Recipe("arpo", Tree(branch_at="entropy"), OUTCOME, loss=PLAIN),
        Recipe("vspo", sampler=VSPO(), shaping=OUTCOME, max_advantage=3.0, loss=PLAIN, kl=KL(0.001)),
        Recipe("prs", shaping=StagedShaping(), loss=PLAIN, kl=KL(0.001)),
        Recipe(
            "vspo-prs",
            sampler=VSPO(),
            shaping=StagedShaping(),
            max_advantage=3.0,
            loss=PLAIN,
            kl=KL(0.001),
        ),
    )
}
"""The presets by name, as `--recipe` takes them."""


def find_recipe(name: str) -> Recipe:
    """Return the preset with this name. Raise `ConfigError` for an unknown name."""
    if name == "reagent-c":
        raise ConfigError(
            "reagent-c trains nothing: an agent is played with, reads a critique and tries again; it is measured by "
            "`palaestra eval ID --model MODEL --critic URL`"
        )
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=1, cutoff=0.0)[0]
        raise ConfigError(f"no recipe is called {name!r}; did you mean {close!r}? recipes: {', '.join(RECIPES)}")
    return RECIPES[name]


def parts_of(recipe: Recipe) -> dict[str, Any]:
    """Return the parts of a recipe, including the parts of its KL, by kind, such as `advantage`."""
    return {
        field.name: getattr(section, field.name)
        for section in (recipe, recipe.kl)
        for field in fields(section)
        if PARTS in field.metadata
    }


def own_part_names(recipe: Recipe) -> list[str]:
    """Return the name `module:name` of each part that is your own: neither built in nor registered by a package."""
    tables = {field.name: field.metadata.get(PARTS, {}) for section in (recipe, recipe.kl) for field in fields(section)}
    names = [part_name(tables[kind], part, kind) for kind, part in parts_of(recipe).items()]
    return [name for name in names if ":" in name]
