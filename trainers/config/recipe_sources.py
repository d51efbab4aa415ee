"""The source of each value of a preset. `palaestra recipes NAME` prints value and source.

For arXiv 2510.11701, "paper" is its text and "code" its released training code. "inferred" means that no source gives a
value, so the authors of palaestra chose it. A value without an entry is the default of its part, which the
documentation of that part explains.
"""

from collections.abc import Mapping

from palaestra.trainers.config.recipes import Recipe, find_recipe
from palaestra.trainers.validation import flat, plain

SHORT = {
    r"(^|; |, )(paper|code)\b(?! of)": "paper, code: arXiv 2510.11701, and its authors' code.",
    r"\bv[12]\b": "v1, v2: the versions of arXiv 2512.07478, of which abstracts and one summary were at hand.",
    "inferred": "inferred: no source gives the value; it is the choice of palaestra's authors.",
}
"""What short words of a source mean, by the pattern that finds them."""
_DEMYSTIFYING = {
    "sampler.name": "code: groups are not filtered",
    "shaping.max_completion_length": "code",
    "shaping.overlong_share": "code: 4,096 of 20,480 tokens; the paper gives the form (eq. 9) and no values",
    "shaping.tool_bonus": "paper eq. 8, code",
    "shaping.bonus_on_correct": "code; the paper prints a bonus for right answers too",
    "shaping.outcome_range": "code",
    "shaping.wrong_cap": "code; the paper's bound is missing in print",
    "shaping.overlong_counts": "code: all tokens after the prompt; the paper says output length",
    "advantage.name": "paper eq. 3",
    "advantage.scale_rewards": "paper eq. 3; deviation with ddof 1 and 1e-6: code",
    "loss.name": "paper eq. 4",
    "loss.epsilon": "paper 4.1",
    "loss.epsilon_high": "paper 4.1",
    "loss.dual_clip": "code",
    "loss.importance_sampling_level": "paper eq. 4 and 6",
    "kl.beta": "code: none",
    "aggregation": "paper eq. 4; over the whole mini-batch: inferred, the code's mean is one of micro-batches",
    "entropy_coef": "code",
}
_OUTCOME = {
    "shaping.overlong_share": "inferred: the outcome alone",
    "shaping.tool_bonus": "inferred: the outcome alone",
}
_REAGENT = {
    "sampler.name": "code of arXiv 2601.22154: groups without a signal are rejected",
    "sampler.compared": "inferred: by the reward that is learned from",
    "shaping.max_completion_length": "code of arXiv 2601.22154: responses of 10,000 tokens",
    "shaping.overlong_share": "arXiv 2601.22154 has no length term",
    "shaping.tool_bonus": "arXiv 2601.22154 has none",
    "shaping.outcome_range": "arXiv 2601.22154, 2.4: the rule gives 0 to 1",
    "loss.epsilon": "code of arXiv 2601.22154",
    "loss.epsilon_high": "code of arXiv 2601.22154, its run without critiques",
    "loss.dual_clip": "inferred: none is named",
    "kl.beta": "code of arXiv 2601.22154: no KL in the loss",
    "aggregation": "code of arXiv 2601.22154: mean over tokens, then over samples",
    "entropy_coef": "code of arXiv 2601.22154",
}
_JUDGED = {
    "judge.name": "arXiv 2601.22154, eq. 6",
    "judge.score_weight": "arXiv 2601.22154, table 4",
    "judge.clamp": "code of arXiv 2601.22154",
    "judge.verdict_tokens": "code of arXiv 2601.22154: 1,200 for a score, 1,400 with a critique",
    "judge.tries": "code of arXiv 2601.22154: 5 for a score, 10 for a critique; then 0, here dropped",
    "judge.verdict_seconds": "code of arXiv 2601.22154",
    "judge.read_chars": "inferred: the paper shows the judge the whole trajectory, and names no bound",
}
_VSPO = {
    "sampler.name": "abstract of arXiv 2512.07478",
    "sampler.copy_gamma": "inferred: no constant is public",
    "sampler.max_copies": "inferred: no bound is public",
    "sampler.refill": "abstract of arXiv 2512.07478; sampling by value: inferred",
    "sampler.damping": "inferred: the paper says smoothed, and gives no formula that is public",
    "sampler.value_spread": "inferred: a summary says variance and writes a deviation",
    "sampler.low_value": "abstract of v2: zero-advantage; v1 says low-value",
    "max_advantage": "inferred",
    "loss.epsilon": "a summary of v1",
    "loss.epsilon_high": "a summary of v1",
    "kl.beta": "a summary of v1",
}
_PRS = {
    "shaping.name": "abstract of arXiv 2512.07478: calls and format first, then quality",
    "shaping.parse_weight": "inferred: no constant is public",
    "shaping.call_weight": "inferred: no constant is public",
    "shaping.format_weight": "inferred: no constant is public",
    "shaping.quality_weight": "inferred: no constant is public",
    "shaping.curriculum": "inferred; off, since a changing reward compares with nothing",
    "loss.epsilon": "a summary of v1",
    "loss.epsilon_high": "a summary of v1",
    "kl.beta": "a summary of v1",
}
SOURCES: Mapping[str, Mapping[str, str]] = {
    "grpo-tcr": _DEMYSTIFYING,
    "grpo-t": {
        **_DEMYSTIFYING,
        "shaping.max_completion_length": "paper, appendix A.1",
        "shaping.overlong_share": "paper 4.1: no length term",
        "kl.beta": "paper, appendix A.1",
    },
    "grpo-scr": {
        **_DEMYSTIFYING,
        "shaping.max_completion_length": "inferred: as grpo-tcr",
        "loss.dual_clip": "code: no bound",
        "loss.importance_sampling_level": "paper eq. 5 and 7",
        "kl.beta": "inferred: the paper calls grpo-t's KL alone strong",
        "aggregation": "paper eq. 5",
    },
    "demyagent": {**_DEMYSTIFYING, "loss.epsilon_high": "paper 4.3 and 6: what DemyAgent-4B is trained with"},
    "dapo": {
        "sampler.name": "arXiv 2503.14476: groups of accuracy 0 or 1 are dropped",
        "sampler.max_rounds": "its code: max_num_gen_batches",
        "shaping.overlong_share": "its soft punishment: 4,096 of 20,480 tokens",
        "shaping.tool_bonus": "inferred: it has no tools",
        "loss.epsilon": "arXiv 2503.14476",
        "loss.epsilon_high": "arXiv 2503.14476",
        "kl.beta": "arXiv 2503.14476: none",
        "aggregation": "arXiv 2503.14476: token level",
    },
    "dr-grpo": {
        **_OUTCOME,
        "advantage.scale_rewards": "arXiv 2503.20783: no deviation",
        "aggregation": "arXiv 2503.20783: no length in the denominator",
        "kl.beta": "arXiv 2503.20783: none",
    },
    "gspo": {
        **_OUTCOME,
        "loss.epsilon": "arXiv 2507.18071, 5.1",
        "loss.epsilon_high": "arXiv 2507.18071, 5.1",
        "loss.importance_sampling_level": "arXiv 2507.18071",
        "aggregation": "arXiv 2507.18071",
    },
    "cispo": {
        **_OUTCOME,
        "loss.epsilon": "arXiv 2506.13585: no lower bound",
        "loss.epsilon_high": "inferred: the paper tunes it and names no value",
        "aggregation": "arXiv 2506.13585",
        "kl.beta": "arXiv 2506.13585: none",
    },
    "rloo": {**_OUTCOME, "advantage.name": "arXiv 2402.14740", "aggregation": "arXiv 2402.14740: whole responses"},
    "remax": {**_OUTCOME, "advantage.name": "arXiv 2310.10505", "aggregation": "arXiv 2310.10505: whole responses"},
    "reinforce++": {
        **_OUTCOME,
        "advantage.name": "arXiv 2501.03262",
        "kl.kl_in_reward": "arXiv 2501.03262",
        "kl.kl_estimator": "arXiv 2501.03262: k1",
        "kl.beta": "inferred",
    },
    "reinforce++-baseline": {
        **_OUTCOME,
        "advantage.group_baseline": "arXiv 2501.03262",
        "kl.kl_estimator": "arXiv 2501.03262: k2",
        "kl.beta": "inferred",
    },
    "ppo": {
        **_OUTCOME,
        "advantage.name": "arXiv 1707.06347, 1506.02438",
        "advantage.lam": "arXiv 1707.06347: 0.95",
        "advantage.gamma": "inferred: the reward comes at the end",
        "critic.cliprange_value": "TRL and verl",
        "critic.name": "inferred: a head on the policy's hidden states, for one model in memory",
        "loss.epsilon": "arXiv 1707.06347",
        "loss.epsilon_high": "arXiv 1707.06347",
        "kl.kl_in_reward": "arXiv 2203.02155",
        "kl.beta": "verl",
    },
    "reagent-none": _REAGENT,
    "reagent-r": {**_REAGENT, **_JUDGED},
    "reagent-u": {
        **_REAGENT,
        **_JUDGED,
        "sampler.name": "arXiv 2601.22154, eq. 7 to 9: 2G attempts in one pool",
        "sampler.max_prefix_tokens": "code of arXiv 2601.22154: prompts of 16,384 tokens, less 2,560 for the task's",
        "sampler.max_rounds": "code of arXiv 2601.22154: groups without a signal are rejected; how often: inferred",
        "shaping.max_completion_length": "code of arXiv 2601.22154: responses of 11,000 tokens with critiques",
        "judge.tries": "code of arXiv 2601.22154: 10 for a critique; then score 0 and no critique, here dropped",
        "loss.epsilon_high": "code of arXiv 2601.22154, its run with critiques",
    },
    "tree-grpo": {
        **_OUTCOME,
        "sampler.name": "arXiv 2509.21240: trees of a task, expanded at random nodes in rounds",
        "sampler.trees": "inferred",
        "sampler.rounds": "inferred",
        "advantage.name": "arXiv 2509.21240: intra-tree and inter-tree",
        "kl.beta": "inferred",
        "loss.epsilon_high": "inferred: one bound on both sides",
    },
    "arpo": {
        **_OUTCOME,
        "sampler.name": "arXiv 2507.19849: some rollouts from the beginning, others branch where entropy changes",
        "sampler.trees": "inferred: half of the rollouts",
        "sampler.branch_at": "arXiv 2507.19849: alpha + beta * change; drawn when the first rollouts have ended: ours",
        "sampler.branch_probability": "inferred",
        "sampler.branch_slope": "inferred",
        "sampler.entropy_tokens": "inferred",
        "advantage.name": "arXiv 2507.19849: soft, the group's advantage in each rollout",
        "kl.beta": "inferred: none",
        "loss.epsilon_high": "inferred: one bound on both sides",
    },
    "vspo": {**_OUTCOME, **_VSPO},
    "prs": _PRS,
    "vspo-prs": {**_VSPO, **_PRS},
}


def sourced(name: str) -> list[tuple[str, object, str]]:
    """Return name on the command line, value and source of each value of a preset; the source of a default is ""."""
    sources = SOURCES[name]
    values = flat(plain(find_recipe(name)))
    return [(key, value, sources.get(key, "")) for key, value in values.items() if key != "recipe_name"]


def apart(recipe: Recipe, other: Recipe) -> list[str]:
    """Return each value of `recipe` that differs from `other`, as a text with its command-line name."""
    other_values, recipe_values = flat(plain(other)), flat(plain(recipe))
    differ = {
        key: value
        for key, value in recipe_values.items()
        if key != "recipe_name" and other_values.get(key, ...) != value
    }
    return [f"{key.removesuffix('.name')} {value}" for key, value in differ.items()]
