"""Progress reports of a run: its steps, the progress of longer stages, and notes. Reports do not affect the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from palaestra.episode import Episode
from palaestra.record import Lesson


@dataclass(frozen=True, slots=True)
class Progress:
    """Report of one step of a stage, or a note for the user."""

    stage: str
    step: int
    total: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics by name. The caller that receives the steps of `train` may add to them before the step is logged."""
    note: str = ""
    """A sentence to print on its own line, such as a restart or a skipped update."""
    rollouts: Sequence[tuple[Episode, tuple[Lesson, ...]]] = ()
    """The episodes of this step, each with its lessons; the tuple is empty for an episode that was not trained on."""
    causes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Causes of this step's failed episodes, as `Causes.as_dict` returns them."""


OnProgress = Callable[[Progress], object]
"""Function that receives each Progress as it happens, like a logger."""


def ignore(progress: Progress) -> None:
    """Ignore the progress."""
