"""The comparisons of the study: each has a claim, a setting in which its mechanism matters, and arms that differ in it.

The settings come from a pilot with other seeds; docs/study_tables.md describes them. All arms of a comparison have the
same tasks, evaluation and number of generated tokens. For each seed they also have the same start model, unless the
arms differ in the start model itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from start_models import PatientStart, Phase, StartModel

FIVE, TEN = 5, 10
POOL = {"count": 9, "dead": "0+1+2"}
LEVELS = (0.1, 0.97, 0.1)
HABIT = {"episodes": 2000, "steps": 90, "decay": 45, "rates": (2e-3, 0.01)}
HABITUAL = 0.93
"""Share of calls that a bad habit malforms."""


def _codes(level: float, **habits: Any) -> Phase:
    return Phase("study/Codes-v0", {}, {"levels": (level,), **habits})


def _trail(kinds: str, **settings: Any) -> Phase:
    fail, habits = settings.pop("fail", 0.0), settings.pop("habits", {})
    return Phase("study/Trail-v0", {"kinds": kinds, "fail": fail}, habits, **settings)


_SEVERAL = "city+goods+land"
STARTS = {
    "codes": StartModel((_codes(0.08),)),
    "codes-pool": StartModel((Phase("study/Codes-v0", POOL, {"levels": LEVELS, "count": 9}),)),
    "codes-malformed": StartModel(
        (_codes(0.08), Phase("study/Codes-v0", {}, {"levels": (0.08,), "malformed": HABITUAL}, **HABIT)), (0.02, 0.10)
    ),
    "codes-long": StartModel(
        (_codes(0.3), Phase("study/Codes-v0", {}, {"levels": (0.3,), "filler": 20}, **HABIT)),
    ),
    "trail-malformed": StartModel(
        (_trail("teacher"), _trail("teacher", habits={"malformed": HABITUAL}, **HABIT)), (0.02, 0.10)
    ),
    "trail-starved": PatientStart(
        (_trail("teacher"), _trail("teacher", habits={"malformed": 0.95}, **HABIT)), (0.02, 0.10)
    ),
    "trail-real": StartModel((_trail("city", fail=0.3, tool_rate=0.4),)),
    # The reply of a busy tool is in the tokenizer of all three, but in the demonstrations of one only.
    "trail-stitched": StartModel((_trail("city", fail=0.3, episodes=100, steps=0), _trail("city", tool_rate=0.4))),
    "trail-none": StartModel(
        (_trail("city", fail=0.3, episodes=100, steps=0), _trail("city", tool_rate=0.0, steps=60, decay=20))
    ),
    "trail-several": StartModel(
        (
            _trail(_SEVERAL, steps=330),
            _trail(_SEVERAL, tool_rate=0.08, episodes=2000, steps=70, decay=35, rates=(2e-3, 0.01)),
        )
    ),
}


@dataclass(frozen=True)
class Arm:
    """An arm of a comparison: what differs from the other arms."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run, by name."""
    start: str | None = None
    env_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    curated: str = ""
    """Curation of the pool before the training: `counted` counts its tokens as training tokens, `free` does not; "" is
    no curation.
    """
    seeds: int | None = None
    """Number of seeds; None: that of the comparison."""
    frozen: bool = False
    """Whether the start model is measured without training."""
    critic: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `critics.with_critic`; empty for no judge."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of arms that tests a claim."""

    title: str
    claim: str
    start: str
    env_id: str
    arms: Mapping[str, Arm]
    against: str
    """The arm that the others are compared with."""
    tokens: int
    """Number of tokens that each run generates in training."""
    settings: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    measured_on: Mapping[str, Any] = field(default_factory=dict)
    """Options of the held-out environment that differ from those of training."""
    tasks: int = 96
    controls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of further environments for a measurement at the end, by title."""
    points: int = 5
    samples: int = 2
    """Number of attempts at each held-out task. With more than two, pass@samples is measured too."""
    seeds: int = FIVE
    first_seed: int = 0
    """First seed; the others follow it."""
    untrained: bool = False
    """Whether a model with random weights is measured too."""
    critiqued: bool = False
    """Whether second attempts are measured at the end, after critiques that name words."""

    def seeds_of(self, arm: str) -> int:
        """Return the number of runs of an arm."""
        return self.arms[arm].seeds or self.seeds


def in_miniature(comparison: Comparison) -> Comparison:
    """Return the comparison with one step of two tasks and one measurement, to test that it runs."""
    settings = {**comparison.settings, "num_prompts": 2, "num_mini_batches": 2}
    return replace(comparison, tokens=1, points=1, tasks=4, settings=settings)


def short_start(start: StartModel) -> StartModel:
    """Return a start model for runs in miniature. It imitates a few episodes for two steps."""
    return StartModel([replace(phase, episodes=64, steps=min(2, phase.steps)) for phase in start.phases])


BASE = {
    "learning_rate": 1e-3,
    "lr_schedule": "constant",
    "adam_beta2": 0.99,
    "num_generations": 8,
    "num_prompts": 12,
    "num_mini_batches": 4,
    "tool_bonus": 0.0,
    "overlong_share": None,
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "dual_clip": None,
    "steps": 100_000,
    "eval_tasks": 0,
    "device": "cpu",
    "precision": "float32",
    "fit": False,
}
"""Settings of every run, unless its comparison or arm changes them: token mean, no KL, no bonus for calls."""
OFTEN = {"learning_rate": 5e-4, "num_prompts": 16, "num_iterations": 4}
"""Settings with 16 optimizer steps a batch, so that ratios leave 1."""


def sequence_ratio(low: float, high: float) -> Arm:
    """Return an arm with SCR's loss and these bounds."""
    bounds = {"epsilon": low, "epsilon_high": high, "importance_sampling_level": "sequence"}
    return Arm({**bounds, "aggregation": "sample"})


