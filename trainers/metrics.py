"""What a step of training is measured by, under the names that TRL's users know."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Ending, Episode, Status
from palaestra.mixture import Mixture
from palaestra.trainers.batch import Batch
from palaestra.trainers.scoring.agreement import judged_figures

_MIXTURE = "mixture/"
_SHARES = ("asked", "played", "learned")


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Figures of what is learned from in a batch, and of all that was played for it."""
    broken = float(sum(scored.terms is None for scored in batch.played))
    if not batch.samples:  # A sampler kept no group: there is nothing to learn from, and it is counted.
        nothing = {"reward": 0.0, "frac_reward_zero_std": 1.0, "episodes/broken": broken, "num_tokens": 0.0}
        return {**nothing, **judged_figures(batch.played), **batch.figures}
    episodes, rewards = batch.episodes, batch.rewards
    calls = [call for episode in episodes for call in episode.attempt.calls]
    logprobs = [row.logprobs[row.sampled] for episode in episodes for row in episode.rows]
    figures = {
        "reward": rewards.mean(),
        "reward_std": np.mean([rewards[batch.groups == group].std() for group in np.unique(batch.groups)]),
        "frac_reward_zero_std": dead_share(rewards, batch.groups),
        # Mean surprise of what was sampled: an unbiased estimate of the entropy at the sampling temperature.
        "entropy": -np.concatenate(logprobs).mean() if sum(batch.lengths) else 0.0,
        "completions/mean_length": np.mean(batch.lengths),
        "completions/clipped_ratio": np.mean([episode.ending is Ending.LENGTH_LIMIT for episode in episodes]),
        "episodes/turns": np.mean([episode.attempt.turns for episode in episodes]),
        "episodes/extra_rows": np.mean([max(0, len(episode.rows) - 1) for episode in episodes]),
        "episodes/broken": broken,
        "tools/call_frequency": len(calls) / len(episodes),
        "tools/failure_frequency": np.mean([call.status is not Status.OK for call in calls]) if calls else 0.0,
        "num_tokens": sum(batch.lengths),
    }
    for name in dict.fromkeys(name for episode in episodes for name in episode.parts):  # A mixture's may differ.
        figures[f"rewards/{name}/mean"] = np.mean([e.parts[name] for e in episodes if name in e.parts])
    for name in batch.scored[0].terms or ():
        figures[f"rewards/{name}/mean"] = np.mean([(scored.terms or {})[name] for scored in batch.scored])
    figures |= judged_figures(batch.played)
    figures |= _of_seats([scored.episode for scored in batch.played if scored.terms is not None])
    return {name: float(value) for name, value in {**figures, **batch.figures}.items()}


def mixture_metrics(mixture: Mixture, batch: Batch) -> dict[str, float]:
    """Of each environment of a mixture: episodes of a step, as they were asked for by its share, as they were played,
    and as they were learned from, a copy by its weight; and the success of those that were played.

    A sampler that drops or copies groups changes a mixture: shares are these figures, divided by their sums.
    """
    figures: dict[str, float] = {}
    for env, share in mixture.shares.items():
        own = [scored.episode for scored in batch.played if scored.episode.start.env == env]
        scored = [episode.parts["success"] for episode in own if episode.reward is not None]
        learned = [one.weight for one in batch.samples if batch.played[one.place].episode.start.env == env]
        episodes = float(share) * len(batch.played), len(own), sum(learned)
        figures |= {f"{_MIXTURE}{env}/{name}": float(count) for name, count in zip(_SHARES, episodes, strict=True)}
        if scored:
            figures[f"{_MIXTURE}{env}/success"] = sum(scored) / len(scored)
    return figures


def mixture_shares(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The shares of each environment over steps of a run, from their figures: asked, played and learned."""
    totals: dict[str, dict[str, float]] = {}
    for line in lines:
        for name, value in line.items():
            env, _, figure = name.removeprefix(_MIXTURE).rpartition("/")
            if name.startswith(_MIXTURE) and figure in _SHARES:
                own = totals.setdefault(env, dict.fromkeys(_SHARES, 0.0))
                own[figure] += value or 0.0
    sums = {figure: sum(own[figure] for own in totals.values()) for figure in _SHARES}
    return {env: {figure: own[figure] / max(1e-9, sums[figure]) for figure in _SHARES} for env, own in totals.items()}


def dead_share(rewards: NDArray[np.float64], groups: NDArray[np.int_]) -> float:
    """Share of groups whose rewards are all equal: they teach nothing."""
    return float(np.mean([np.ptp(rewards[groups == group]) == 0 for group in np.unique(groups)]))


def _of_seats(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success and reward of each seat, whether it is trained or not."""
    figures: dict[str, float] = {}
    for seat in sorted({episode.start.seat for episode in episodes if episode.start.seat is not None}):
        own = [episode for episode in episodes if episode.start.seat == seat]
        figures[f"seats/{seat}/success"] = sum(episode.parts["success"] for episode in own) / len(own)
        figures[f"seats/{seat}/reward"] = sum(episode.reward or 0.0 for episode in own) / len(own)
        figures[f"seats/{seat}/cut_short"] = sum(bool(episode.fault) for episode in own) / len(own)
    return figures
