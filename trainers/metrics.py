"""What episodes are measured by, under the names that TRL's users know: those of a training step, and any others.

`episode_metrics` says the same of a step's batch as of a file of episodes (`analysis`). It asks for `Facts`, which hold
no token, so that whole files can be measured together. Left out: figures of the loss (`update`).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Ending, Episode, Status
from palaestra.mixture import Mixture
from palaestra.trainers.batch import Batch
from palaestra.trainers.scoring.agreement import judged_figures
from palaestra.trainers.statistics import gap_at_k

_MIXTURE = "mixture/"
_SHARES = ("asked", "played", "learned")
DELIBERATIVE, REACTIVE, MIXED = "deliberative", "reactive", "mixed"
GAP = "rewards/success/pass_less_avg"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the figures ask of an episode that has a reward."""

    group: Hashable
    """Equal for episodes of one task by one agent: what pass@k is of."""
    parts: Mapping[str, float]
    ending: Ending
    turns: int
    calls: int
    worked: int
    """Calls that were served."""
    tokens: int
    """That the agent chose; 0 for one whose turns are text."""
    surprise: float
    """The sum of their negative log-probs."""
    rows: int

    @property
    def tokens_per_turn(self) -> float:
        """How long it thinks and writes in a round."""
        return self.tokens / max(1, self.turns)

    def mode(self, medians: tuple[float, float]) -> str:
        """Which way of working it is, beside the `medians` of the episodes that it is compared with.

        Our definition, since the paper (arXiv 2510.11701) names the modes and no threshold: deliberative is who writes
        at least as many tokens a turn and makes at most as many calls as the median, reactive who writes fewer and
        makes more; all others are mixed.
        """
        tokens, calls = medians
        if self.tokens_per_turn >= tokens and self.calls <= calls:
            return DELIBERATIVE
        return REACTIVE if self.tokens_per_turn < tokens and self.calls > calls else MIXED


def facts_of(episode: Episode, where: Hashable = None) -> Facts:
    """The facts of an episode; `where` tells its group from those of the same number elsewhere."""
    start, attempt = episode.start, episode.attempt
    return Facts(
        group=(where, start.env, start.task, start.group, start.seat),
        parts=episode.parts,
        ending=episode.ending,
        turns=attempt.turns,
        calls=len(attempt.calls),
        worked=sum(call.status is Status.OK for call in attempt.calls),
        tokens=episode.sampled_tokens,
        surprise=-sum(float(row.logprobs[row.sampled].sum(dtype=np.float64)) for row in episode.rows),
        rows=len(episode.rows),
    )


def medians_of(facts: Sequence[Facts]) -> tuple[float, float]:
    """Of tokens a turn and of calls: what an episode's mode is relative to."""
    spoken = [one for one in facts if one.tokens]
    if not spoken:
        return 0.0, 0.0
    return float(np.median([one.tokens_per_turn for one in spoken])), float(np.median([one.calls for one in spoken]))


def mode_metrics(facts: Sequence[Facts], medians: tuple[float, float]) -> dict[str, float]:
    """The share of each mode but mixed, and its success where there is one of it; nothing without tokens."""
    spoken = [(one.mode(medians), one.parts.get("success", 0.0)) for one in facts if one.tokens]
    figures = {}
    for mode in (DELIBERATIVE, REACTIVE) if spoken else ():
        own = [success for name, success in spoken if name == mode]
        figures[f"modes/{mode}"] = len(own) / len(spoken)
        if own:
            figures[f"modes/{mode}/success"] = float(np.mean(own))
    return figures


