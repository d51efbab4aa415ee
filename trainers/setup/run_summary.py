"""Describe a run in a few lines before it starts: its important settings, after open ones were chosen."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.recipe_sources import apart
from palaestra.trainers.config.recipes import RECIPES
from palaestra.trainers.config.sections_config import OptimizerConfig
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.learn.forward import attention_of
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.samplers.task_of_group import held_out
from palaestra.trainers.setup.open_run import open_arena


def synopsis(learner: Learner[Any]) -> str:
    """Return the description of a learner's run, one line per subject."""
    config = learner.config
    lines = _grpo(config) if isinstance(config, GRPOConfig) else _sft(config, learner.steps)
    return "\n".join(f"{name + ':':<11}{text}" for name, text in (_model(learner), *lines))


def _model(learner: Learner[Any]) -> tuple[str, str]:
    weights = list(learner.model.parameters())
    total, learned = (sum(w.numel() for w in weights if w.requires_grad or not only) for only in (False, True))
    kinds = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
    trained = "" if learned == total else f", {learned:,} of them trained"
    ranks = f", divided among {learner.ranks.count} ranks" if learner.ranks.count > 1 else ""
    where = f"{'/'.join(kinds)} on {weights[0].device}{ranks}"
    text = f"{learner.config.model}: {total:,} parameters{trained}, {where}"
    return "model", f"{text}; learns with {attention_of(learner.model)}"


def _grpo(config: GRPOConfig) -> Iterator[tuple[str, str]]:
    play, env = config.play, config.env
    options = " ".join((*env.env_options, *(f"curated: {path}" for path in env.curated)))
    yield "plays", f"{config.env.env_id} {options}".strip()
    groups = f"{play.num_prompts} groups x {play.num_generations} episodes a step, {play.slots} at once"
    yield "a step", f"{groups}, rows of at most {config.longest_row:,} tokens, turns of {play.max_turn_tokens:,}"
    batches = f"{config.optimizer.num_mini_batches} optimizer steps each"
    yield "steps", f"{config.steps:,}, {batches}; {_optimizer(config.optimizer)}"
    preset = RECIPES.get(config.recipe.recipe_name, RECIPES["grpo-tcr"])
    yield "recipe", ", ".join((preset.recipe_name, *apart(config.recipe, preset)))
    yield "measured", _evaluation(config)


def _sft(config: SFTConfig, steps: int) -> Iterator[tuple[str, str]]:
    yield "steps", f"{steps:,} of {config.batch_rows} rows, {config.epochs} epochs; {_optimizer(config.optimizer)}"


def _optimizer(config: OptimizerConfig) -> str:
    return f"{config.algorithm}, learning rate {config.learning_rate:g} {config.lr_schedule}"


def _evaluation(config: GRPOConfig) -> str:
    if not config.eval_tasks:
        return "nothing, for eval_tasks is 0"
    with closing(open_arena(config, "eval", here=True)) as opened:
        count = len(held_out(opened, config.eval_tasks))
    fewer = f" (eval_tasks is {config.eval_tasks:,}, and there are not as many)" if count < config.eval_tasks else ""
    text, how = f"{count:,} held-out tasks{fewer}, before and after", config.eval
    if how.eval_steps:
        text += f" and every {how.eval_steps} steps"
    if how.early_stopping_patience:
        text += f"; ends after {how.early_stopping_patience} measurements without more success"
    if how.stop_when:
        text += f"; ends when it is {how.stop_when}"
    return text
