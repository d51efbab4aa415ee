"""The steps of a training run that every caller takes: have an agent, measure it, train it and keep what must survive.

    learner = prepare(run)  ->  measure_before  ->  practise(run, learner, arena)  ->  measure  ->  keep_model

Each step asks the run's folder what is done already, so that going on with a run is the same program as beginning it.
"""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from palaestra import formats
from palaestra.agents import Agent, TokenLimits
from palaestra.agents.dialect import pinned
from palaestra.agents.local_model import LocalModel, export, load
from palaestra.errors import TrainingHalted, UsageError
from palaestra.protocols import Arena
from palaestra.registry import arena, chosen_format, demonstrator
from palaestra.trainers.checkpoint import Checkpoint, fingerprint, newest, restore, save
from palaestra.trainers.cold_start import ColdStartConfig, Pupil, cold_start
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.durable import remove_folder, whole_folder
from palaestra.trainers.evaluate import Both, Report, evaluate
from palaestra.trainers.grpo import train
from palaestra.trainers.interrupts import Interrupts
from palaestra.trainers.learner import Learner
from palaestra.trainers.progress import Progress
from palaestra.trainers.resume import refused, trained_format
from palaestra.trainers.run import Run, versions
from palaestra.trainers.sampling.division import Division
from palaestra.trainers.sampling.seats import check_seats


def open_arena(config: GRPOConfig, split: str = "train") -> Arena:
    """The config's environment, with as many places as it plays at once."""
    return arena(config.env_id, config.slots, split=split, ordered=config.ordered, **config.environment)


def check_environment(config: GRPOConfig) -> None:
    """Refuse, before anything is made, what its environment cannot do: options, seats, tasks in both splits."""
    for split in ("train", "eval"):
        opened = open_arena(config, split)
        try:
            check_seats(opened, config.train_seats)
            if split == "train" and config.model == "tiny":
                Division(opened.task_count)
        finally:
            opened.close()


def open_model(name: str, config: GRPOConfig) -> LocalModel:
    """Load a model's folder or hub name for a run."""
    return load(name, slots=config.slots, seed=config.seed, device=config.device)


def limits(config: GRPOConfig) -> TokenLimits:
    """The config's token limits, as `play` takes them."""
    return TokenLimits(config.max_turn_tokens, config.longest_row)


def raise_tiny(config: GRPOConfig, cold: ColdStartConfig | None = None) -> Generator[Progress, None, Pupil]:
    """Raise the tiny agent on the demonstrator of the config's environment."""
    if cold is None:
        first = min(ColdStartConfig().first_gate, config.imitation_steps)
        cold = ColdStartConfig(
            imitation_gate=config.imitation_gate, imitation_steps=config.imitation_steps, first_gate=first
        )
    practice = open_arena(config)
    try:
        check_seats(practice, config.train_seats)
        return (
            yield from cold_start(
                practice,
                demonstrator(config.env_id),
                seed=config.seed,
                limits=limits(config),
                slots=config.slots,
                device_name=config.device,
                config=cold,
                format=chosen_format(config.env_id, config.environment) or formats.DEFAULT,
            )
        )
    finally:
        practice.close()


def prepare(run: Run, opened: LocalModel | None = None) -> Generator[Progress, None, Learner]:
    """Who learns in a run: from its newest checkpoint, else from its start, else `opened`, else made now.

    `run.config` may know more afterwards: the call format of the model at hand.
    """
    config, start = run.config, run.folder / "start"
    found, faults = newest(run.checkpoints)
    if found is not None:
        learner = _restored(found, run, start)
        for path, fault in faults.items():
            run.notes.append(f"{path} is damaged ({fault}) and was removed; step {found.step} is gone on from")
            remove_folder(path)
    elif faults:
        listed = "; ".join(f"{path}: {fault}" for path, fault in faults.items())
        raise UsageError(
            f"no checkpoint in {run.checkpoints} is whole: {listed}; put one back, or remove that folder to begin "
            "again at step 0"
        )
    else:
        if start.is_dir():
            local = open_model(str(start), config)
        elif opened is not None or config.model != "tiny":
            local = opened or open_model(config.model, config)
        else:
            local = (yield from raise_tiny(config)).local
        if config.model != "tiny":
            config = pin_format(run, local)
        if config.model == "tiny" or config.algorithm.beta > 0:
            keep_start(run, local)
        # Dropout draws from torch's own generator, and nothing else does. It starts anew here, as after a kill.
        torch.manual_seed(config.seed)
        learner = Learner(local.agent, local.model, config)
    run.rewind(learner.step)
    return learner


def pin_format(run: Run, local: LocalModel) -> GRPOConfig:
    """Have the run's environment read calls as its model's template writes them, unless a format was chosen.

    From here on that stands in the run's config, as if it had been asked for.
    """
    config = run.config
    options, note = pinned(config.env_id, config.environment, local.tokenizer, trained_format(config.model))
    if options != config.environment:
        run.settle(replace(config, env_options=(*config.env_options, f"format={options['format']}")))
    if note:
        run.notes.append(note)
    return run.config