def episode_metrics(facts: Sequence[Facts], medians: tuple[float, float] | None = None) -> dict[str, float]:
    """Figures of some episodes; modes are relative to `medians`, or to these episodes' own."""
    if not facts:
        return {}
    tokens, calls = sum(one.tokens for one in facts), sum(one.calls for one in facts)
    figures: dict[str, float] = {
        "completions/clipped_ratio": _mean([one.ending is Ending.LENGTH_LIMIT for one in facts]),
        "episodes/turns": _mean([one.turns for one in facts]),
        "episodes/turn_limit": _mean([one.ending is Ending.TURN_LIMIT for one in facts]),
        "episodes/extra_rows": _mean([max(0, one.rows - 1) for one in facts]),
        "tools/call_frequency": calls / len(facts),
        "tools/failure_frequency": sum(one.calls - one.worked for one in facts) / max(1, calls),
    }
    if tokens:
        figures |= {
            # Mean surprise of what was sampled: an unbiased estimate of the entropy at the sampling temperature.
            "entropy": sum(one.surprise for one in facts) / tokens,
            "completions/mean_length": tokens / len(facts),
            "completions/max_length": max(one.tokens for one in facts),
            "completions/tokens_per_turn": tokens / max(1, sum(one.turns for one in facts if one.tokens)),
            **mode_metrics(facts, medians or medians_of(facts)),
        }
    return figures | part_means(facts)


def part_means(facts: Sequence[Facts]) -> dict[str, float]:
    """Each part of the environment's reward, success among them."""
    names = dict.fromkeys(name for one in facts for name in one.parts)  # A mixture's may differ.
    return {f"rewards/{name}/mean": _mean([one.parts[name] for one in facts if name in one.parts]) for name in names}


def gap_metrics(facts: Sequence[Facts]) -> dict[str, float]:
    """pass@k less avg@k of whole groups: what is found by trying k times and not by trying once."""
    groups: dict[Hashable, list[float]] = {}
    for one in facts:
        groups.setdefault(one.group, []).append(one.parts.get("success", 0.0))
    most = max(map(len, groups.values()), default=0)
    return {GAP: float(gap_at_k(list(groups.values()), most).mean())} if most > 1 else {}


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Figures of what is learned from in a batch, and of all that was played for it."""
    broken = float(sum(scored.terms is None for scored in batch.played))
    facts = [facts_of(scored.episode) if scored.terms is not None else None for scored in batch.played]
    rated = [
        (one, scored)
        for one, scored in zip(facts, batch.played, strict=True)
        if one is not None and not scored.episode.start.greedy
    ]
    played = [one for one, _ in rated]
    if not batch.samples:  # A sampler kept no group: there is nothing to learn from, and it is counted.
        nothing = {"frac_reward_zero_std": 1.0, "episodes/broken": broken, "num_tokens": 0.0}
        reward = {"reward": _mean([scored.reward for _, scored in rated])} if rated else {}
        return {**reward, **nothing, **episode_metrics(played), **judged_figures(batch.played), **batch.figures}
    rewards = batch.rewards
    learned = [one for sample in batch.samples if (one := facts[sample.place]) is not None]
    figures = {
        "reward": rewards.mean(),
        "reward_std": np.mean([rewards[batch.groups == group].std() for group in np.unique(batch.groups)]),
        "frac_reward_zero_std": dead_share(rewards, batch.groups),
        **episode_metrics(learned),
        "episodes/broken": broken,
        "num_tokens": sum(batch.lengths),
        # Of all groups: those that are left out or copied would say more of the sampler than of the agent.
        **part_means(played),
        **gap_metrics(played),
    }
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


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _of_seats(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success and reward of each seat, whether it is trained or not."""
    figures: dict[str, float] = {}
    for seat in sorted({episode.start.seat for episode in episodes if episode.start.seat is not None}):
        own = [episode for episode in episodes if episode.start.seat == seat]
        figures[f"seats/{seat}/success"] = sum(episode.parts["success"] for episode in own) / len(own)
        figures[f"seats/{seat}/reward"] = sum(episode.reward or 0.0 for episode in own) / len(own)
        figures[f"seats/{seat}/cut_short"] = sum(bool(episode.fault) for episode in own) / len(own)
    return figures
