"""Metrics of episodes, under the names that TRL uses: those of a training step, and those of any set of episodes.

`episode_metrics` serves a step's batch and a file of episodes (`view.sources`). It takes `EpisodeStats`, which hold no
tokens, so that whole files fit in memory. Not in this module: metrics of the loss (`learn.update`).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Ending, Episode, Status
from palaestra.mixture import Mixture
from palaestra.trainers.batch import Batch
from palaestra.trainers.evaluation.statistics import gap_at_k
from palaestra.trainers.reward.judge_agreement import judged_figures

_MIXTURE = "mixture/"
_SHARES = ("asked", "played", "learned")
DELIBERATIVE, REACTIVE, MIXED = "deliberative", "reactive", "mixed"
GAP = "rewards/success/pass_less_avg"


@dataclass(frozen=True, slots=True)
class EpisodeStats:
    """Data about one episode that the metrics need. The episode must have a reward."""

    group: Hashable
    """Key that is equal for episodes of one task by one agent; pass@k is computed over it."""
    parts: Mapping[str, float]
    ending: Ending
    turns: int
    calls: int
    worked: int
    """Number of calls that were served."""
    tokens: int
    """Number of tokens that the agent sampled; 0 for an agent whose turns are text."""
    counted: Mapping[str, int]
    """Numbers of a harness's requests that were refused as too long (`refused`), and of those with a wish that was not
    followed (`unfollowed`)."""
    surprise: float
    """Sum of the sampled tokens' negative log-probs."""
    rows: int

    @property
    def tokens_per_turn(self) -> float:
        """Return the mean number of sampled tokens per turn."""
        return self.tokens / max(1, self.turns)

    def mode(self, medians: tuple[float, float]) -> str:
        """Return the mode of the episode relative to the `medians` of the episodes that it is compared with.

        The definition is ours, because the paper (arXiv 2510.11701) names the modes but gives no threshold.
        Deliberative: at least the median tokens per turn and at most the median calls. Reactive: fewer tokens and more
        calls. All other episodes are mixed.
        """
        tokens, calls = medians
        if self.tokens_per_turn >= tokens and self.calls <= calls:
            return DELIBERATIVE
        return REACTIVE if self.tokens_per_turn < tokens and self.calls > calls else MIXED


def facts_of(episode: Episode, where: Hashable = None) -> EpisodeStats:
    """Return the stats of an episode. `where` is part of its group's key, because files may reuse group numbers."""
    start, attempt = episode.start, episode.attempt
    return EpisodeStats(
        group=(where, start.env, start.task, start.group, start.seat),
        parts=episode.parts,
        ending=episode.ending,
        turns=attempt.turns,
        calls=len(attempt.calls),
        worked=sum(call.status is Status.OK for call in attempt.calls),
        tokens=episode.sampled_tokens,
        counted={"refused": attempt.refused, "unfollowed": attempt.unfollowed},
        surprise=-sum(float(row.logprobs[row.sampled].sum(dtype=np.float64)) for row in episode.rows),
        rows=len(episode.rows),
    )


def medians_of(facts: Sequence[EpisodeStats]) -> tuple[float, float]:
    """Return the median tokens per turn and the median calls per episode, which define the modes; 0 without tokens."""
    with_tokens = [fact for fact in facts if fact.tokens]
    if not with_tokens:
        return 0.0, 0.0
    tokens_per_turn = np.median([fact.tokens_per_turn for fact in with_tokens])
    return float(tokens_per_turn), float(np.median([fact.calls for fact in with_tokens]))


def mode_metrics(facts: Sequence[EpisodeStats], medians: tuple[float, float]) -> dict[str, float]:
    """Return the share of the modes deliberative and reactive, and the success of each; empty without tokens."""
    modes_and_successes = [(fact.mode(medians), fact.parts.get("success", 0.0)) for fact in facts if fact.tokens]
    figures = {}
    for mode in (DELIBERATIVE, REACTIVE) if modes_and_successes else ():
        successes = [success for name, success in modes_and_successes if name == mode]
        figures[f"modes/{mode}"] = len(successes) / len(modes_and_successes)
        if successes:
            figures[f"modes/{mode}/success"] = float(np.mean(successes))
    return figures


def episode_metrics(facts: Sequence[EpisodeStats], medians: tuple[float, float] | None = None) -> dict[str, float]:
    """Return the metrics of some episodes. Modes are relative to `medians`, or to the medians of these episodes."""
    if not facts:
        return {}
    tokens, calls = sum(fact.tokens for fact in facts), sum(fact.calls for fact in facts)
    figures: dict[str, float] = {
        "completions/clipped_ratio": _mean([fact.ending is Ending.LENGTH_LIMIT for fact in facts]),
        "episodes/turns": _mean([fact.turns for fact in facts]),
        "episodes/turn_limit": _mean([fact.ending is Ending.TURN_LIMIT for fact in facts]),
        "episodes/extra_rows": _mean([max(0, fact.rows - 1) for fact in facts]),
        "tools/call_frequency": calls / len(facts),
        "tools/failure_frequency": sum(fact.calls - fact.worked for fact in facts) / max(1, calls),
    }
    for name in ("refused", "unfollowed"):
        if count := sum(fact.counted[name] for fact in facts):
            figures[f"episodes/{name}"] = count / len(facts)
    if tokens:
        figures |= {
            # The mean negative log-prob is an unbiased estimate of the entropy at the sampling temperature.
            "entropy": sum(fact.surprise for fact in facts) / tokens,
            "completions/mean_length": tokens / len(facts),
            "completions/max_length": max(fact.tokens for fact in facts),
            "completions/tokens_per_turn": tokens / max(1, sum(fact.turns for fact in facts if fact.tokens)),
            **mode_metrics(facts, medians or medians_of(facts)),
        }
    return figures | part_means(facts)


