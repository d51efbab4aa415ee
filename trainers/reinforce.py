"""A GRPO run from beginning to end: have an agent, measure it, train it, measure it again and keep what must survive.

Each part asks the run's folder what is done already, so that going on with a run is the same program as beginning it.
"""

import copy
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

import torch

from palaestra.agents.dialect import pinned
from palaestra.agents.local_model import LocalModel, export
from palaestra.errors import UsageError
from palaestra.protocols import Arena
from palaestra.trainers.checkpoint import Checkpoint, fingerprint, open_saved, restore
from palaestra.trainers.cold_start import raise_tiny
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.durable import whole_folder
from palaestra.trainers.going_on import keep_model, newest_of, recorded
from palaestra.trainers.grpo import train
from palaestra.trainers.interrupts import Interrupts
from palaestra.trainers.learner import Learner
from palaestra.trainers.measuring import measure_after, measure_before, measured_on_the_way, told_best
from palaestra.trainers.opening import as_opened, check_ranks, open_arena, open_model, settled, to_learn
from palaestra.trainers.progress import Progress
from palaestra.trainers.resume import trained_format
from palaestra.trainers.run import Run
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.synopsis import synopsis


def reinforce(
    run: Run, interrupts: Interrupts | None = None, opened: LocalModel | None = None
) -> Generator[Progress, None, None]:
    """Take a run from where it stands to its end. `opened` is its model, where a caller has it already."""
    learner = yield from prepare(run, opened)
    yield Progress("grpo", learner.step, learner.steps, note=synopsis(learner))
    if learner.step:
        note = f"going on after step {learner.step} of {learner.steps}"
        yield Progress("grpo", learner.step, learner.steps, note=note)
    before = measure_before(run, learner)
    for note in run.notes:
        yield Progress("grpo", learner.step, learner.steps, note=note)
    yield from practise(run, learner, interrupts)
    after = measure_after(run, learner)
    keep_model(run, learner)
    measured = {"before": before, "after": after}
    figures = {name: both.figures() for name, both in measured.items() if both is not None}
    run.finish({**figures, **told_best(run), "curve": run.curve})


def prepare(run: Run, opened: LocalModel | None = None) -> Generator[Progress, None, Learner[GRPOConfig]]:
    """Who learns in a run: from its newest checkpoint, else from its start, else `opened`, else made now.

    `run.config` may know more afterwards: the call format of the model at hand.
    """
    config, start, ranks = _config(run), run.folder / "start", here()
    check_ranks(config, ranks.count)
    found = ranks.told(lambda: newest_of(run))
    if found is not None:
        learner = _restored(found, run, config)
    else:
        if not ranks.first:
            ranks.meet()  # What has to be made or fetched, the first makes or fetches.
        if start.is_dir():
            local = open_model(str(start), config)
        elif opened is not None or config.model != "tiny":
            local = opened or open_model(config.model, config)
        else:
            local = (yield from raise_tiny(config)).local
            local.model.name_or_path = str(start)  # What an adapter names as its base.
        if config.model != "tiny":
            config = pin_format(run, config, local)
        if config.model == "tiny" or (config.recipe.kl.beta > 0 and not config.scale.lora_r):
            keep_start(run, local)
        if ranks.count > 1 and ranks.first:
            ranks.meet()
            local = open_model(str(start) if config.model == "tiny" else config.model, config)
        local = as_opened(local, config, config.play.slots)
        # Dropout draws from torch's own generator, and nothing else does. It starts anew here, as after a kill.
        torch.manual_seed(config.seed)
        measured = ranks.count > 1 and config.recipe.kl.beta > 0
        reference = copy.deepcopy(local.model) if measured else None
        learner = Learner(local.agent, to_learn(local), config, reference=reference, ranks=ranks)
    run.rewind(learner.step)
    return learner


def practise(
    run: Run, learner: Learner[GRPOConfig], interrupts: Interrupts | None = None
) -> Generator[Progress, None, None]:
    """Train to the last step, or to the one that the measurements on the way end it at, in an arena of the run's
    environment.
    """
    config, interrupts = learner.config, interrupts or Interrupts()
    checkpoint_every, eval_steps = config.save.checkpoint_every or learner.steps, config.eval.eval_steps

    def due(step: int) -> bool:
        """A measurement is of a step that is saved: going on from before it could not find the best model again."""
        return step % checkpoint_every == 0 or bool(eval_steps and step % eval_steps == 0)

    with closing(open_arena(config)) as arena:
        steps = recorded(run, learner, _stretches(learner, arena), due, interrupts)
        with closing(measured_on_the_way(run, learner, steps, interrupts)) as stage:
            yield from stage


def _stretches(learner: Learner[GRPOConfig], arena: Arena) -> Generator[Progress, None, None]:
    """Training; it stops playing ahead at each step that is measured, for measuring needs the engine for itself."""
    every = learner.config.eval.eval_steps if learner.config.play.max_staleness else None
    while learner.step < learner.steps:
        with closing(train(learner, arena)) as steps:
            for progress in steps:
                if every and learner.step % every == 0:
                    steps.close()
                yield progress


def pin_format(run: Run, config: GRPOConfig, local: LocalModel) -> GRPOConfig:
    """Have the run's environment read calls as its model's template writes them, unless a format was chosen.

    From here on that stands in the run's config, as if it had been asked for.
    """
    env = config.env
    options, note = pinned(env.env_id, env.options, local.tokenizer, trained_format(config.model))
    if options != env.options:
        pinning = (f"{key}={value}" for key, value in options.items() if key not in env.options)
        config = replace(config, env=replace(env, env_options=(*env.env_options, *pinning)))
        run.settle(config)
    if note:
        run.notes.append(note)
    return config


def keep_start(run: Run, local: LocalModel) -> None:
    """Keep the model as it is before the first step, unless that is done."""
    start = run.folder / "start"
    if run.writes and not start.is_dir():
        with whole_folder(start) as folder:
            export(local.model, local.tokenizer, folder)


def _config(run: Run) -> GRPOConfig:
    if not isinstance(run.config, GRPOConfig):
        raise UsageError(f"{run.folder} holds a run of the kind {run.config.KIND}, which plays nothing")
    asked, ranks = run.config, here()
    config, note = ranks.told(lambda: settled(asked, run.folder, ranks.count))
    if config != asked:
        run.settle(config)
    if note:
        run.notes.append(note)
    return config


def _restored(found: Checkpoint, run: Run, config: GRPOConfig) -> Learner[GRPOConfig]:
    reference, start = None, run.folder / "start"
    if config.recipe.kl.beta > 0 and not config.scale.lora_r:
        if not start.is_dir():
            raise UsageError(f"{start} is gone: the recipe's KL is measured from the model in it; put it back")
        reference = open_model(str(start), config).model
        if fingerprint(reference) != found.fingerprint:
            raise UsageError(f"{start} and {found.path} hold models of different shapes; one of them is of another run")
    base = str(start) if start.is_dir() else config.model
    local = open_saved(found, lambda name: open_model(name, config), base)
    return restore(found, local, config, reference)
