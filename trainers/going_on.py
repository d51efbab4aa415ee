"""A learner whose steps are written down, so that a run ends at any moment and goes on where it was.

GRPO, imitation and whatever else learns share it: `newest_of` finds where a run stands, `recorded` takes it further.
"""

from collections.abc import Callable, Generator, Iterator

from palaestra.agents.adapters import adapted, save_adapter
from palaestra.agents.local_model import export
from palaestra.errors import TrainingHalted, UsageError
from palaestra.trainers.checked import changed
from palaestra.trainers.checkpoint import Checkpoint, newest, save
from palaestra.trainers.durable import remove_folder, whole_folder
from palaestra.trainers.interrupts import Interrupts
from palaestra.trainers.learner import Config, Learner
from palaestra.trainers.progress import Progress
from palaestra.trainers.provenance import versions
from palaestra.trainers.resume import refused
from palaestra.trainers.run import Run
from palaestra.trainers.scale.shards import whole_model


def newest_of(run: Run) -> Checkpoint | None:
    """The newest checkpoint of a run that is whole; None where it has none."""
    found, faults = newest(run.checkpoints)
    if found is None and faults:
        listed = "; ".join(f"{path}: {fault}" for path, fault in faults.items())
        raise UsageError(
            f"no checkpoint in {run.checkpoints} is whole: {listed}; put one back, or remove that folder to begin "
            "again at step 0"
        )
    if found is None:
        return None
    if wrong := refused(changed(run.config, found.config), run.config):
        raise UsageError(
            f"{found.path} was made with other options than {run.folder / 'config.json'} says: {wrong}; put back the "
            "options, or the checkpoints of this run"
        )
    for path, fault in faults.items():
        run.notes.append(f"{path} is damaged ({fault}) and was removed; step {found.step} is gone on from")
        if run.writes:
            remove_folder(path)
    now = versions()
    strange = [name for name in ("python", "machine", "torch", "transformers") if found.versions.get(name) != now[name]]
    if strange:
        listed = ", ".join(f"{name} {found.versions.get(name)} (now {now[name]})" for name in strange)
        run.notes.append(f"{found.path} was made with {listed}; the last bits of the figures may change")
    return found


def recorded(
    run: Run, learner: Learner[Config], stage: Iterator[Progress], due: Callable[[int], bool], interrupts: Interrupts
) -> Generator[Progress, None, None]:
    """Let a stage go on to its last step, writing each one down, with a checkpoint of those that are `due`, when it is
    interrupted, when nobody asks for more, and before an error ends it.

    While episodes are played nothing has changed since the last step, so an interrupt is obeyed at once; from a step's
    first change of the weights until it is written down, it waits.
    """
    written = saved = learner.step

    def moved() -> bool:
        return learner.torn or learner.step != written

    def keep() -> None:
        nonlocal saved
        if saved != written and (run.writes or learner.ranks.count > 1):
            save(learner, run.checkpoints)
        saved = written

    with interrupts.held():
        while True:
            try:
                with interrupts.held(moved):
                    progress = next(stage, None)
            except (KeyboardInterrupt, TrainingHalted):
                # Where there are ranks, the others do not know of it, and could not take part.
                if not moved() and learner.ranks.count == 1:
                    keep()
                raise
            if progress is None:
                return
            run.add(progress)
            written = learner.step
            if due(written) or written == learner.steps or interrupts.agreed() is not None:
                keep()
            try:
                yield progress
            except GeneratorExit:
                keep()
                raise
            if interrupts.agreed() is not None:
                keep()
            interrupts.check()


def keep_model(run: Run, learner: Learner[Config]) -> None:
    """Export what a run has trained: the model, whole; and of an adapter, that alone too."""
    model = whole_model(learner.model, learner.ranks)
    if run.writes:
        with whole_folder(run.model) as folder:
            export(model, learner.tokenizer, folder)
        if adapted(learner.model):
            with whole_folder(run.adapter) as folder:
                save_adapter(learner.model, learner.tokenizer, folder)
