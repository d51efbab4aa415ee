"""A run: an arm with one seed, from its start model to its last token. Left out: tables (`report`)."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import chain  # noqa: F401  All three register their environments.
import codes  # noqa: F401
import torch
import trail  # noqa: F401
from arms import BASE, Arm, Comparison, hardly_raised, in_miniature
from critics import judged
from measuring import SAMPLES, Steps, measure, measure_second, measure_untrained
from parts import COMPARISONS, STARTS
from start_models import opened

from palaestra.errors import TrainingHalted
from palaestra.trainers import GRPOConfig, tiny_config
from palaestra.trainers.data.curation import curate
from palaestra.trainers.evaluation.evaluate import evaluate
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.losses.policy import Clip, PolicyLoss
from palaestra.trainers.setup.open_run import limits, open_arena, open_model

LONG = 37
"""Number of tokens from which the overlong penalty of its comparison counts."""
FREE = 0.9
"""Probability when it was sampled below which a token counts as free."""


@dataclass(frozen=True)
class Watched(Clip):
    """The clip, which also counts free tokens: those with a positive advantage, and the clipped ones of them."""

    counts: dict[str, int] = field(default_factory=lambda: {"free": 0, "clipped": 0})

    def __call__(self, logprobs_S: Any, old_S: Any, advantages_S: Any, row_S: Any) -> PolicyLoss:
        """Return the loss of `Clip`."""
        free_S = (old_S < torch.tensor(FREE).log()) & (advantages_S > 0)
        above_S = (logprobs_S.detach() - old_S).exp() > 1 + self.epsilon_high
        self.counts["free"] += int(free_S.sum())
        self.counts["clipped"] += int((free_S & above_S).sum())
        return Clip.__call__(self, logprobs_S, old_S, advantages_S, row_S)


def settings(comparison: Comparison, arm: Arm, seed: int) -> dict[str, Any]:
    """Return the settings of a run as plain data: a result with other settings belongs to another run."""
    options = {**comparison.options, **arm.options}
    held_out = {**options, **comparison.measured_on}
    if comparison.start == "codes-pool":
        options["pool"] = seed
    changes = {**BASE, **comparison.settings, **arm.changes}
    if "shaping" in arm.changes:  # One of its own, which has no bonus and no penalty.
        changes = {key: one for key, one in changes.items() if key not in ("tool_bonus", "overlong_share")}
    return {
        "start": arm.start or comparison.start,
        "env_id": arm.env_id or comparison.env_id,
        "options": options,
        "measured_on": held_out,
        "tokens": comparison.tokens,
        "points": comparison.points,
        "tasks": comparison.tasks,
        "curated": arm.curated,
        "changes": changes,
        **({"samples": comparison.samples} if comparison.samples != SAMPLES else {}),
        **({"critic": arm.critic} if arm.critic else {}),
        **({"frozen": True} if arm.frozen else {}),
    }


def run(name: str, arm_name: str, seed: int, root: Path, small: bool = False) -> dict[str, Any]:
    """Train an arm, measure it on its way, and return the figures; in miniature, if `small`."""
    torch.set_num_threads(1)
    began = time.process_time()
    comparison = in_miniature(COMPARISONS[name]) if small else COMPARISONS[name]
    asked = settings(comparison, comparison.arms[arm_name], seed)
    start = STARTS[asked["start"]]
    folder = opened(asked["start"], hardly_raised(start) if small else start, seed, root)
    started = time.process_time() - began
    config = _config(asked, seed)
    local = open_model(str(folder), config)
    spent, kept = 0.0, None
    if asked["curated"]:
        kept, tokens = curated(local.agent, config)
        spent = tokens if asked["curated"] == "counted" else 0.0
        if not kept and not small:
            raise SystemExit(f"{name}, {arm_name}, seed {seed}: curation leaves no task of the pool")
        kept = kept or [0, 1]
        env = replace(config.env, env_options=(*config.env.env_options, f"kept={'+'.join(map(str, kept))}"))
        config = replace(config, env=env)
    watched = Watched(**{key: getattr(config.recipe.loss, key) for key in Clip.__dataclass_fields__})
    config = replace(config, recipe=replace(config.recipe, loss=watched))
    ended = {}
    if comparison.untrained:
        ended["untrained"] = measure_untrained(local, seed, asked["env_id"], asked["measured_on"], limits(config))
    steps, curve, note = _trained(config, local, asked, spent)
    for title, options in comparison.controls.items():
        ended[title] = measure(local.agent, asked["env_id"], options, limits(config))
    if comparison.critiqued:
        ended["second"] = measure_second(
            local.agent, asked["env_id"], asked["measured_on"], limits(config), asked["tasks"]
        )
    taken = time.process_time() - began
    return {
        "arm": arm_name,
        "seed": seed,
        "curve": curve,
        "figures": steps.summary() | {"free_clipped": watched.counts["clipped"] / max(1, watched.counts["free"])},
        "controls": ended,
        **({"kept": len(kept), "curation_tokens": tokens} if kept is not None else {}),
        **({"note": note} if note else {}),
        "cpu_seconds": round(taken - started, 1),
    }


def _config(asked: Mapping[str, Any], seed: int) -> GRPOConfig:
    config = tiny_config(asked["env_id"], "grpo-tcr", **{**asked["changes"], "seed": seed})
    if asked.get("critic"):
        config = replace(config, recipe=judged(config.recipe, **asked["critic"]))
    # As a command line says them: false, not False.
    said = {key: str(one).lower() if isinstance(one, bool) else one for key, one in asked["options"].items()}
    options = tuple(f"{key}={value}" for key, value in said.items())
    return replace(config, model="from a folder", env=replace(config.env, env_options=options))


def curated(agent: Any, config: GRPOConfig) -> tuple[list[int], int]:
    """Return the tasks of the pool that the agent solves in some of 8 attempts but not in all, and the tokens used."""
    before = agent.engine.sampled
    with closing(open_arena(config)) as arena:
        _, episodes = evaluate(agent, arena, tasks=arena.task_count, samples=8, limits=limits(config))
    return [one.task for one in curate(episodes, samples=8).tasks], agent.engine.sampled - before


def _trained(config: GRPOConfig, local: Any, asked: Mapping[str, Any], spent: float) -> tuple[Steps, list[Any], str]:
    """Train; return the steps, the measurements at equal distances of generated tokens, and a note on an early end."""

    samples = asked.get("samples", SAMPLES)

    def measured(tokens: float) -> dict[str, float]:
        found = measure(local.agent, asked["env_id"], asked["measured_on"], limits(config), asked["tasks"], samples)
        return {"tokens": tokens, **{name: round(value, 4) for name, value in found.items()}}

    steps, note, place = Steps(LONG if asked["start"] == "codes-long" else None), "", asked["tokens"] / asked["points"]
    curve = [measured(0.0)]
    # Nothing has been learned while the pool was curated.
    while spent >= place * len(curve) and len(curve) <= asked["points"]:
        curve.append({**curve[0], "tokens": place * len(curve)})
    if asked.get("frozen"):
        return steps, curve + [{**curve[0], "tokens": place * at} for at in range(1, asked["points"] + 1)], note
    learner = Learner(local.agent, local.model, config)
    with closing(open_arena(config)) as arena, closing(train_learner(learner, arena)) as stage:
        while len(curve) <= asked["points"]:
            try:
                progress = next(stage, None)
            except TrainingHalted as error:
                note = str(error)
                learner.publish()  # The engine, which was at rest for the update, plays again.
                break
            if progress is None:
                note = f"its {learner.steps} steps were over before its tokens"
                break
            steps.add(progress, getattr(config.recipe.shaping, "length", len))
            while len(curve) <= asked["points"] and spent + steps.tokens >= place * len(curve):
                curve.append(measured(spent + steps.tokens))
    while len(curve) <= asked["points"]:
        curve.append(measured(spent + steps.tokens))
    return steps, curve, note
