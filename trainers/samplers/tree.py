"""Tree sampling: some episodes of a group begin as branches of its earlier ones, between two turns.

A group plays `trees` episodes from the beginning, and then rounds of branches until it has `num_generations` members.
A branch continues from a snapshot of the environment after a tool result, with the messages and tokens so far, so the
turns before it are sampled once. Which turn that is, a round decides when all earlier members of the group have ended,
so the choice does not depend on timing. Two rules: at random (Tree-GRPO, arXiv 2509.21240), or where the entropy rose
(ARPO, arXiv 2507.19849).

Each member is a whole episode. The learner trains on the shared tokens in each of them, with its advantage: a shared
turn gets the sum over the episodes that go through it, in one computation (`learn.prefix_trie`). Left out: games.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from palaestra.episode import Branch, Episode, Start
from palaestra.errors import ConfigError
from palaestra.trainers.batch import Batch, Scored
from palaestra.trainers.losses.token_advantages import turn_of_tokens
from palaestra.trainers.samplers.group_sampler import Groups, InOrder
from palaestra.trainers.samplers.sampler import TaskDraw
from palaestra.trainers.samplers.task_of_group import TaskCount, evenly
from palaestra.trainers.validation import COUNT, check_fields


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups of trees: the first episodes of a task, and branches of them that share their first turns."""

    trees: Annotated[int | None, COUNT] = None
    """Number of episodes of a group that begin at the beginning; None for half of num_generations. As many as
    num_generations make no branch."""
    rounds: Annotated[int, COUNT] = 1
    """Rounds of branches; the branches of a group are divided evenly among them."""
    branch_at: Literal["random", "entropy"] = "random"
    """Turn at which a branch begins: the same number in each tree, at random turns; or each turn in order, with the
    probability `branch_probability + branch_slope * rise`, and what is left of the group begins at the beginning."""
    branch_probability: float = 0.5
    """Probability of a branch at a turn whose entropy is that of the first turn, with `entropy`."""
    branch_slope: float = 0.2
    """Increase of this probability for each nat that the entropy rose."""
    entropy_tokens: Annotated[int, COUNT] = 20
    """Tokens at the beginning of a turn that its entropy is estimated from: their mean surprise, which has no bias."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> InOrder:
        """Return a sampler for an environment or for a mixture. Raise `ConfigError` for a game."""
        groups.require_one_seat(env, "tree", "branches")
        if (self.trees or 0) > groups.num_generations:
            raise ConfigError(
                f"trees is {self.trees} and num_generations is {groups.num_generations}; expected at most as many trees"
            )
        draw = evenly(env, task_count, groups.num_prompts, seed)
        is_plain = self.ends_of_rounds(groups.num_generations)[0] == groups.num_generations
        return InOrder(draw, groups) if is_plain else Branching(draw, groups, self, seed)

    def ends_of_rounds(self, num_generations: int) -> list[int]:
        """Return the number of members at which each round of branches begins, and at last `num_generations`."""
        trees = self.trees or max(1, num_generations // 2)
        branches = num_generations - trees
        return [trees + branches * done // self.rounds for done in range(self.rounds + 1)]


class Node(NamedTuple):
    """A turn at which a branch may begin."""

    episode: Episode
    turn: int
    rise: float
    """Entropy of the turn, less that of the first turn of its episode."""


class Branching(InOrder):
    """Sampler of groups in order, whose later members begin as branches of earlier ones."""

    def __init__(self, draw: TaskDraw, groups: Groups, options: Tree, seed: int) -> None:
        self._options, self._seed = options, seed
        self._ends = options.ends_of_rounds(groups.num_generations)
        super().__init__(draw, groups)

    def observe(self, scored: Scored) -> None:
        """Record a scored episode. When a round of its group has ended, queue the next round."""
        super().observe(scored)
        number = self._number(scored.episode.start)
        members = self._heard.get(number, [])
        if len(members) not in self._ends[:-1]:
            return
        episodes = sorted((member.episode for _, member in members), key=lambda episode: episode.start.key)
        end = next(end for end in self._ends if end > len(members))
        self._queue.extend(self._branches(number, episodes, range(len(members), end)))

    def batch(self) -> Batch | None:
        """Return the batch if it is complete, without the points of branches, which hold memory."""
        batch = super().batch()
        if batch is None:
            return None
        shared = sum(int((turn_of_tokens(e) < e.start.branch.turn).sum()) for e in _branches_of(batch.rollouts))
        figures = {"sampler/branches": float(len(_branches_of(batch.rollouts))), "sampler/shared_tokens": float(shared)}
        rollouts = tuple(
            replace(scored, episode=replace(scored.episode, branch_points={})) for scored in batch.rollouts
        )
        return replace(batch, rollouts=rollouts, figures={**batch.figures, **figures})

    def _starts(self, group: int) -> Iterator[Start]:
        starts = list(super()._starts(group))[: self._ends[0]]
        return iter([replace(start, branch=Branch()) for start in starts])

    def _branches(self, group: int, episodes: Sequence[Episode], places: range) -> list[Start]:
        """Return the starts of a round, for these places of the group. They depend on episodes and seed alone."""
        rng = np.random.default_rng([self._seed, group, 6, places[0]])
        nodes = [
            Node(episode, turn, rise)
            for episode in episodes
            for turn, rise in rises(episode, self._options.entropy_tokens).items()
            if turn in episode.branch_points
        ]
        if self._options.branch_at == "entropy":
            return self._where_entropy_rose(rng, nodes, group, places)
        seeds = sorted({episode.start.seed for episode in episodes})
        starts = []
        for index, place in enumerate(places):
            seed = seeds[index % len(seeds)]
            of_tree = [node for node in nodes if node.episode.start.seed == seed]
            trunk = next(episode for episode in episodes if episode.start.seed == seed)
            node = of_tree[int(rng.integers(len(of_tree)))] if of_tree else Node(trunk, 0, 0.0)
            starts.append(_branch(node, place))
        return starts

    def _where_entropy_rose(self, rng: Any, nodes: list[Node], group: int, places: range) -> list[Start]:
        """Return branches of nodes, earlier turns first, until no place is left; others are new trees."""
        options, free, starts = self._options, list(places), []
        for node in sorted(nodes, key=lambda node: node.turn):
            if free and rng.random() < options.branch_probability + options.branch_slope * node.rise:
                starts.append(_branch(node, free.pop(0)))
        fresh = list(super()._starts(group))
        return [*starts, *(replace(fresh[place], branch=Branch()) for place in free)]


def rises(episode: Episode, count: int) -> dict[int, float]:
    """Return, for each turn after the first, its entropy less that of the first turn, in nats.

    The entropy of a turn is estimated by the mean surprise of its first `count` sampled tokens, which the engine gave.
    """
    turns_S = turn_of_tokens(episode)
    logprobs_S = np.concatenate([row.logprobs[row.sampled] for row in episode.rows] or [np.zeros(0, np.float32)])
    entropies = [-float(logprobs_S[turns_S == turn][:count].mean()) for turn in range(int(turns_S.max(initial=-1)) + 1)]
    return {turn: entropy - entropies[0] for turn, entropy in enumerate(entropies) if turn}


def _branch(node: Node, place: int) -> Start:
    """Return the start of a branch. Its number in the tree is its place in the group, so no two are equal."""
    start, point = node.episode.start, node.episode.branch_points.get(node.turn)
    parent = start.branch.number if start.branch else 0
    return replace(start, branch=Branch(place, parent, node.turn, point))


def _branches_of(rollouts: Sequence[Scored]) -> list[Any]:
    """Return the episodes that share the turns of another one."""
    return [episode for episode in (s.episode for s in rollouts) if episode.start.branch and episode.start.branch.turn]
