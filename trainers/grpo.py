"""Group relative policy optimization as one loop: play, score, compare, learn, publish the new weights.

Other algorithms use the same loop; their recipes name other functions. Not here: the choice of tasks (`samplers`), the
reward of an episode (`reward`), the update of the weights from advantages (`learn.update`), logs and checkpoints
(`run.session`), and evaluation (`evaluation.during_training`).
"""

import gc
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext

from palaestra.agents.local_model import LocalModel
from palaestra.agents.policies.table import free_until_play, trained_engines
from palaestra.causes import Causes
from palaestra.episode import Episode
from palaestra.mixture import Mixture, read_mixture
from palaestra.protocols import Arena
from palaestra.record import Lesson
from palaestra.trainers.audit.advantage_checks import advantage_findings, shape_findings
from palaestra.trainers.audit.audit_findings import require
from palaestra.trainers.audit.collapse import Collapse
from palaestra.trainers.audit.solved import Solved
from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.recipes import Recipe
from palaestra.trainers.evaluation.during_training import (
    ends_early,
    evaluation_due,
    evaluations_summary,
    measure_after,
    measure_before,
    measure_on_the_way,
)
from palaestra.trainers.evaluation.evaluate import Both
from palaestra.trainers.evaluation.metrics import batch_metrics, mixture_metrics, mixture_shares
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.online_audit import audited
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.group_advantages import Advantages, damped
from palaestra.trainers.rollout.rollouts import Rollouts
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.interrupts import Interrupts
from palaestra.trainers.run.memory_errors import naming_memory_settings
from palaestra.trainers.run.progress import OnProgress, Progress, ignore
from palaestra.trainers.run.session import RunSession
from palaestra.trainers.run.tracking import Trackers
from palaestra.trainers.scale.ranks import noticing_loss
from palaestra.trainers.setup.open_learner import keep_model, open_learner
from palaestra.trainers.setup.open_run import open_arena
from palaestra.trainers.setup.run_summary import synopsis


def train(
    run: Run,
    *,
    learner: Learner[GRPOConfig] | None = None,
    model: LocalModel | None = None,
    arena: Arena | None = None,
    interrupts: Interrupts | None = None,
    on_progress: OnProgress = ignore,
) -> Generator[Progress, None, None]:
    """Train a run from its present step to its end. Yield each step before it is logged and saved.

    If `learner`, `model` or `arena` is None, it is opened as the run's config says. After each yielded step the caller
    may add metrics to it and change the learner. If the caller closes the generator early, the last step is logged and
    saved as a checkpoint.
    """
    if run.finished:
        return
    with noticing_loss(), Trackers(run, on_progress) as trackers:
        learner = learner or open_learner(run, model, on_progress)
        config, recipe, mixture = learner.config, learner.config.recipe, read_mixture(learner.config.env.env_id)
        _report_begin(learner, on_progress)
        before = measure_before(run, learner)
        _report(run.notes, learner, on_progress)
        collapse, solved, due = Collapse(config.collapse), Solved(run.metrics), _saved_steps(learner)

        with (
            closing(open_arena(config)) if arena is None and learner.plays else nullcontext(arena) as arena,
            RunSession(run, learner, due, interrupts, trackers, on_progress) as session,
            Rollouts(learner, arena) as rollouts,
            _loaded_for_good(),
        ):
            learner.publish()
            while True:
                if evaluation_due(run, learner):  # This includes a last step that was not evaluated before a kill.
                    rollouts.pause()
                    with session.interruptible():
                        measure_on_the_way(run, learner, on_progress)
                if learner.step == learner.steps or ends_early(run, learner, solved.now, on_progress):
                    break

                with session.interruptible():
                    learner.require_gradients()
                    collapse.require_none()
                    began = time.perf_counter()
                    with naming_memory_settings("playing"):
                        batch = rollouts.next()  # Play. Each episode is scored as it ends.
                    play_seconds = time.perf_counter() - began
                    metrics = _batch_metrics(learner, batch, mixture) | {"time/play": play_seconds}

                    with naming_memory_settings("learning"):
                        scores = score_batch(learner, batch)  # The log-probs and values that the recipe asks for.
                        advantages = _audited_advantages(recipe, batch, scores)
                        figures, lessons = update(learner, batch, advantages, scores)
                    rollouts.publish()  # The engine samples from the new weights.
                    learner.state = rollouts.learned_from(batch)

                    step_seconds = time.perf_counter() - began
                    metrics |= figures | {"time/learn": step_seconds - play_seconds, "step_time": step_seconds}
                    note = "; ".join(filter(None, (_note(metrics), collapse.check(metrics), solved.check(metrics))))
                    pairs, causes = _with_lessons(batch, lessons), batch.causes.as_dict()
                    step = Progress("grpo", learner.step, learner.steps, metrics, note, pairs, causes)

                try:
                    yield step
                finally:  # The caller may have stopped here, added metrics, or changed the weights.
                    if learner.torn:
                        rollouts.publish()
                    session.log(step)
                session.save_when_due()

        _finish(run, learner, before)
        trackers.send()


