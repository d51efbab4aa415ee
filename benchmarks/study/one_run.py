"""Train and measure one run: an arm with one seed, from its start model on. Left out: tables (`report`)."""

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
from arms import BASE, Arm, Comparison, in_miniature, short_start
from critics import with_critic
from measuring import SAMPLES, Steps, measure, measure_second, measure_untrained
from parts import COMPARISONS, STARTS
from start_models import start_folder

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
class CountingClip(Clip):
    """The clipped loss. It also counts the free tokens with a positive advantage, and the clipped ones of these."""

    counts: dict[str, int] = field(default_factory=lambda: {"free": 0, "clipped": 0})

    def __call__(self, logprobs_S: Any, old_S: Any, advantages_S: Any, row_S: Any) -> PolicyLoss:
        """Return the loss of `Clip`."""
        free_S = (old_S < torch.tensor(FREE).log()) & (advantages_S > 0)
        above_S = (logprobs_S.detach() - old_S).exp() > 1 + self.epsilon_high
        self.counts["free"] += int(free_S.sum())
        self.counts["clipped"] += int((free_S & above_S).sum())
        return Clip.__call__(self, logprobs_S, old_S, advantages_S, row_S)


def settings(comparison: Comparison, arm: Arm, seed: int) -> dict[str, Any]:
    """Return the settings of a run as plain data. A result with other settings does not count as this run."""
    options = {**comparison.options, **arm.options}
    held_out = {**options, **comparison.measured_on}
    if comparison.start == "codes-pool":
        options["pool"] = seed
    changes = {**BASE, **comparison.settings, **arm.changes}
    if "shaping" in arm.changes:  # The arm has its own shaping, without a bonus and a penalty.
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
    """Train an arm and measure it during the training. Return the figures. `small` makes the run a miniature."""
    torch.set_num_threads(1)
    began = time.process_time()
    comparison = in_miniature(COMPARISONS[name]) if small else COMPARISONS[name]
    setup = settings(comparison, comparison.arms[arm_name], seed)
    start = STARTS[setup["start"]]
    folder = start_folder(setup["start"], short_start(start) if small else start, seed, root)
    started = time.process_time() - began
    config = _config(setup, seed)
    local = open_model(str(folder), config)
    spent, kept_tasks = 0.0, None
    if setup["curated"]:
        kept_tasks, tokens = curate_pool(local.agent, config)
        spent = tokens if setup["curated"] == "counted" else 0.0
        if not kept_tasks and not small:
            raise SystemExit(f"{name}, {arm_name}, seed {seed}: curation leaves no task of the pool")
        kept_tasks = kept_tasks or [0, 1]
        env = replace(config.env, env_options=(*config.env.env_options, f"kept={'+'.join(map(str, kept_tasks))}"))
        config = replace(config, env=env)
    loss = CountingClip(**{key: getattr(config.recipe.loss, key) for key in Clip.__dataclass_fields__})
    config = replace(config, recipe=replace(config.recipe, loss=loss))
    controls = {}
    if comparison.untrained:
        controls["untrained"] = measure_untrained(local, seed, setup["env_id"], setup["measured_on"], limits(config))
    steps, curve, note = _trained(config, local, setup, spent)
    for title, options in comparison.controls.items():
        controls[title] = measure(local.agent, setup["env_id"], options, limits(config))
    if comparison.critiqued:
        controls["second"] = measure_second(
            local.agent, setup["env_id"], setup["measured_on"], limits(config), setup["tasks"]
        )
    taken = time.process_time() - began
    return {
        "arm": arm_name,
        "seed": seed,
        "curve": curve,
        "figures": steps.summary() | {"free_clipped": loss.counts["clipped"] / max(1, loss.counts["free"])},
        "controls": controls,
        **({"kept": len(kept_tasks), "curation_tokens": tokens} if kept_tasks is not None else {}),
        **({"note": note} if note else {}),
        "cpu_seconds": round(taken - started, 1),
    }


def _config(setup: Mapping[str, Any], seed: int) -> GRPOConfig:
    config = tiny_config(setup["env_id"], "grpo-tcr", **{**setup["changes"], "seed": seed})
    if setup.get("critic"):
        config = replace(config, recipe=with_critic(config.recipe, **setup["critic"]))
    # Booleans as a command line has them: false, not False.
    texts = {key: str(one).lower() if isinstance(one, bool) else one for key, one in setup["options"].items()}
    options = tuple(f"{key}={value}" for key, value in texts.items())
    return replace(config, model="from a folder", env=replace(config.env, env_options=options))


def curate_pool(agent: Any, config: GRPOConfig) -> tuple[list[int], int]:
    """Return the tasks of the pool that the agent solves in some of 8 attempts but not in all, and the tokens used."""
    before = agent.engine.sampled
    with closing(open_arena(config)) as arena:
        _, episodes = evaluate(agent, arena, tasks=arena.task_count, samples=8, limits=limits(config))
    return [one.task for one in curate(episodes, samples=8).tasks], agent.engine.sampled - before


def _trained(config: GRPOConfig, local: Any, setup: Mapping[str, Any], spent: float) -> tuple[Steps, list[Any], str]:
    """Train. Return the steps, the measurements at equal distances of generated tokens, and a note on an early end."""
    samples = setup.get("samples", SAMPLES)

    def measured(tokens: float) -> dict[str, float]:
        figures = measure(local.agent, setup["env_id"], setup["measured_on"], limits(config), setup["tasks"], samples)
        return {"tokens": tokens, **{name: round(value, 4) for name, value in figures.items()}}

    steps, note, place = Steps(LONG if setup["start"] == "codes-long" else None), "", setup["tokens"] / setup["points"]
    curve = [measured(0.0)]
    # Curation uses tokens and trains nothing, so the points that it passes have the success of the start.
    while spent >= place * len(curve) and len(curve) <= setup["points"]:
        curve.append({**curve[0], "tokens": place * len(curve)})
    if setup.get("frozen"):
        return steps, curve + [{**curve[0], "tokens": place * at} for at in range(1, setup["points"] + 1)], note
    learner = Learner(local.agent, local.model, config)
    with closing(open_arena(config)) as arena, closing(train_learner(learner, arena)) as stage:
        while len(curve) <= setup["points"]:
            try:
                progress = next(stage, None)
            except TrainingHalted as error:
                note = str(error)
                learner.publish()  # The update released the engine; this makes it sample again.
                break
            if progress is None:
                note = f"its {learner.steps} steps were over before its tokens"
                break
            steps.add(progress, getattr(config.recipe.shaping, "length", len))
            while len(curve) <= setup["points"] and spent + steps.tokens >= place * len(curve):
                curve.append(measured(spent + steps.tokens))
    while len(curve) <= setup["points"]:
        curve.append(measured(spent + steps.tokens))
    return steps, curve, note
