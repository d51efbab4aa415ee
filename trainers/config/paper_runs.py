"""The settings of play and optimizer that a recipe's paper gives, with the source of each.

`grpo_config` and a model that is named on the command line start from them; what the user names wins. `laptop_config`
puts a small machine's needs on top, and the tiny agent has defaults of its own. "inferred" means that no source gives a
value. Left out: settings of the algorithm itself (`recipes`, `recipe_sources`).
"""

from collections.abc import Mapping
from typing import Any

Sourced = tuple[Any, str]
"""A value and its source."""

_FIRST: Mapping[str, Sourced] = {
    "steps": (450, "paper: the results of DemyAgent; its code has three epochs"),
    "play.num_prompts": (64, "code; paper, appendix"),
    "play.num_generations": (16, "code"),
    "play.temperature": (1.0, "code: the framework's default"),
    "play.max_turn_tokens": (20_480, "code: a turn may be as long as the response"),
    "optimizer.learning_rate": (1e-6, "code; paper, appendix"),
    "optimizer.lr_schedule": ("constant", "code"),
    "optimizer.warmup_share": (0.0, "code"),
    "optimizer.weight_decay": (0.01, "code"),
    "optimizer.max_grad_norm": (1.0, "code"),
    "optimizer.num_mini_batches": (4, "code: mini-batches of 16 tasks"),
    "optimizer.num_iterations": (1, "code"),
}
_SECOND: Mapping[str, Sourced] = {
    "steps": (300, "arXiv 2601.22154, table 4"),
    "play.num_prompts": (64, "arXiv 2601.22154, table 4; section 4 and the code's run with critiques have 32"),
    "play.num_generations": (8, "arXiv 2601.22154, table 4"),
    "play.temperature": (0.7, "arXiv 2601.22154, table 4"),
    "play.max_turn_tokens": (10_000, "code of arXiv 2601.22154: a turn may be as long as the response"),
    "optimizer.learning_rate": (5e-7, "arXiv 2601.22154, table 4; the code's run with critiques has 5e-6"),
    "optimizer.num_mini_batches": (4, "arXiv 2601.22154, table 4: mini-batches of 16 tasks"),
}
_THIRD: Mapping[str, Sourced] = {
    "steps": (450, "inferred: as in arXiv 2510.11701"),
    "play.num_prompts": (64, "inferred: as in arXiv 2510.11701"),
    "play.num_generations": (5, "a summary of v1"),
    "play.temperature": (1.0, "a summary of v1"),
    "play.max_turn_tokens": (20_480, "inferred: a turn may be as long as the response"),
    "optimizer.learning_rate": (1e-6, "a summary of v1"),
    "optimizer.num_mini_batches": (4, "inferred: as in arXiv 2510.11701"),
}
RUNS: Mapping[str, Mapping[str, Sourced]] = {
    "grpo-tcr": _FIRST,
    "grpo-t": {**_FIRST, "play.max_turn_tokens": (16_384, "paper, appendix A.1: as long as the response")},
    "grpo-scr": _FIRST,
    "demyagent": _FIRST,
    "reagent-none": _SECOND,
    "reagent-r": _SECOND,
    "reagent-u": {
        **_SECOND,
        "play.max_turn_tokens": (11_000, "code of arXiv 2601.22154: a turn may be as long as the response"),
    },
    "vspo": _THIRD,
    "prs": _THIRD,
    "vspo-prs": _THIRD,
}
"""By recipe and by the name of the setting; another recipe has the defaults of `GRPOConfig`."""

NOT_SET: Mapping[str, Mapping[str, Sourced]] = {
    **{
        name: {"turns of an episode": (16, "code; the environment's class sets it (max_turns)")}
        for name in ("grpo-tcr", "grpo-t", "grpo-scr", "demyagent")
    },
    **{
        name: {
            "turns of an episode": (13, "arXiv 2601.22154, table 4; the environment's class sets it (max_turns)"),
            "top-p": (0.95, "arXiv 2601.22154, table 4; not here, where the distribution is the one that is trained"),
        }
        for name in ("reagent-none", "reagent-r", "reagent-u")
    },
    **{
        name: {"turns and lengths": ("not found", "no source of arXiv 2512.07478 that is public gives them")}
        for name in ("vspo", "prs", "vspo-prs")
    },
}
"""What the sources give, or do not give, that no setting of a run holds."""


def run_settings(recipe_name: str) -> dict[str, Any]:
    """Return the settings of the recipe's paper by name without their section, as `changed` takes them."""
    return {key.rpartition(".")[2]: value for key, (value, _) in RUNS.get(recipe_name, {}).items()}