def train_learner(
    learner: Learner[GRPOConfig], arena: Arena, on_progress: OnProgress = ignore
) -> Generator[Progress, None, None]:
    """Train a learner in an arena as `train` does, but without a run folder: no logs, checkpoints or evaluation."""
    return train(Run.unwritten(learner.config), learner=learner, arena=arena, on_progress=on_progress)


def _batch_metrics(learner: Learner[GRPOConfig], batch: Batch, mixture: Mixture | None) -> dict[str, float]:
    """Return the metrics of a played batch. Raise `TrainingHalted` if the batch cannot be trained on."""
    metrics = batch_metrics(batch, frozenset(learner.config.env.train_seats)) | audited(learner, batch)
    return metrics | (mixture_metrics(mixture, batch) if mixture else {})


def _audited_advantages(recipe: Recipe, batch: Batch, scores: BatchScores) -> Advantages:
    """Return the advantages of a batch, weighted and bounded (`damped`). Raise `TrainingHalted` if a check fails."""
    raw_advantages = recipe.advantage(batch, scores)
    require(shape_findings(batch, scores, raw_advantages))
    advantages = damped(raw_advantages, batch, recipe.max_advantage)
    require(advantage_findings(recipe, batch, scores, advantages))
    return advantages


def _finish(run: Run, learner: Learner[GRPOConfig], before: Both | None) -> None:
    """Evaluate and export the trained model, and write the summary of the run."""
    after = measure_after(run, learner)
    if all(engine.shares_weights for engine in trained_engines(learner.agent)):  # Others would need them again.
        free_until_play(learner.agent)  # Merging an adapter takes a copy of all weights.
    keep_model(run, learner)
    measured = {name: both.figures() for name, both in (("before", before), ("after", after)) if both is not None}
    shares = {"mixture": mixture_shares(run.metrics)} if read_mixture(learner.config.env.env_id) else {}
    of_after = () if after is None else (after.sampled.causes, after.greedy.causes)
    causes = {"causes": Causes([run.causes.as_dict(), *of_after]).as_dict()}
    run.finish({**measured, **evaluations_summary(run), "curve": run.curve, **shares, **causes})


def _report_begin(learner: Learner[GRPOConfig], on_progress: OnProgress) -> None:
    if on_progress is ignore:  # Parts of a recipe without a name cannot be described, and need not be.
        return
    resumed = [f"going on after step {learner.step} of {learner.steps}"] if learner.step else []
    _report([synopsis(learner), *resumed], learner, on_progress)


def _report(notes: Sequence[str], learner: Learner[GRPOConfig], on_progress: OnProgress) -> None:
    for note in notes:
        on_progress(Progress("grpo", learner.step, learner.steps, note=note))


def _saved_steps(learner: Learner[GRPOConfig]) -> Callable[[int], bool]:
    """Return a function that says whether a step gets a checkpoint. Steps to evaluate get one too: a resumed run can
    evaluate a step only from its checkpoint.
    """
    checkpoint_every = learner.config.save.checkpoint_every or learner.steps
    eval_steps = learner.config.eval.eval_steps
    return lambda step: step % checkpoint_every == 0 or bool(eval_steps and step % eval_steps == 0)


@contextmanager
def _loaded_for_good() -> Iterator[None]:
    """Exclude all loaded objects from garbage collection during a `with` block. They live as long as the run, and each
    collection would need a quarter of a second to visit them. What the caller has excluded stays excluded.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _note(metrics: dict[str, float]) -> str:
    """Return a note on unusual metrics of a step; "" if there are none."""
    if metrics["skipped_steps"]:
        return f"optimizer steps skipped, for their gradients were no numbers: {metrics['skipped_steps']:.0f}"
    if metrics["frac_reward_zero_std"] == 1:
        return "nothing was learned from rewards in this step: within every group they were equal"
    return ""


def _with_lessons(batch: Batch, lessons: list[Lesson]) -> list[tuple[Episode, tuple[Lesson, ...]]]:
    """Return each played episode with its lessons: one per sample, none if no sample refers to the episode."""
    lessons_by_place: list[list[Lesson]] = [[] for _ in batch.rollouts]
    for sample, lesson in zip(batch.samples, lessons, strict=True):
        lessons_by_place[sample.place].append(lesson)
    return [
        (scored.episode, tuple(episode_lessons))
        for scored, episode_lessons in zip(batch.rollouts, lessons_by_place, strict=True)
    ]