def value_refill(**options: Any) -> Arm:
    """Return an arm with VSPO's sampler; a learning rate and seeds may be among the options."""
    rates = {name: options.pop(name) for name in ("learning_rate",) if name in options}
    seeds = options.pop("seeds", None)
    return Arm({"sampler": {"name": "value", **options}, **rates}, seeds=seeds)


_STAGED = Comparison(
    "PRS and a binary reward, where calls cannot be read",
    "Paying for stages helps where the outcome is hardly ever reached.",
    "trail-malformed",
    "study/Trail-v0",
    {"binary": Arm(), "prs": Arm(env_id="study/StagedTrail-v0")},
    "binary",
    50_000,
    {"learning_rate": 5e-4, "num_prompts": 16},
    {"kinds": "teacher"},
)
COMPARISONS = {
    "vspo": Comparison(
        "VSPO, DAPO, GRPO",
        "VSPO learns sooner than GRPO and DAPO from a pool of which most groups are dead.",
        "codes-pool",
        "study/Codes-v0",
        {
            "grpo": Arm(seeds=TEN),
            "left out": value_refill(refill="left-out"),
            "random refill": value_refill(refill="random", seeds=TEN),
            "vspo": value_refill(seeds=TEN),
            "posterior": Arm({"sampler": "posterior"}),
            "dapo": Arm({"sampler": "dynamic"}),
            "dapo, 12 steps": Arm({"sampler": "dynamic", "num_mini_batches": 12}),
            "grpo, lr 5e-4": Arm({"learning_rate": 5e-4}),
            "vspo, lr 5e-4": value_refill(learning_rate=5e-4),
            "grpo, lr 2e-3": Arm({"learning_rate": 2e-3}),
            "vspo, lr 2e-3": value_refill(learning_rate=2e-3),
        },
        "grpo",
        60_000,
        {},
        POOL,
        {"count": 9, "asked": "6+7+8"},
    ),
    "origin": Comparison(
        "Real, stitched, no SFT",
        "Imitating real episodes gives a better start for RL than stitched ones, and than none.",
        "trail-real",
        "study/Trail-v0",
        {"real": Arm(), "stitched": Arm(start="trail-stitched"), "no SFT": Arm(start="trail-none")},
        "stitched",
        40_000,
        {"learning_rate": 7e-4},
        {"kinds": "city", "fail": 0.3},
        controls={"a tool that never fails": {"kinds": "city", "fail": 0.0}},
        points=4,
    ),
    "prs-format": _STAGED,
    "prs-starved": replace(
        _STAGED,
        title="PRS and a binary reward, from starts that are hardly ever paid",
        claim="The same, where the bounds on served calls are kept.",
        start="trail-starved",
    ),
    "prs-choice": Comparison(
        "PRS and a binary reward, where the right choice is unknown",
        "The same rewards where stages cannot tell right from wrong.",
        "codes-malformed",
        "study/Codes-v0",
        {"binary": Arm(), "prs": Arm(env_id="study/StagedCodes-v0")},
        "binary",
        60_000,
        {"learning_rate": 7e-4, "num_prompts": 16},
    ),
    "curated": Comparison(
        "Curated and unfiltered",
        "Dropping tasks that the start model always or never solves makes RL quicker.",
        "codes-pool",
        "study/Codes-v0",
        {
            "unfiltered": Arm(),
            "curated": Arm(curated="counted"),
            "curated, its tokens not counted": Arm(curated="free"),
        },
        "unfiltered",
        60_000,
        {},
        POOL,
        {"count": 9, "asked": "6+7+8"},
    ),
    "sequence": Comparison(
        "TCR, SCR, T",
        "Token ratios with asymmetric clipping (TCR) learn more than T; sequence ratios (SCR) less on small models.",
        "codes",
        "study/Codes-v0",
        {
            "T": Arm({"epsilon_high": 0.2, "beta": 0.001}),
            "TCR": Arm(),
            "SCR as printed": sequence_ratio(3e-4, 4e-4),
            "SCR, bounds x 10": sequence_ratio(3e-3, 4e-3),
            "SCR, bounds x 33": sequence_ratio(1e-2, 1.33e-2),
            "SCR, bounds x 100": sequence_ratio(3e-2, 4e-2),
        },
        "TCR",
        40_000,
        OFTEN,
        points=4,
    ),
    "epsilon-high": Comparison(
        "epsilon_high",
        "A higher upper bound of the ratio (0.315) learns sooner than 0.28, and 0.35 is too high.",
        "codes",
        "study/Codes-v0",
        {
            "0.20": Arm({"epsilon_high": 0.2}),
            "0.28": Arm(),
            "0.315": Arm({"epsilon_high": 0.315}),
            "0.35": Arm({"epsilon_high": 0.35}),
            "none": Arm({"epsilon_high": 10.0}),
        },
        "0.28",
        40_000,
        OFTEN,
        points=4,
        seeds=TEN,
    ),
    "overlong": Comparison(
        "The overlong penalty",
        "A penalty near the longest response shortens responses before they are cut.",
        "codes-long",
        "study/Codes-v0",
        {"without": Arm(), "penalty": Arm({"overlong_share": 24 / 61})},
        "without",
        50_000,
        {"max_completion_length": 61, "max_turn_tokens": 36},
    ),
    "kl": Comparison(
        "The KL penalty, with hot steps",
        "A KL penalty holds a policy back.",
        "codes",
        "study/Codes-v0",
        {"none": Arm(), "0.02": Arm({"beta": 0.02}), "0.2": Arm({"beta": 0.2})},
        "none",
        30_000,
        {**OFTEN, "learning_rate": 2e-3},
        points=4,
        seeds=TEN,
    ),
    "damping": Comparison(
        "Refill with and without damping, with hot steps",
        "Damping the copies of a group keeps entropy and steps in bounds.",
        "codes-pool",
        "study/Codes-v0",
        {"damped": value_refill(), "undamped": value_refill(damping="none"), "grpo": Arm()},
        "undamped",
        40_000,
        {"learning_rate": 2e-3, "num_mini_batches": 12},
        POOL,
        {"count": 9, "asked": "6+7+8"},
        points=4,
        seeds=TEN,
    ),
    "diverse": Comparison(
        "Diverse and single source",
        "RL on two kinds of questions carries over to a third one more than RL on one kind.",
        "trail-several",
        "study/Trail-v0",
        {"single": Arm(options={"kinds": "city"}), "diverse": Arm(options={"kinds": "city+goods"})},
        "single",
        16_000,
        {"learning_rate": 2e-4},
        {},
        {"kinds": "land"},
        tasks=200,
        controls={"the first kind": {"kinds": "city"}},
        points=4,
        seeds=TEN,
    ),
}
