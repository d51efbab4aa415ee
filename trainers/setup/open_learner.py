"""Create or restore the learner of a GRPO run, and save its trained model.

The learner comes from the newest checkpoint in the run's folder, else from the model in its `start` folder, else from
the model that its config names.
"""

import copy
from dataclasses import replace

import torch

from palaestra.agents.adapters import adapted, save_adapter
from palaestra.agents.dialect import prepared
from palaestra.agents.local_model import LocalModel
from palaestra.agents.model_folder import export
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.learn.learner import Learner, RunConfigT, to_learn
from palaestra.trainers.parts import load_allowed
from palaestra.trainers.run.atomic_files import remove_folder, whole_folder
from palaestra.trainers.run.checkpoint import Checkpoint, fingerprint, newest, open_saved, prune, restore
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.progress import OnProgress, ignore
from palaestra.trainers.run.saved_config import refused, trained_format
from palaestra.trainers.run.versions import versions
from palaestra.trainers.scale.fsdp import whole_adapter, whole_model
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.setup.cold_start import Pupil, cold_started
from palaestra.trainers.setup.open_run import as_opened, check_ranks, open_model, settled
from palaestra.trainers.validation import changed


def open_learner(run: Run, model: LocalModel | None = None, on_progress: OnProgress = ignore) -> Learner[GRPOConfig]:
    """Return a run's learner: from its newest checkpoint, else its `start` folder, else `model`, else `config.model`.
    If the run begins with a cold start, the model first imitates demonstrations.

    The call format of the model, and settings that let the run fit into memory, may be added to `run.config`.
    """
    config, start, ranks = _config(run), run.folder / "start", here()
    check_ranks(config, ranks.count)
    checkpoint = ranks.broadcast(lambda: newest_checkpoint(run))
    if checkpoint is not None:
        learner = _restored(checkpoint, run, config)
    else:
        if not ranks.first:
            ranks.meet()  # The first rank creates or downloads the model.
        if start.is_dir():
            local = open_model(str(start), config)
            config = pin_format(run, config, local)
        else:
            config, local = _first_model(run, config, model, on_progress)
        if config.cold_started or (config.recipe.kl.beta > 0 and not config.scale.lora_r):
            keep_start(run, local)
        if ranks.count > 1 and ranks.first:
            ranks.meet()
            if config.cold_started or model is not None:
                local = open_model(str(start) if config.cold_started else config.model, config)
        learner = new_learner(local, config)
    run.rewind(learner.step)
    return learner


def _first_model(
    run: Run, config: GRPOConfig, model: LocalModel | None, on_progress: OnProgress
) -> tuple[GRPOConfig, LocalModel]:
    """Return the model that a new run trains, which may come from the caller, and the config with its call format."""
    if config.cold_started and not (config.model == "tiny" and model is not None):
        config, pupil = start_cold(run, config, model, on_progress)
        return config, pupil.local
    local = model or open_model(config.model, config)
    return pin_format(run, config, local), local


def start_cold(
    run: Run, config: GRPOConfig, model: LocalModel | None, on_progress: OnProgress
) -> tuple[GRPOConfig, Pupil]:
    """Let the agent of a run imitate demonstrations, and export it to the run's `start` folder. Return it, and the
    config with its call format.
    """
    if config.model != "tiny":
        model = model or open_model(config.model, config)
        config = pin_format(run, config, model)
    pupil = cold_started(config, model, on_progress)
    pupil.local.model.name_or_path = str(run.folder / "start")  # An adapter names this folder as its base.
    keep_start(run, pupil.local)
    return config, pupil


def new_learner(local: LocalModel, config: GRPOConfig) -> Learner[GRPOConfig]:
    """Return a learner at step 0 for a model, which may come from `open_model` or from the caller."""
    local, ranks = as_opened(local, config, config.play.slots), here()
    # Only dropout uses torch's global generator. It is seeded here, as after a kill.
    torch.manual_seed(config.seed)
    measures_kl = ranks.count > 1 and config.recipe.kl.beta > 0 and not adapted(local.model)
    reference = copy.deepcopy(local.model) if measures_kl else None
    return Learner(local.agent, to_learn(local.model, ranks, config), config, reference=reference, ranks=ranks)


