"""GRPO in one file over palaestra's public pieces (arena, engine, play, pack, loss), to read and to change.

python examples/grpo_by_hand.py [SEED]

A tiny agent first imitates a script that uses its tool in three episodes of ten. GRPO then learns that the tool pays,
as `palaestra train two-hop` does with the same settings. Left out is what a run needs beside learning: its folder and
checkpoints, interrupts, evaluation, audits, judges, other recipes and several processes (`palaestra.trainers.grpo`).
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import torch

import palaestra
from palaestra.agents import TokenLimits, play
from palaestra.episode import Episode, Start
from palaestra.trainers import tiny_config
from palaestra.trainers.learn.forward import token_logprobs
from palaestra.trainers.learn.packing import pack
from palaestra.trainers.losses.policy import Clip
from palaestra.trainers.setup.cold_start import cold_started

ENV = "palaestra/TwoHop-v0"
STEPS, GROUPS, MEMBERS, MINI_BATCHES = 50, 12, 8, 4
LEARNING_RATE, MAX_GRAD_NORM = 1e-3, 1.0
LIMITS = TokenLimits(max_turn_tokens=72, max_episode_tokens=256)


def starts_of(step: int, tasks: int, seed: int) -> Iterator[Start]:
    """Yield the starts of a step. Members of a group play the same task; each has a seed that is used once."""
    for place in range(GROUPS):
        group = step * GROUPS + place
        task = int(np.random.default_rng([seed, group]).integers(tasks))
        for member in range(MEMBERS):
            yield Start(task=task, seed=group * MEMBERS + member, group=group)


def advantages_of(episodes: Sequence[Episode]) -> np.ndarray:
    """Compare each episode with its group: (reward - mean) / (std + 1e-6), and 0 where all rewards are equal."""
    rewards = np.array([episode.reward for episode in episodes])
    groups = np.array([episode.start.group for episode in episodes])
    advantages = np.zeros(len(episodes))
    for group in set(groups):
        members = groups == group
        if np.ptp(rewards[members]) > 0:
            advantages[members] = rewards[members] - rewards[members].mean()
            advantages[members] /= rewards[members].std(ddof=1) + 1e-6
    return advantages


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, episodes: Sequence[Episode]) -> None:
    """Take one optimizer step for each mini-batch of whole groups."""
    advantages, groups = advantages_of(episodes), np.array([episode.start.group for episode in episodes])
    loss_of = Clip(epsilon=0.2, epsilon_high=0.28)
    for mini_batch in np.array_split(np.unique(groups), MINI_BATCHES):
        places = np.flatnonzero(np.isin(groups, mini_batch))
        if not advantages[places].any():
            continue
        # Flat tensors of all tokens: those that the agent sampled are trained on, against the engine's own log-probs.
        packed = pack([episodes[i] for i in places], [advantages[i] for i in places])
        sampled_N = packed.sampled_N
        logprobs_N = token_logprobs(model, packed).logprobs_N
        losses = loss_of(
            logprobs_N[sampled_N], packed.old_N[sampled_N], packed.advantages_N[sampled_N], packed.row_N[sampled_N]
        )
        (losses.loss_S * packed.weights_N[sampled_N]).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()


def train(seed: int = 0) -> list[float]:
    """Return the success of each step's episodes."""
    local = cold_started(tiny_config(ENV, seed=seed)).local
    agent, model, curve = local.agent, local.model, []
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=STEPS - 1)
    with closing(palaestra.arena(ENV, GROUPS * MEMBERS, ordered=True)) as arena:
        for step in range(STEPS):
            agent.engine.update_weights(model.named_parameters(), version=step)
            played = play(agent, arena, starts_of(step, arena.task_count, seed), limits=LIMITS)
            # An episode whose infrastructure failed has no reward: it is never trained on.
            episodes = sorted(
                (episode for episode in played if episode.reward is not None), key=lambda episode: episode.start.seed
            )
            learn(model, optimizer, episodes)
            schedule.step()
            curve.append(float(np.mean([episode.parts["success"] for episode in episodes])))
            print(f"step {step + 1:2}: success {curve[-1]:.2f}", flush=True)
    return curve


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
