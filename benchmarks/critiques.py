"""Second attempts of a pretrained model in TwoHop: after a rule's critique, and after "Try again."

    make bench-critiques START=runs/demo-twohop-v0-seed0/start

The model is a start of `palaestra demo two-hop --model smollm2`, which mostly guesses. The critique never names the
answer. The model is measured as it is, when it has never read a critique, and after it has imitated second attempts
too: half of these follow a critique, and use the tool; the others follow "Try again." and use it as seldom as first
attempts do. From there GRPO learns from first attempts alone, and Reagent-U from both, with as many episodes a step. It
prints a line of figures for each measurement, and adds it to `results/critiques.jsonl`.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, TokenLimits, play
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import LocalModel, load
from palaestra.episode import Episode, Message
from palaestra.judging.rule import by_rule
from palaestra.protocols import Arena
from palaestra.trainers import laptop_config
from palaestra.trainers.batch import Scored
from palaestra.trainers.config.recipes import Recipe, find_recipe
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.evaluation.evaluate import compare, evaluate
from palaestra.trainers.evaluation.second_attempts import Attempts, attempts, critics
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.reward.async_scoring import JudgeResult
from palaestra.trainers.reward.reward_model import TERM, ReasoningJudge, ReasoningReward
from palaestra.trainers.samplers.reagent_u import Refined, second_start
from palaestra.trainers.setup.demonstration_split import demonstrate
from palaestra.trainers.setup.open_learner import new_learner
from palaestra.trainers.validation import changed

ENV, FORMAT, NEUTRAL = "palaestra/TwoHop-v0", "tags", "Try again."
LIMITS = TokenLimits(24, 384)
TOOL_RATE, DEMONSTRATIONS, TASKS = 0.3, 96, 64
RESULTS = Path(__file__).parent / "results" / "critiques.jsonl"


def main() -> None:
    """Measure the start, let it imitate second attempts, and measure it again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("start", help="folder of a model that mostly guesses")
    parser.add_argument("--seed", type=int, default=20, help="of demonstrations, samples and tasks to learn from")
    options = parser.parse_args()
    start, seed = options.start, options.seed
    local = load(start, slots=16, seed=seed, device="cpu")
    report(local, "the start", seed)
    imitate(local, seed)
    report(local, "after imitating second attempts", seed)
    weights = {name: weight.detach().clone() for name, weight in local.model.named_parameters()}
    for name, recipe, members in (("GRPO", "grpo-tcr", 8), ("Reagent-U", second_attempts("grpo-tcr"), 4)):
        learned = load(start, slots=32, seed=seed, device="cpu")
        with torch.no_grad():
            for weight_name, weight in learned.model.named_parameters():
                weight.copy_(weights[weight_name])
        learn(learned, name, recipe, members, seed)