def part_means(facts: Sequence[EpisodeStats]) -> dict[str, float]:
    """Return the mean of each part of the environment's reward, success included."""
    # Environments of a mixture may have different parts.
    names = dict.fromkeys(name for fact in facts for name in fact.parts)
    return {f"rewards/{name}/mean": _mean([fact.parts[name] for fact in facts if name in fact.parts]) for name in names}


def gap_metrics(facts: Sequence[EpisodeStats]) -> dict[str, float]:
    """Return pass@k minus avg@k, the success gained by k tries instead of one; k is the size of the largest group."""
    groups: dict[Hashable, list[float]] = {}
    for fact in facts:
        groups.setdefault(fact.group, []).append(fact.parts.get("success", 0.0))
    largest_size = max(map(len, groups.values()), default=0)
    return {GAP: float(gap_at_k(list(groups.values()), largest_size).mean())} if largest_size > 1 else {}


def batch_metrics(batch: Batch, learning: Set[str] = frozenset()) -> dict[str, float]:
    """Return the metrics of all episodes played for a batch, each counted once, and of the groups that are trained on.
    `learning` names the trained seats if not all of them are trained.
    """
    rated = [
        (facts_of(scored.episode), scored)
        for scored in batch.rollouts
        if scored.terms is not None and not scored.episode.start.greedy
    ]
    rated_facts = [fact for fact, _ in rated]
    # Episodes that could be trained on, whether or not their group was kept.
    eligible = [pair for pair in rated if not pair[1].episode.fault]
    eligible = [pair for pair in eligible if not learning or pair[1].episode.start.seat in learning]
    deviations = [batch.rewards[batch.groups == group].std() for group in np.unique(batch.groups)]
    figures = {
        **({"reward": _mean([scored.reward for _, scored in eligible])} if eligible else {}),
        **({"reward_std": _mean(deviations)} if deviations else {}),
        # If the sampler kept no group, nothing can be trained on.
        "frac_reward_zero_std": dead_share(batch.rewards, batch.groups) if batch.samples else 1.0,
        **episode_metrics([fact for fact, _ in eligible]),
        "episodes/broken": sum(scored.terms is None for scored in batch.rollouts),
        "num_tokens": sum(batch.lengths),
        **part_means(rated_facts),
        **gap_metrics(rated_facts),
    }
    terms = [scored.terms or {} for _, scored in eligible]
    for name in dict.fromkeys(name for episode_terms in terms for name in episode_terms):
        figures[f"rewards/{name}/mean"] = _mean([values[name] for values in terms if name in values])
    figures |= judged_figures(batch.rollouts)
    figures |= _of_seats([scored.episode for scored in batch.rollouts if scored.terms is not None])
    return {name: float(value) for name, value in {**figures, **batch.figures}.items()}


def mixture_metrics(mixture: Mixture, batch: Batch) -> dict[str, float]:
    """Return figures of a step for each environment of a mixture: how many episodes its share asked for, how many were
    played, how many were trained on (a copy counts by its weight), and the success of those played.

    A sampler that drops or copies groups changes the mixture. Shares are these metrics divided by their sums.
    """
    figures: dict[str, float] = {}
    for env, share in mixture.shares.items():
        env_episodes = [scored.episode for scored in batch.rollouts if scored.episode.start.env == env]
        scored = [episode.parts["success"] for episode in env_episodes if episode.reward is not None]
        learned = [sample.weight for sample in batch.samples if batch.rollouts[sample.place].episode.start.env == env]
        episodes = float(share) * len(batch.rollouts), len(env_episodes), sum(learned)
        figures |= {f"{_MIXTURE}{env}/{name}": float(count) for name, count in zip(_SHARES, episodes, strict=True)}
        if scored:
            figures[f"{_MIXTURE}{env}/success"] = sum(scored) / len(scored)
    return figures


def mixture_shares(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each environment's shares over the steps of a run, from their metrics: asked, played and learned."""
    totals: dict[str, dict[str, float]] = {}
    for line in lines:
        for name, value in line.items():
            env, _, figure = name.removeprefix(_MIXTURE).rpartition("/")
            if name.startswith(_MIXTURE) and figure in _SHARES:
                env_totals = totals.setdefault(env, dict.fromkeys(_SHARES, 0.0))
                env_totals[figure] += value or 0.0
    sums = {figure: sum(env_totals[figure] for env_totals in totals.values()) for figure in _SHARES}
    return {
        env: {figure: env_totals[figure] / max(1e-9, sums[figure]) for figure in _SHARES}
        for env, env_totals in totals.items()
    }


def dead_share(rewards: NDArray[np.float64], groups: NDArray[np.int_]) -> float:
    """Return the share of zero-variance groups, whose rewards are all equal and give no gradient."""
    return float(np.mean([np.ptp(rewards[groups == group]) == 0 for group in np.unique(groups)]))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _of_seats(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return success, reward and share of cut episodes for each seat, whether or not it is trained."""
    figures: dict[str, float] = {}
    for seat in sorted({episode.start.seat for episode in episodes if episode.start.seat is not None}):
        seat_episodes = [episode for episode in episodes if episode.start.seat == seat]
        figures[f"seats/{seat}/success"] = _mean([episode.parts["success"] for episode in seat_episodes])
        figures[f"seats/{seat}/reward"] = _mean([episode.reward or 0.0 for episode in seat_episodes])
        figures[f"seats/{seat}/cut_short"] = _mean([bool(episode.fault) for episode in seat_episodes])
    return figures
