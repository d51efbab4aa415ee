"""Useful tokens on a fixed pool: how many of the tokens that are generated stand in groups with something to compare.

96 tasks, a third never solved, a third always, the others in .2 to .8 of the attempts; the weights are held, so a
task's rate never moves, and outcomes are drawn, not generated. An episode's tokens are drawn too: right ones have 20 on
average, wrong ones 30, each times exp of a normal number with deviation .5. Every token counts once, from the first
batch on, while the samplers still know nothing; copies count for nothing. The oracle knows every rate and plays only
tasks that are neither sure nor hopeless.
"""

from collections.abc import Callable, Mapping

import numpy as np

from palaestra.episode import Attempt, Ending, Episode, Start, Task, TokenRow
from palaestra.trainers.batch import Scored
from palaestra.trainers.samplers.dapo import Dynamic
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.posterior import Posterior
from palaestra.trainers.samplers.uniform import Uniform
from palaestra.trainers.samplers.vspo import VSPO

TASKS, PROMPTS, MEMBERS = 96, 12, 8
VISITS = (1, 2, 3, 5, 10)
SAMPLERS: Mapping[str, Callable[..., object]] = {
    "uniform (GRPO)": Uniform(),
    "value (VSPO)": VSPO(),
    "dynamic (DAPO)": Dynamic(),
    "posterior": Posterior(),
}


def rates_of(seed: int) -> np.ndarray:
    """Return the success of each task."""
    rng = np.random.default_rng([seed, 9])
    third = TASKS // 3
    return rng.permutation(np.concatenate([np.zeros(third), np.ones(third), rng.uniform(0.2, 0.8, third)]))


def scored_episode(start: Start, solved: bool, tokens: int) -> Scored:
    """Return an episode with this many tokens."""
    attempt = Attempt(Task("a task"), (), None, (), 1)
    row = TokenRow(
        np.zeros(tokens, np.int32), np.ones(tokens, bool), np.zeros(tokens, np.float32), np.zeros(tokens, np.int32)
    )
    episode = Episode(start, attempt, (row,), Ending.ANSWERED, float(solved), {"success": float(solved)})
    return Scored(episode, {"outcome": 2.0 * solved - 1})


def curve(options: Callable[..., object], rates: np.ndarray, seed: int) -> list[float]:
    """Return the useful share of all tokens so far, at each number of visits a task in `VISITS`."""
    source = options("a/Pool-v0", len(rates), Groups(PROMPTS, MEMBERS), seed)  # type: ignore[operator]
    rng, useful, tokens, groups, shares = np.random.default_rng(seed), 0, 0, 0, list[float]()
    while len(shares) < len(VISITS):
        while (batch := source.batch()) is None:
            while (start := source.next()) is not None:
                solved = bool(rng.random() < rates[start.task])
                length = int(1 + (20 if solved else 30) * np.exp(rng.normal(0, 0.5)))
                source.observe(scored_episode(start, solved, length))
        members = dict[int, list[Episode]]()
        for scored in batch.rollouts:
            members.setdefault(scored.episode.start.group, []).append(scored.episode)
        for group in members.values():
            own = sum(episode.sampled_tokens for episode in group)
            tokens += own
            useful += own * (len({episode.reward for episode in group}) > 1)
        groups += len(members)
        while len(shares) < len(VISITS) and groups >= VISITS[len(shares)] * len(rates):
            shares.append(useful / tokens)
    return shares


def oracle(rates: np.ndarray) -> float:
    """Return the share of groups with something to compare if only tasks that are solved sometimes are played, all
    equally often.
    """
    between = rates[(rates > 0) & (rates < 1)]
    return float(np.mean(1 - between**MEMBERS - (1 - between) ** MEMBERS))


def table(seeds: int = 5) -> str:
    """Return the table of the curve of each sampler, with its ratios to plain GRPO and to the oracle."""
    pools = [rates_of(seed) for seed in range(seeds)]
    best = float(np.mean([oracle(rates) for rates in pools]))
    shares_by_sampler = {
        name: np.mean([curve(options, rates, seed) for seed, rates in enumerate(pools)], axis=0)
        for name, options in SAMPLERS.items()
    }
    plain = shares_by_sampler["uniform (GRPO)"]
    rows = [
        "### Useful tokens on a fixed pool",
        "",
        f"Share of all generated tokens in groups with something to compare, warm-up included, by visits a task; means "
        f"of {seeds} pools. The oracle has {best:.2f}.",
        "",
        f"| sampler | {' | '.join(f'after {visits}' for visits in VISITS)} | by GRPO's | by the oracle's |",
        "|---" * (3 + len(VISITS)) + "|",
    ]
    for name, shares in shares_by_sampler.items():
        cells = [f"{share:.2f}" for share in shares]
        rows.append(f"| {name} | {' | '.join(cells)} | {shares[-1] / plain[-1]:.2f} | {shares[-1] / best:.2f} |")
    return "\n".join(rows)