def save(line: dict[str, Any]) -> None:
    """Print a line of figures, and add it to the results."""
    print(json.dumps(line), flush=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def report(local: LocalModel, title: str, seed: int) -> None:
    """Print the success of first attempts and of both kinds of second ones, and their difference, paired by task."""
    for greedy in (False, True):
        began = time.process_time()
        critiqued, neutral = (_attempts(local.agent, greedy, critique) for critique in (True, False))
        gain = compare(critiqued.second_episodes, neutral.second_episodes)
        line = {
            "seed": seed,
            "model": title,
            "greedy": greedy,
            "first": round(critiqued.first.success, 3),
            "after a critique": round(critiqued.second.success, 3),
            "after 'Try again.'": round(neutral.second.success, 3),
            "difference": [round(value, 3) for value in (gain.difference, gain.low, gain.high)],
            "p": round(gain.p_value, 4),
            "tool use": [
                _tool_use(episodes)
                for episodes in (critiqued.first_episodes, critiqued.second_episodes, neutral.second_episodes)
            ],
            "cpu_s": round(time.process_time() - began),
        }
        save(line)


def _attempts(agent: Agent, greedy: bool, critique: bool) -> Attempts:
    """Play first attempts and second ones, after a critique or after a neutral request."""

    async def judge(episodes: Sequence[Episode]) -> Sequence[JudgeResult]:
        return [JudgeResult({}, {"critique": _critique(episode) if critique else NEUTRAL}) for episode in episodes]

    temperature = 0.0 if greedy else 1.0
    with (
        closing(palaestra.arena(ENV, 16, split="eval", ordered=True, format=FORMAT)) as arena,
        closing(critics(judge)) as scoring,
    ):
        return attempts(agent, arena, scoring, tasks=TASKS, temperature=temperature, limits=LIMITS, greedy=greedy)


def _critique(episode: Episode) -> str:
    return by_rule(episode.attempt, episode.reward == 1, has_tools=True).critique


def _tool_use(episodes: Sequence[Episode]) -> float:
    return round(sum(bool(episode.attempt.calls) for episode in episodes) / len(episodes), 3)


def imitate(local: LocalModel, seed: int) -> None:
    """Train the model on first attempts with second ones, in one row each."""
    chat, began = local.agent.chat, time.process_time()
    assert chat is not None, "a model has a chat"
    with closing(palaestra.arena(ENV, 16, ordered=True, format=FORMAT)) as arena:
        rows = [row for episode in demonstrated(arena, seed) for row in written_rows(chat, *_seen(episode))]
    config = changed(SFTConfig(model="smollm2", device="cpu"), {"epochs": 2, "batch_rows": 8, "learning_rate": 5e-5})
    learner = Learner(local.agent, local.model, config)
    imitation = Imitation(learner, rows)
    while learner.step < learner.steps:
        imitation.step()
    learner.publish()
    save({"seed": seed, "rows": len(rows), "steps": learner.step, "cpu_s": round(time.process_time() - began)})


def _seen(episode: Episode) -> tuple[Sequence[Message], Any]:
    return episode.start.as_seen(episode.attempt.messages), episode.tools


def learn(local: LocalModel, title: str, recipe: Recipe | str, members: int, seed: int) -> None:
    """Train an adapter, and print the success of first attempts by step and at the end."""
    began, steps = time.process_time(), []
    settings = {"num_generations": members, "steps": 8, "eval_tasks": 0, "lora_r": 16, "learning_rate": 5e-4}
    if isinstance(recipe, Recipe):  # The preset's is longer than an episode here.
        settings["max_prefix_tokens"] = LIMITS.max_episode_tokens // 2
    limits = {"max_turn_tokens": LIMITS.max_turn_tokens, "max_episode_tokens": LIMITS.max_episode_tokens}
    config = laptop_config(
        ENV, recipe, model="smollm2", env_options=(f"format={FORMAT}",), **settings, **limits, seed=seed
    )
    learner = new_learner(local, config)
    with closing(palaestra.arena(ENV, 32, ordered=True, format=FORMAT)) as arena:
        for step in train_learner(learner, arena):
            first = step.metrics.get("sampler/success_first", step.metrics["rewards/success/mean"])
            steps.append((round(first, 2), int(step.metrics["num_tokens/sampled"])))
    learner.publish()
    with closing(palaestra.arena(ENV, 16, split="eval", ordered=True, format=FORMAT)) as arena:
        reports = [
            evaluate(learner.agent, arena, tasks=TASKS, temperature=temperature, limits=LIMITS)[0]
            for temperature in (1.0, 0.0)
        ]
    line = {
        "seed": seed,
        "learned by": title,
        "first attempts, sampled and greedy": [round(report.success, 3) for report in reports],
        "success and tokens of the steps": steps,
        "cpu_s": round(time.process_time() - began),
    }
    save(line)


def second_attempts(name: str) -> Recipe:
    """Return a recipe with second attempts after the rule's critiques, whose score counts nothing."""
    return replace(
        find_recipe(name), judge=RuleCritic(score_weight=0.0), sampler=Refined(LIMITS.max_episode_tokens // 2)
    )


@dataclass(frozen=True, slots=True)
class RuleCritic(ReasoningReward):
    """Settings of a critic that is a rule and not a served model."""

    def opened(self) -> ReasoningJudge:
        """Return the critic."""
        return _Rule(self)


class _Rule(ReasoningJudge):
    """A critic that answers at once."""

    def __init__(self, settings: RuleCritic) -> None:
        self.settings = settings

    def check(self) -> None:
        """Do nothing: a rule is always available."""

    def close(self) -> None:
        """Do nothing: a rule holds no connection."""

    async def __call__(self, episodes: Sequence[Episode]) -> Sequence[JudgeResult]:
        """Return critiques in the form of a served judge."""
        return [JudgeResult({TERM: 0.0}, {"score": 0.0, "critique": _critique(episode)}) for episode in episodes]


def demonstrated(arena: Arena, seed: int) -> Sequence[Episode]:
    """Return second attempts whose prefix is the first one, and a critique in every other episode."""
    script = palaestra.demonstrator(ENV)
    firsts = demonstrate(arena, script, DEMONSTRATIONS, TOOL_RATE, seed, FORMAT)
    starts = []
    for number, first in enumerate(firsts):
        remark = NEUTRAL if number % 2 else _critique(first)
        scored = Scored(first, remarks={"critique": remark})
        starts.append(second_start(scored, first.start.seed + len(firsts), LIMITS.max_episode_tokens // 2))
    return list(play(Agent(ScriptedPolicy(partial(_again, script), seed, FORMAT)), arena, starts))


def _again(script: Callable[..., str], messages: Sequence[Message], rng: np.random.Generator) -> str:
    """Play a second attempt: with the tool after a critique, by habit after a neutral request."""
    questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
    rate = TOOL_RATE if NEUTRAL in str(messages[questions[-1]]["content"]) else 1.0
    return str(script([messages[questions[0]], *messages[questions[-1] + 1 :]], rng, tool_rate=rate))


if __name__ == "__main__":
    main()
