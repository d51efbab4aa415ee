"""What a step of training is measured by, under the names that TRL's users know."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Ending, Episode, Status


def play_metrics(episodes: Sequence[Episode], terms: Sequence[Mapping[str, float]], broken: int) -> dict[str, float]:
    """Figures of one step's scored episodes and the terms of their training reward."""
    calls = [call for episode in episodes for call in episode.attempt.calls]
    rewards = np.array([sum(term.values()) for term in terms])
    groups = np.array([episode.start.group for episode in episodes])
    lengths = [episode.sampled_tokens for episode in episodes]
    logprobs = [row.logprobs[row.sampled] for episode in episodes for row in episode.rows]
    figures = {
        "reward": rewards.mean(),
        "reward_std": np.mean([rewards[groups == group].std() for group in np.unique(groups)]),
        "frac_reward_zero_std": dead_share(rewards, groups),
        # Mean surprise of what was sampled: an unbiased estimate of the entropy at the sampling temperature.
        "entropy": -np.concatenate(logprobs).mean() if sum(lengths) else 0.0,
        "completions/mean_length": np.mean(lengths),
        "completions/clipped_ratio": np.mean([episode.ending is Ending.LENGTH_LIMIT for episode in episodes]),
        "episodes/turns": np.mean([episode.attempt.turns for episode in episodes]),
        "episodes/extra_rows": np.mean([max(0, len(episode.rows) - 1) for episode in episodes]),
        "episodes/broken": broken,
        "tools/call_frequency": len(calls) / len(episodes),
        "tools/failure_frequency": np.mean([call.status is not Status.OK for call in calls]) if calls else 0.0,
        "num_tokens": sum(lengths),
    }
    for name in episodes[0].parts:
        figures[f"rewards/{name}/mean"] = np.mean([episode.parts[name] for episode in episodes])
    for name in terms[0]:
        figures[f"rewards/{name}/mean"] = np.mean([term[name] for term in terms])
    return {name: float(value) for name, value in figures.items()}


def dead_share(rewards: NDArray[np.float64], groups: NDArray[np.int_]) -> float:
    """Share of groups whose rewards are all equal: they teach nothing."""
    return float(np.mean([np.ptp(rewards[groups == group]) == 0 for group in np.unique(groups)]))