def newest_checkpoint(run: Run) -> Checkpoint | None:
    """Return the newest intact checkpoint of a run, and remove damaged newer ones; None if the run has no checkpoint.

    Raise `UsageError` if all checkpoints are damaged, or if this one was made with other options.
    """
    checkpoint, faults = newest(run.checkpoints)
    if checkpoint is None and faults:
        text = "; ".join(f"{path}: {fault}" for path, fault in faults.items())
        raise UsageError(
            f"no checkpoint in {run.checkpoints} is whole: {text}; put one back, or remove that folder to begin "
            "again at step 0"
        )
    if checkpoint is None:
        return None
    if diffs := refused(changed(run.config, checkpoint.config, load_allowed(())), run.config):
        raise UsageError(
            f"{checkpoint.path} was made with other options than {run.folder / 'config.json'} says: {diffs}; put back "
            "the options, or the checkpoints of this run"
        )
    for path, fault in faults.items():
        run.notes.append(f"{path} is damaged ({fault}) and was removed; the run resumes after step {checkpoint.step}")
        if run.writes:
            remove_folder(path)
    if run.writes:  # A process that was killed right after a save has not removed the oldest one.
        prune(run.checkpoints, run.config.save.keep_checkpoints)
    then, now = checkpoint.versions, versions()
    names = [name for name in ("python", "machine", "torch", "transformers") if then.get(name) != now[name]]
    if names:
        text = ", ".join(f"{name} {then.get(name)} (now {now[name]})" for name in names)
        run.notes.append(f"{checkpoint.path} was made with {text}; the last bits of the figures may change")
    return checkpoint


def pin_format(run: Run, config: GRPOConfig, local: LocalModel) -> GRPOConfig:
    """Make the run's environment read calls as its model's template writes them, unless a format was chosen. A template
    that shows no tools gets them in the system message.

    The format is then part of the run's config, as if the user had set it.
    """
    if config.model == "tiny":
        return config
    env = config.env
    options, note = prepared(env.env_id, env.options, local.tokenizer, trained_format(config.model))
    if options != env.options:
        pinning = (f"{key}={value}" for key, value in options.items() if key not in env.options)
        config = replace(config, env=replace(env, env_options=(*env.env_options, *pinning)))
        run.settle(config)
    if note:
        run.notes.append(note)
    return config


def keep_start(run: Run, local: LocalModel) -> None:
    """Export the model that GRPO starts from to the run's `start` folder, unless that folder exists."""
    start = run.folder / "start"
    if run.writes and not start.is_dir():
        with whole_folder(start) as folder:
            export(local.model, local.tokenizer, folder)


def keep_model(run: Run, learner: Learner[RunConfigT]) -> None:
    """Export the whole trained model of a run to `model`, and an adapter, if one was trained, alone to `adapter`."""
    model, adapter = whole_model(learner.model, learner.ranks), whole_adapter(learner.model)
    if run.writes:
        with whole_folder(run.model) as folder:
            export(model, learner.tokenizer, folder)
        if adapted(learner.model):
            with whole_folder(run.adapter) as folder:
                save_adapter(learner.model, learner.tokenizer, folder, adapter)


def _config(run: Run) -> GRPOConfig:
    if not isinstance(run.config, GRPOConfig):
        raise UsageError(f"{run.folder} holds a run of the kind {run.config.KIND}, which plays nothing")
    unsettled, ranks = run.config, here()
    config, note = ranks.broadcast(lambda: settled(unsettled, run.folder, ranks.count))
    if config != unsettled:
        run.settle(config)
    if note:
        run.notes.append(note)
    return config


def _restored(checkpoint: Checkpoint, run: Run, config: GRPOConfig) -> Learner[GRPOConfig]:
    reference, start = None, run.folder / "start"
    if config.recipe.kl.beta > 0 and not config.scale.lora_r:
        if not start.is_dir():
            raise UsageError(f"{start} is gone: the recipe's KL is measured from the model in it; put it back")
        reference = open_model(str(start), config).model
        if fingerprint(reference) != checkpoint.fingerprint:
            raise UsageError(
                f"{start} and {checkpoint.path} hold models of different shapes; one of them is of another run"
            )
    base = str(start) if start.is_dir() else config.model
    local = open_saved(checkpoint, lambda name: open_model(name, config), base)
    return restore(checkpoint, local, config, reference)
