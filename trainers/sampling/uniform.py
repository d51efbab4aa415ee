"""Tasks drawn evenly, and every group that is played is learned from."""

from dataclasses import dataclass

from palaestra.trainers.sampling.draws import TaskCount, evenly
from palaestra.trainers.sampling.in_order import Groups, InOrder


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every task is as likely as any other."""

    epochs: bool = False
    """Play every task once before any comes again; else each batch is drawn anew."""

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> InOrder:
        """A sampler, of an environment or of a mixture."""
        return InOrder(evenly(env, task_count, groups.num_prompts, seed, self.epochs), groups)
