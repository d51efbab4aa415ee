"""Reagent-U (arXiv 2601.22154): of each task G attempts, and as many again that have read their critiques.

A second attempt follows the first one and its critique, which are context and never trained on; all 2G rewards of a
task are compared with one another. It begins as soon as its critique is there, not when all first attempts have ended.
Left out: who writes critiques (the judge that `scoring` asks), and games, where an attempt is not one agent's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated

import numpy as np

from palaestra.episode import Message, Start
from palaestra.errors import ConfigError
from palaestra.shortening import cut, shortened
from palaestra.trainers.batch import Batch, Scored
from palaestra.trainers.checked import COUNT, check_fields
from palaestra.trainers.sampling.draws import TaskCount, evenly
from palaestra.trainers.sampling.in_order import Compared, Groups, InOrder, spread
from palaestra.trainers.sampling.sampler import Draw
from palaestra.trainers.scoring.terms import response_length

_REQUEST = """Your attempt above was reviewed. The review says:

{critique}

Now solve the task again from its beginning. Your new attempt alone is graded: call the tools again for whatever you
need, and give the whole answer."""
_LETTERS = 3.0
"""Characters a token, where an attempt has no tokens to count."""
_OF_CRITIQUE = 4
"""One in so many tokens of a prefix may be the critique's, with the request."""


@dataclass(frozen=True, slots=True)
class Refined:
    """Each attempt is made again with its critique, so a group has twice num_generations members."""

    max_prefix_tokens: Annotated[int, COUNT] = 13_824
    """Longest first attempt with its critique, as the second one reads them, about. Of a longer one tool results are
    cut first."""
    max_rounds: Annotated[int, COUNT] = 1
    """Groups played for a batch at most, by num_prompts; above 1 a group whose members are all equal is replaced."""
    compared: Compared = "reward"
    """What must differ within a group, where max_rounds is above 1."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> "Refining":
        """A sampler, as `Uniform` makes one."""
        if groups.seats:
            raise ConfigError(
                f"{env} is a game of the seats {', '.join(groups.seats)}, and second attempts are made of one agent's "
                "episodes alone; use another sampler (--recipe.sampler uniform)"
            )
        if groups.greedy:
            raise ConfigError("the sampler refined plays no greedy attempt, which the advantage greedy-baseline needs")
        return Refining(evenly(env, task_count, groups.num_prompts, seed), groups, self)


class Refining(InOrder):
    """Groups in order, of first attempts and second ones. Which is which follows from a start's seed."""

    def __init__(self, draw: Draw, groups: Groups, options: Refined) -> None:
        self._options, self._firsts = options, groups.num_generations
        both = replace(groups, num_generations=2 * self._firsts)
        differs = partial(spread, compared=options.compared)
        super().__init__(draw, both, differs if options.max_rounds > 1 else lambda _: True, options.max_rounds)

    def heard(self, scored: Scored) -> None:
        """After a first attempt its second one is next."""
        start = scored.episode.start
        if self.wanted(start) and not self._is_second(start):
            self._queue.append(second_start(scored, start.seed + self._firsts, self._options.max_prefix_tokens))
        super().heard(scored)

    def batch(self) -> Batch | None:
        """The batch; its figures tell first attempts from second ones."""
        made = super().batch()
        if made is None:
            return None
        firsts = [one for one in made.played if not self._is_second(one.episode.start)]
        refined = [one for one in made.played if one.episode.start.prefix]
        figures = {
            "sampler/refined": float(len(refined)),
            "sampler/without_critique": float(len(made.played) - len(firsts) - len(refined)),
            "sampler/success_first": _success(firsts),
            "sampler/success_refined": _success(refined),
        }
        return replace(made, figures={**made.figures, **figures})

    def _starts(self, group: int) -> Iterator[Start]:
        return islice(super()._starts(group), self._firsts)

    def _place(self, start: Start) -> int:
        """By its number: when a second attempt ends depends on when its judge answered."""
        return start.seed

    def _is_second(self, start: Start) -> bool:
        return start.seed % self.groups.num_generations >= self._firsts


def second_start(first: Scored, seed: int, max_prefix_tokens: int) -> Start:
    """A start of the same task, after the first attempt and its critique; without a critique, a plain one.

    How many characters a token has is taken from the first attempt.
    """
    episode = first.episode
    plain = replace(episode.start, seed=seed, prefix=())
    critique = str(first.remarks.get("critique") or "").strip()
    messages = episode.attempt.messages
    begins = next((place for place, one in enumerate(messages) if one["role"] == "assistant"), None)
    if not critique or begins is None:
        return plain
    said = messages[begins:]
    tokens = response_length(episode)
    letters = sum(len(str(one["content"])) for one in said) / tokens if tokens else _LETTERS
    room = int(max_prefix_tokens * max(1.0, letters))  # An attempt of nothing but its end says nothing of others.
    request = _REQUEST.format(critique=cut(critique, room // _OF_CRITIQUE))
    asked: Message = {"role": "user", "content": request}
    return replace(plain, prefix=(*shortened(said, room - len(request)), asked))


def _success(scored: list[Scored]) -> float:
    """Mean success of those that have one; 0 without any."""
    found = [one.episode.parts["success"] for one in scored if one.episode.reward is not None]
    return float(np.mean(found)) if found else 0.0
