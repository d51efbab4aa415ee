"""Work between two steps of a run: log the step, save a checkpoint when it is due, and obey interrupts.

GRPO and imitation share this module, so both can stop at any moment and be resumed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic

from palaestra.errors import PalaestraError
from palaestra.trainers.learn.learner import Learner, RunConfigT
from palaestra.trainers.run.checkpoint import save
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.run.progress import OnProgress, Progress
from palaestra.trainers.run.tracking import Trackers


class RunSession(Generic[RunConfigT]):
    """Context manager around the loop of a run. Signals are only stored, except in `interruptible` blocks.

    If the loop ends early, by an interrupt, an error or a caller that stops iterating, a checkpoint of the last logged
    step is saved, unless the weights have changed since that step.
    """

    def __init__(
        self,
        run: Run,
        learner: Learner[RunConfigT],
        due: Callable[[int], bool],
        interrupts: Interrupts | None,
        trackers: Trackers,
        on_progress: OnProgress,
    ) -> None:
        """Create the session. `due(step)` returns whether a step gets a checkpoint; the last step always does."""
        self._run, self._learner, self._due = run, learner, due
        self._interrupts = interrupts or Interrupts()
        self._trackers, self._on_progress = trackers, on_progress
        self._logged = self._saved = learner.step

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within the block, let a signal raise `Interrupted` at once until the first weight changes. After that, store
        the signal until the next block.

        If a signal was stored before, save a checkpoint and raise `Interrupted`. Every rank must enter the same blocks.
        """
        # The ranks agree once. A signal between two agreements would end the run without a checkpoint.
        if (number := self._interrupts.agreed()) is not None:
            self.save()
            raise Interrupted(number)
        with self._interrupts.hold(self._weights_changed):
            yield

    def log(self, progress: Progress) -> None:
        """Write a step to the run's files, report it, and send it to the trackers."""
        self._run.add(progress)
        self._logged = self._learner.step
        self._on_progress(progress)
        self._trackers.send()

    def save_when_due(self) -> None:
        """Save a checkpoint if the step is due or the last, or if an interrupt is pending."""
        step = self._logged
        if self._due(step) or step == self._learner.steps or self._interrupts.agreed() is not None:
            self.save()

    def save(self) -> None:
        """Save a checkpoint of the last logged step, once. A failed save is not repeated on exit."""
        due, self._saved = self._saved != self._logged, self._logged
        if due and (self._run.writes or self._learner.ranks.count > 1):
            save(self._learner, self._run.checkpoints)

    def __enter__(self) -> "RunSession[RunConfigT]":
        self._held = self._interrupts.hold()
        self._held.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Other ranks do not see an error or a signal of this rank, and could not take part in a checkpoint.
            may_save = self._learner.ranks.count == 1 or isinstance(error, GeneratorExit)
            if error is not None and may_save and not self._weights_changed():
                self._save_after(error)
        finally:
            self._held.__exit__(kind, error, trace)

    def _save_after(self, error: BaseException) -> None:
        """Save a checkpoint before the error is raised. If saving fails too, the first error is still the one that is
        raised.
        """
        try:
            self.save()
        except (PalaestraError, OSError) as second:
            error.add_note(f"No checkpoint of step {self._logged} was saved: {second}")

    def _weights_changed(self) -> bool:
        return self._learner.torn or self._learner.step != self._logged
