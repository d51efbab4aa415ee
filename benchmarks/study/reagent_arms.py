"""The comparisons of PART=reagent: a judge that is taught, and second attempts that have read a critique.

As in `arms`, the arms of a comparison differ in one thing and have the same number of generated tokens;
docs/study_tables.md says the settings in words.
"""

from arms import Arm, Comparison
from start_models import CritiquedPhase, Phase, StartModel

STARTS = {
    "judge": StartModel((Phase("palaestra/Judge-v0", {"rubric": False}, tool_rate=0.3),)),
    "codes-critiqued": StartModel((CritiquedPhase("study/Codes-v0", {}, {"levels": (0.08,)}),)),
}
_TELLS = {"tells": True}
_LONGER = {"max_episode_tokens": 512}

COMPARISONS = {
    "judge": Comparison(
        "A judge is taught",
        "Imitation, then GRPO: a judge's format rate rises above .95, and |score - label| falls by half.",
        "judge",
        "palaestra/Judge-v0",
        {"grpo": Arm()},
        "grpo",
        80_000,
        {
            **_LONGER,
            "max_turn_tokens": 96,
            "num_prompts": 8,
            "learning_rate": 7e-4,
            "lr_schedule": "linear",
            "steps": 25,
            "max_grad_norm": 0.1,
        },
        {"rubric": False},
        tasks=192,
        untrained=True,
    ),
    "reagent": Comparison(
        "Reagent-U, -R, -C and none",
        "Learning from second attempts that have read a critique, too, makes first attempts better.",
        "codes-critiqued",
        "study/Codes-v0",
        {
            "none": Arm(),
            "R": Arm(critic={**_TELLS, "second": False}),
            "U": Arm({"num_generations": 4}, critic={**_TELLS, "second": True}),
            "U, told the outcome alone": Arm({"num_generations": 4}, critic={"tells": False, "second": True}),
            "C": Arm(frozen=True),
        },
        "none",
        40_000,
        _LONGER,
        critiqued=True,
        points=4,
    ),
}
"""Reagent-C trains nothing: its figure is that of second attempts."""
