"""The second round: what the first one left open, with settings, endpoints and analysis fixed before any run.

Every arm runs at two learning rates, and is judged at its own better one: for each seed, the rate with the higher mean
AUC of the arm in all other seeds, so that no seed chooses for itself. Each contrast of `SECOND_CLAIMS` is a difference
paired by seed. Its p-value is that of a sign-flip test, corrected by Holm's method over the contrasts of this round. A
contrast stays open until all its seeds are there. Seeds are 20 and up: none of the first round, nor of a pilot.

A pilot (seed 300) looked at run time, floor and ceiling alone; of `starved` it ruled out trails of two look-ups, which
the binary reward solved at once, and a rate of 1e-3, at which calls died out. `thinking` was added when `graded` and
half of `starved` had run, before any run of its own; a pilot showed that the imitation of real calls was too short to
learn the second one. Left out: second attempts of a pretrained model, and sequences of hundreds of tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import arms
from arms import BASE, OFTEN, Arm, Comparison, value_refill
from start_models import Phase, StartModel

FIRST_SEED = 20
FIFTEEN, TWENTY, THIRTY = 15, 20, 30
_NEVER = "0+1"
_GRADES = (0.1, 0.15, 0.7, 0.98)
"""Success of the start model on quarters of the attributes; the first quarter has no right word, so it is 0 there."""

_TABLE = {"unknown": 0.3}
_REAL_CALLS = Phase(
    "study/Chain-v0",
    {},
    {**_TABLE, "thinks": False},
    tool_rate=0.4,
    episodes=2000,
    steps=200,
    decay=45,
    rates=(2e-3, 0.01),
)


def _few_calls(thinks: bool) -> Phase:
    """Return demonstrations that call the tool in one episode of ten, half of the time in vain."""
    return Phase("study/Chain-v0", {}, {**_TABLE, "malformed": 0.5, "thinks": thinks}, tool_rate=0.1)


STARTS = {
    "chain-thinking": StartModel((_few_calls(thinks=True),)),
    "chain-thinking-real": StartModel((_few_calls(thinks=True), _REAL_CALLS)),
    "chain-instruct-real": StartModel((_few_calls(thinks=False), _REAL_CALLS)),
    "codes-graded": StartModel((Phase("study/Codes-v0", {"dead": _NEVER}, {"levels": _GRADES}, episodes=4000),)),
}


def at_rates(named: Mapping[str, Arm], *rates: float) -> dict[str, Arm]:
    """Return each arm at each rate."""
    return {
        f"{name}, lr {rate:.0e}": replace(arm, changes={**arm.changes, "learning_rate": rate})
        for name, arm in named.items()
        for rate in rates
    }


def _staged(**options: Any) -> Arm:
    return Arm({"shaping": {"name": "progressive", "calls_required": True, **options}})


COMPARISONS = {
    "graded": Comparison(
        "Refill where tasks differ in value",
        "Refilling by value teaches more than at random, and damping helps.",
        "codes-graded",
        "study/Codes-v0",
        at_rates(
            {
                "none": Arm(),
                "random": value_refill(refill="random", damping="none"),
                "value": value_refill(damping="none"),
                "value and damping": value_refill(),
            },
            1e-3,
            2e-3,
        ),
        "none, lr 1e-03",
        36_000,
        {},
        {"dead": _NEVER},
        {"asked": "2+3+4+5"},
        points=4,
        seeds=FIFTEEN,
        first_seed=FIRST_SEED,
    ),
    "starved": Comparison(
        "PRS and a binary reward, from starts that serve hardly a call",
        "More seeds leave zero with stages, and sooner; moving weights help further.",
        "trail-starved",
        "study/Trail-v0",
        at_rates({"binary": _staged(binary=True), "prs": _staged(), "moving": _staged(curriculum=True)}, 3e-4, 5e-4),
        "binary, lr 3e-04",
        50_000,
        {"num_prompts": 16},
        {"kinds": "teacher"},
        tasks=32,
        points=8,
        seeds=FIFTEEN,
        first_seed=FIRST_SEED,
    ),
    "worlds": replace(
        arms.COMPARISONS["diverse"],
        title="Two worlds and one, carried over to a third",
        arms=at_rates(arms.COMPARISONS["diverse"].arms, 2e-4, 4e-4),
        against="single, lr 2e-04",
        seeds=TWENTY,
        first_seed=FIRST_SEED,
    ),
    "curation": Comparison(
        "Curated and unfiltered, for longer",
        "Dropping tasks that the start model always or never solves pays for its eight attempts a task.",
        "codes-pool",
        "study/Codes-v0",
        at_rates({"unfiltered": Arm(), "curated": Arm(curated="counted")}, 1e-3, 2e-3),
        "unfiltered, lr 1e-03",
        90_000,
        {},
        arms.POOL,
        {"count": 9, "asked": "6+7+8"},
        seeds=FIFTEEN,
        first_seed=FIRST_SEED,
    ),
    "scaled": Comparison(
        "Token and sequence ratios, bounds scaled to the length",
        "With bounds as wide for 30 tokens as the printed ones are for a thousand, SCR learns as TCR does.",
        "codes",
        "study/Codes-v0",
        at_rates({"TCR": Arm(), "SCR, scaled": arms.sequence_ratio(1e-2, 1.33e-2)}, 5e-4, 1e-3),
        "TCR, lr 5e-04",
        32_000,
        OFTEN,
        points=4,
        seeds=FIFTEEN,
        first_seed=FIRST_SEED,
    ),
    "process": Comparison(
        "A judge whose score varies with the calls (Reagent-R)",
        "A score for calls that were served and answers that were found teaches more than the outcome alone.",
        "codes-malformed",
        "study/Codes-v0",
        at_rates({"none": Arm(), "R": Arm(critic={"tells": True, "second": False})}, 7e-4, 1.4e-3),
        "none, lr 7e-04",
        40_000,
        {"num_prompts": 16, "max_episode_tokens": 512},
        points=4,
        seeds=FIFTEEN,
        first_seed=FIRST_SEED,
    ),
    "pass-at-8": Comparison(
        "pass@8 and avg@8 with T and TCR",
        "TCR raises both; T gives up pass@8.",
        "codes",
        "study/Codes-v0",
        at_rates({"T": Arm({"epsilon_high": 0.2, "beta": 0.001}), "TCR": Arm()}, 5e-4, 1e-3),
        "T, lr 5e-04",
        32_000,
        OFTEN,
        tasks=64,
        samples=8,
        points=4,
        seeds=FIFTEEN,
        first_seed=FIRST_SEED,
    ),
    "bounds": Comparison(
        "epsilon_high, with thirty seeds",
        "A higher upper bound of the ratio learns sooner, up to .315.",
        "codes",
        "study/Codes-v0",
        at_rates(
            {bound: Arm({"epsilon_high": float(bound)}) for bound in ("0.20", "0.28", "0.315", "0.35")}, 5e-4, 1e-3
        ),
        "0.28, lr 5e-04",
        32_000,
        OFTEN,
        points=4,
        seeds=THIRTY,
        first_seed=FIRST_SEED,
    ),
    "thinking": Comparison(
        "Starts that think without calls",
        "Their calls vanish under GRPO; imitating real calls repairs this, and ends as an instruct start does.",
        "chain-thinking",
        "study/Chain-v0",
        at_rates(
            {
                "thinking": Arm(),
                "thinking, real": Arm(start="chain-thinking-real"),
                "instruct, real": Arm(start="chain-instruct-real"),
            },
            5e-4,
            1e-3,
        ),
        "thinking, lr 5e-04",
        40_000,
        {},
        points=4,
        seeds=FIFTEEN,
        first_seed=FIRST_SEED,
    ),
}
"""In the order in which they run. Settings that are not named are those of `arms.BASE`."""
assert not {"shaping"} & set(BASE)
