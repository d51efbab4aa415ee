"""Reagent-U (arXiv 2601.22154): G first attempts at each task, and after each a second attempt that reads its critique.

The prompt of a second attempt is followed by the first attempt and its critique, which are never trained on. All 2G
rewards of a task are compared with one another. A second attempt starts as soon as its critique is ready, even if other
first attempts still run. Left out: writing critiques, which a judge does (`trainers.reward`), and games, in which an
episode has several agents.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated

import numpy as np

from palaestra.episode import Message, Start
from palaestra.shortening import cut, shortened
from palaestra.trainers.batch import Batch, Scored
from palaestra.trainers.reward.terms import response_length
from palaestra.trainers.samplers.group_sampler import Compared, Groups, InOrder, spread
from palaestra.trainers.samplers.sampler import TaskDraw
from palaestra.trainers.samplers.task_of_group import TaskCount, evenly
from palaestra.trainers.validation import COUNT, check_fields

_REQUEST = """Your attempt above was reviewed. The review says:

{critique}

Now solve the task again from its beginning. Your new attempt alone is graded: call the tools again for whatever you
need, and give the whole answer."""
_LETTERS = 3.0
"""Characters per token, assumed for an attempt without sampled tokens."""
_OF_CRITIQUE = 4
"""The critique may take one in this many tokens of a prefix."""


@dataclass(frozen=True, slots=True)
class Refined:
    """Each attempt is followed by a second one that reads its critique: a group has twice num_generations members."""

    max_prefix_tokens: Annotated[int, COUNT] = 13_824
    """Approximate maximum tokens of a first attempt with its critique, as the second one reads them. In a longer one,
    tool results are cut first."""
    max_rounds: Annotated[int, COUNT] = 1
    """Maximum number of groups played for a batch, as a multiple of num_prompts; above 1 a group whose members are all
    equal is replaced."""
    compared: Compared = "reward"
    """Value that must differ within a group if max_rounds is above 1."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> "Refining":
        """Return a sampler for an environment or for a mixture. Raise `ConfigError` for a game."""
        groups.require_one_seat(env, "refined", "second attempts")
        return Refining(evenly(env, task_count, groups.num_prompts, seed), groups, self)


class Refining(InOrder):
    """Sampler of groups in order, with first and second attempts. The seed of a start says which of both it is."""

    def __init__(self, draw: TaskDraw, groups: Groups, options: Refined) -> None:
        self._options, self._firsts = options, groups.num_generations
        both = replace(groups, num_generations=2 * self._firsts)
        differs = partial(spread, compared=options.compared)
        super().__init__(draw, both, differs if options.max_rounds > 1 else lambda _: True, options.max_rounds)

    def observe(self, scored: Scored) -> None:
        """Record a scored episode. After a first attempt, queue its second attempt."""
        start = scored.episode.start
        if self.still_needed(start) and not self._is_second(start):
            self._queue.append(second_start(scored, start.seed + self._firsts, self._options.max_prefix_tokens))
        super().observe(scored)

    def batch(self) -> Batch | None:
        """Return the batch if it is complete, with separate metrics for first and second attempts."""
        batch = super().batch()
        if batch is None:
            return None
        firsts = [episode for episode in batch.rollouts if not self._is_second(episode.episode.start)]
        refined = [episode for episode in batch.rollouts if episode.episode.start.prefix]
        figures = {
            "sampler/refined": float(len(refined)),
            "sampler/without_critique": float(len(batch.rollouts) - len(firsts) - len(refined)),
            "sampler/success_first": _success(firsts),
            "sampler/success_refined": _success(refined),
        }
        return replace(batch, figures={**batch.figures, **figures})

    def _starts(self, group: int) -> Iterator[Start]:
        return islice(super()._starts(group), self._firsts)

    def _place(self, start: Start) -> int:
        """Return the seed as sort key, because the order of scoring depends on the judge's response time."""
        return start.seed

    def _is_second(self, start: Start) -> bool:
        return start.seed % self.groups.num_generations >= self._firsts


def second_start(first: Scored, seed: int, max_prefix_tokens: int) -> Start:
    """Return a start of the same task with the first attempt and its critique as prefix, or without one if there is no
    critique.

    The prefix is cut to about `max_prefix_tokens`, with the first attempt's number of characters per token.
    """
    episode = first.episode
    plain = replace(episode.start, seed=seed, prefix=())
    critique = str(first.remarks.get("critique") or "").strip()
    messages = episode.attempt.messages
    begins = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), None)
    if not critique or begins is None:
        return plain
    first_turns = messages[begins:]
    tokens = response_length(episode)
    letters = sum(len(str(message["content"])) for message in first_turns) / tokens if tokens else _LETTERS
    room = int(max_prefix_tokens * max(1.0, letters))  # An attempt of an end token only is not a valid estimate.
    request = _REQUEST.format(critique=cut(critique, room // _OF_CRITIQUE))
    request_message: Message = {"role": "user", "content": request}
    return replace(plain, prefix=(*shortened(first_turns, room - len(request)), request_message))


def _success(scored: list[Scored]) -> float:
    """Return the mean success of the episodes with a reward; 0 if there are none."""
    successes = [episode.episode.parts["success"] for episode in scored if episode.episode.reward is not None]
    return float(np.mean(successes)) if successes else 0.0
