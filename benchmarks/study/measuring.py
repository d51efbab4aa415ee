"""Measurements of an agent on held-out tasks, and of a run's steps. Left out: settings of the arms (`arms`)."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from critics import Critic

import palaestra
from palaestra.agents import Agent, TokenLimits
from palaestra.agents.local_model import LocalModel, serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.episode import Episode, Status
from palaestra.trainers.evaluation.evaluate import evaluate
from palaestra.trainers.evaluation.second_attempts import attempts, critics
from palaestra.trainers.run.progress import Progress

TASKS, SAMPLES = 96, 2


def measure(
    agent: Agent,
    env_id: str,
    options: Mapping[str, Any],
    limits: TokenLimits,
    tasks: int = TASKS,
    samples: int = SAMPLES,
) -> dict[str, float]:
    """Return the figures of an agent on held-out tasks. The tasks are the same for every arm."""
    arena = palaestra.arena(env_id, 96, split="eval", ordered=True, **options)
    report, episodes = evaluate(agent, arena, tasks=tasks, samples=samples, limits=limits)
    arena.close()
    firsts = [episode.attempt.calls[0].status is Status.OK for episode in episodes if episode.attempt.calls]
    again, busy = repeated(episodes)
    parts = {name for episode in episodes for name in episode.parts}
    return {
        **({f"pass@{samples}": report.at_k[f"pass@{samples}"]["value"]} if samples > SAMPLES else {}),
        **{name: float(np.mean([episode.parts[name] for episode in episodes])) for name in sorted(parts)},
        "success": report.success,
        "calls": report.calls,
        "served": sum(firsts) / len(episodes),
        "length": report.tokens or 0.0,
        **({"recovered": again / busy} if busy else {}),
    }


def measure_untrained(
    local: LocalModel, seed: int, env_id: str, options: Mapping[str, Any], limits: TokenLimits
) -> dict[str, float]:
    """Return the same figures for a model of the same shape with random weights."""
    fresh = serve(tiny_model(len(local.tokenizer), seed=seed), local.tokenizer, slots=TASKS, seed=seed)
    return measure(fresh.agent, env_id, options, limits)


def measure_second(
    agent: Agent, env_id: str, options: Mapping[str, Any], limits: TokenLimits, tasks: int
) -> dict[str, float]:
    """Return the success of second attempts, after critiques that name words, and of the first ones."""
    arena = palaestra.arena(env_id, 96, split="eval", ordered=True, **options)
    with closing(arena), closing(Critic().opened()) as judge, closing(critics(judge, ordered=True)) as scoring:
        found = attempts(agent, arena, scoring, tasks=tasks, samples=SAMPLES, limits=limits)
    return {"success": found.second.success, "first": found.first.success}


def repeated(episodes: Sequence[Episode]) -> tuple[int, int]:
    """Return the number of calls of a busy tool that were repeated in the next call, and the number of such calls."""
    again = busy = 0
    for episode in episodes:
        calls = episode.attempt.calls
        for one, after in zip(calls, (*calls[1:], None), strict=False):
            if one.status is Status.TOOL_ERROR and "busy" in one.text:
                busy += 1
                again += after is not None and (after.name, after.arguments) == (one.name, one.arguments)
    return again, busy


PER_STEP = {
    "frac_reward_zero_std": "dead",
    "sampler/dead_share": "dead_played",
    "sampler/copies": "copies",
    "sampler/largest_share": "largest_share",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clipped",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "cut",
    "sampler/success_refined": "success_refined",
}


class Steps:
    """Figures of the steps of a run, and their means."""

    def __init__(self, zone: int | None = None) -> None:
        """Begin without steps. `zone` is the length above which a response is penalised; None for no penalty."""
        self.zone = zone
        self.tokens = self.optimizer_steps = self.useful = 0.0
        self.figures: list[dict[str, float]] = []

    def add(self, progress: Progress, length_of: Any) -> None:
        """Add a step of training. `length_of` returns the length of an episode that the penalty counts."""
        metrics = progress.metrics
        self.tokens += metrics["num_tokens/sampled"]
        self.optimizer_steps += metrics.get("optimizer_steps", 0.0)
        trained = [episode for episode, lessons in progress.rollouts if any(lesson.advantage for lesson in lessons)]
        self.useful += sum(episode.sampled_tokens for episode in trained)
        line = {name: metrics[key] for key, name in PER_STEP.items() if key in metrics}
        if self.zone is not None:
            line["zone"] = float(np.mean([length_of(episode) > self.zone for episode, _ in progress.rollouts]))
        self.figures.append(line)

    def summary(self) -> dict[str, Any]:
        """Return the means of all steps, of the first five and of the last five."""
        names = sorted({name for line in self.figures for name in line})
        parts = {"all": self.figures, "first": self.figures[:5], "last": self.figures[-5:]}
        return {
            "steps": len(self.figures),
            "optimizer_steps": self.optimizer_steps,
            "tokens": self.tokens,
            "useful_share": self.useful / max(1.0, self.tokens),
            **{
                part: {
                    name: round(float(np.mean([line[name] for line in lines if name in line])), 4)
                    for name in names
                    if any(name in line for line in lines)
                }
                for part, lines in parts.items()
            },
        }
