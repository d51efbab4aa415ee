"""DAPO's dynamic sampling (arXiv 2503.14476): a group whose members all have the same outcome is dropped and replaced.

Tokens of dropped groups are counted. The choice of groups does not depend on timing, so a run can be repeated.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field

from palaestra.trainers.samplers.group_sampler import Compared, Groups, InOrder, spread
from palaestra.trainers.samplers.task_of_group import TaskCount, evenly
from palaestra.trainers.validation import COUNT, check_fields


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Batches of groups whose members differ. A batch is smaller if `max_rounds` rounds had too few such groups."""

    compared: Compared = "success"
    """Value that must differ within a group: success, as DAPO's accuracy, or the training reward with all its terms (a
    tool bonus alone makes a group of failures differ)."""
    max_rounds: Annotated[int, COUNT] = 10
    """Maximum number of groups played for a batch, as a multiple of num_prompts."""
    give_up: Annotated[int | None, Field(ge=2)] = None
    """Stop playing a group after this many members that all ended alike. It saves tokens but loses rare successes: with
    4, and a task solved once in ten, two thirds of the groups that would have been kept. None plays all members."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> InOrder:
        """Return a sampler for an environment or for a mixture."""
        keeps = partial(spread, compared=self.compared)
        draw = evenly(env, task_count, groups.num_prompts, seed)
        return InOrder(draw, groups, keeps, self.max_rounds, self.give_up, self.compared)
