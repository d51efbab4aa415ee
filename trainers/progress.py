"""What a long-running stage tells whoever watches it. Stages are generators of Progress; nobody passes callbacks."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from palaestra.episode import Episode
from palaestra.record import Lesson

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a stage."""

    stage: str
    step: int
    total: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    """Something worth a line of its own: a restart, a skipped update."""
    played: Sequence[tuple[Episode, tuple[Lesson, ...]]] = ()
    """The episodes of this step, and what was made of each: nothing of one that was not learned from."""


def result_of(stage: Generator[Progress, None, Result]) -> Result:
    """Run a stage to its end without showing it; returns what the stage returns."""
    while True:
        try:
            next(stage)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