def keep_start(run: Run, local: LocalModel) -> None:
    """Keep the model as it is before the first step, unless that is done."""
    start = run.folder / "start"
    if not start.is_dir():
        with whole_folder(start) as folder:
            export(local.model, local.tokenizer, folder)


def measure(run: Run, agent: Agent, when: str) -> Both:
    """Measure an agent on held-out tasks `before` or `after` a run's training, and keep the sampled episodes."""
    both = evaluate_both(agent, run.config, run.config.eval_tasks)
    run.keep(f"eval-{when}", [(episode, None) for episode in both.sampled_episodes], "eval")
    return both


def measure_before(run: Run, learner: Learner) -> Both | None:
    """How good the learner of a run is before the first step, measured once; None where that was missed."""
    figures = run.before
    if figures is not None:
        try:
            return Both(Report(**figures["sampled"]), Report(**figures["greedy"]), (), ())
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{run.folder / 'before.json'} does not hold the figures that were written ({error}); remove it to go "
                "on without them"
            ) from error
    if learner.step:
        run.notes.append("before.json is gone, and the agent is no longer as it was before the first step")
        return None
    both = measure(run, learner.agent, "before")
    run.add_before(both.figures())
    return both


def evaluate_both(agent: Agent, config: GRPOConfig, tasks: int) -> Both:
    """Measure an agent on the evaluation split."""
    held_out = open_arena(config, "eval")
    try:
        (sampled, episodes), (greedy, played) = (
            evaluate(
                agent,
                held_out,
                tasks=tasks,
                temperature=temperature,
                limits=limits(config),
                seed=config.seed,
                seats=config.train_seats,
            )
            for temperature in (config.temperature, 0.0)
        )
    finally:
        held_out.close()
    return Both(sampled, greedy, episodes, played)


def practise(
    run: Run, learner: Learner, practice: Arena, interrupts: Interrupts | None = None
) -> Generator[Progress, None, None]:
    """Train to the last step, writing each one down, with a checkpoint when one is due and when it is interrupted.

    While episodes are played nothing has changed since the last step, so an interrupt is obeyed at once; from a batch's
    first optimizer step until its step is written down, it waits.
    """
    config, interrupts = learner.config, interrupts or Interrupts()
    stage, recorded, saved = train(learner, practice), learner.step, learner.step

    def changed() -> bool:
        return learner.torn or learner.step != recorded

    with interrupts.held():
        while True:
            try:
                with interrupts.held(changed):
                    progress = next(stage, None)
            except (KeyboardInterrupt, TrainingHalted):
                if not changed() and saved != recorded:
                    save(learner, _tokenizer(learner), run.checkpoints, config.keep_checkpoints)
                raise
            if progress is None:
                return
            run.add(progress)
            recorded = learner.step
            if recorded % config.checkpoint_every == 0 or recorded == config.steps or interrupts.asked is not None:
                save(learner, _tokenizer(learner), run.checkpoints, config.keep_checkpoints)
                saved = recorded
            yield progress
            if interrupts.asked is not None and saved != recorded:
                save(learner, _tokenizer(learner), run.checkpoints, config.keep_checkpoints)
            interrupts.check()


def keep_model(run: Run, learner: Learner) -> None:
    """Export what a run has trained."""
    with whole_folder(run.folder / "model") as folder:
        export(learner.model, _tokenizer(learner), folder)


def _restored(found: Checkpoint, run: Run, start: Path) -> Learner:
    config, reference = run.config, None
    if wrong := refused(found.config, config):
        raise UsageError(
            f"{found.path} was made with other options than {run.folder / 'config.json'} says: {wrong}; put back the "
            "options, or the checkpoints of this run"
        )
    if config.algorithm.beta > 0:
        if not start.is_dir():
            raise UsageError(f"{start} is gone: the recipe's KL is measured from the model in it; put it back")
        reference = open_model(str(start), config).model
        if fingerprint(reference) != found.fingerprint:
            raise UsageError(f"{start} and {found.path} hold models of different shapes; one of them is of another run")
    local = open_model(str(found.model), config)
    now = versions()
    strange = [name for name in ("python", "machine", "torch", "transformers") if found.versions.get(name) != now[name]]
    if strange:
        listed = ", ".join(f"{name} {found.versions.get(name)} (now {now[name]})" for name in strange)
        run.notes.append(f"{found.path} was made with {listed}; the last bits of the figures may change")
    return restore(found, local, config, reference)


def _tokenizer(learner: Learner) -> Any:
    assert learner.agent.chat is not None, "an agent with a model has a chat"
    return learner.agent.chat.tokenizer
