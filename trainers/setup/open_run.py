"""Open what a run's config names: its environment, model, engine and limits."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from palaestra.agents import TokenLimits
from palaestra.agents.adapters import adapted, add_adapter
from palaestra.agents.dialect import prepared
from palaestra.agents.engines.packed_layers import has_bfloat16, is_x86
from palaestra.agents.engines.vllm.engine import VllmEngine
from palaestra.agents.local_model import Dtype, LocalModel, cast_weights, find_device, load, serve
from palaestra.agents.policies.table import trained_engines
from palaestra.episode import Start
from palaestra.errors import ConfigError, UsageError
from palaestra.protocols import Arena
from palaestra.registry import arena, demonstrators
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.data.curated import curated_tasks
from palaestra.trainers.reward.open_judge import open_judge
from palaestra.trainers.reward.staged_shaping import StagedShaping
from palaestra.trainers.rollout.make_sampler import make_sampler
from palaestra.trainers.run.saved_config import RunConfig, trained_format
from palaestra.trainers.samplers.seats import check_seats
from palaestra.trainers.samplers.task_of_group import counts_in, held_out
from palaestra.trainers.samplers.tree import Tree
from palaestra.trainers.scale.fit_memory import fit
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.setup.check_sharding import check_sharding
from palaestra.trainers.setup.choose_engine import chosen_engine
from palaestra.trainers.setup.demonstration_split import Division
from palaestra.trainers.setup.rank_engines import engine_maker

ConfigT = TypeVar("ConfigT", GRPOConfig, SFTConfig)


def open_arena(config: GRPOConfig, split: str = "train", here: bool = False) -> Arena:
    """Open the config's environment with one slot for each concurrent episode. If `here`, open it in this process."""
    env = config.env
    options = env.options | (
        {} if here or not env.workers else {"workers": env.workers, "ray_address": env.ray_address}
    )
    return arena(env.env_id, config.play.slots, split=split, ordered=config.play.ordered, **options)


def open_model(name: str, config: GRPOConfig) -> LocalModel:
    """Load a model from a folder or the hub for a run: in the run's dtype, with its adapter and its engine.

    Its prompts show the tools of the run's environment. Raise an error if the config's servers do not serve this model.
    With several ranks the weights stay in their files, unless this process needs all of them.
    """
    imitates = config.cold_started and name == config.model
    by_layer = config.scale.sharding == "fsdp" and config.scale.sequence_parallel_size == 1
    copies_weights = config.recipe.kl.beta > 0 or config.scale.lora_r or config.engine.kind not in ("process", "vllm")
    local = load(
        name,
        slots=config.play.slots,
        seed=config.seed,
        device=config.device,
        dtype=compute_type(config),
        engine=engine_maker(config),
        outline=here().count > 1 and by_layer and not (imitates or copies_weights),
        **prompt_changes(config, name),
    )
    prepared(config.env.env_id, config.env.options, local.tokenizer, trained_format(config.model))
    if isinstance(local.agent.engine, VllmEngine):
        local.agent.engine.check(local.tokenizer, config.longest_row)
    if imitates:  # With all its weights. Then the adapter is added.
        return local
    return with_adapter(local, config)


def prompt_changes(config: RunConfig, name: str) -> dict[str, Any]:
    """Return the prompt changes to load a model with: those of the config, unless the model was saved with them."""
    return {"chat_template": config.chat_template, "system": config.system} if name == config.model else {}


def with_adapter(local: LocalModel, config: RunConfig) -> LocalModel:
    """Add the adapter of a run to a model, if the run has one."""
    scale = config.scale
    if scale.lora_r:
        add_adapter(local.model, scale.lora_r, scale.lora_alpha, scale.lora_target_modules, seed=config.seed)
    return local


def as_opened(local: LocalModel, config: RunConfig, slots: int) -> LocalModel:
    """Give a model the dtype, the engine and the adapter of the run, unless it has them already."""
    dtype = compute_type(config)
    engine = config.engine if isinstance(config, GRPOConfig) else None
    other_engine = engine is not None and (engine.kind not in ("auto", "torch") or engine.sampling_precision != "same")
    shares_weights = any(engine.shares_weights for engine in trained_engines(local.agent))
    if next(local.model.parameters()).dtype != getattr(torch, dtype) or (other_engine and shares_weights):
        model, maker = cast_weights(local.model, dtype), engine_maker(config)
        local = serve(model, local.tokenizer, slots=slots, seed=config.seed, engine=maker)
    return local if adapted(local.model) else with_adapter(local, config)


def settled(config: ConfigT, folder: Path, ranks: int = 1) -> tuple[ConfigT, str]:
    """Choose the settings of scale and memory that a config leaves open. Return the config, and a note on what was
    changed because memory is short ("" if nothing was). If no scale setting is open, the config is returned unchanged.

    Raise an error if the device or the disk has too little space for the run.
    """
    scale = config.scale
    note = ""
    if isinstance(config, GRPOConfig):
        chosen: tuple[Any, str] = chosen_engine(config, ranks)
        config, note = chosen
    state = (scale.optimizer_bits, scale.optimizer_offload, scale.reduce_each_pass, scale.gradient_checkpointing)
    if scale.precision != "auto" and None not in state:
        return config, note
    if isinstance(config, GRPOConfig) and config.model != "tiny" and scale.fit is not False:
        fitted: tuple[Any, str] = fit(config, folder, ranks)
        config, note = fitted[0], "; ".join(filter(None, (note, fitted[1])))
    scale = config.scale
    scale = replace(
        scale,
        precision=compute_type(config),
        optimizer_bits=scale.optimizer_bits or 32,
        reduce_each_pass=bool(scale.reduce_each_pass),
        optimizer_offload=bool(scale.optimizer_offload),
        gradient_checkpointing=bool(scale.gradient_checkpointing),
    )
    return replace(config, scale=scale), "; ".join(filter(None, (note, _slow_precision(config))))


def _slow_precision(config: RunConfig) -> str:
    """Return a note if a run computes in bfloat16 on an x86 CPU without instructions for it; "" otherwise."""
    on_cpu = find_device(config.device).type == "cpu" and is_x86()
    setting = ""
    if compute_type(config) == "bfloat16":
        setting = "--scale.precision float32"
    elif isinstance(config, GRPOConfig) and config.engine.sampling_precision == "bfloat16":
        setting = "--engine.sampling-precision same"
    if not (setting and on_cpu) or has_bfloat16():
        return ""
    return f"this CPU has no instructions for bfloat16, so it is several times slower than {setting}"


def compute_type(config: RunConfig) -> Dtype:
    """Return the dtype of weights and activations."""
    if config.scale.precision != "auto":
        return config.scale.precision
    return "bfloat16" if config.model != "tiny" and find_device(config.device).type == "cuda" else "float32"


def check_ranks(config: GRPOConfig, count: int) -> None:
    """Raise `ConfigError` for settings that do not support this number of ranks."""
    check_sharding(config, count)
    if count == 1:
        return
    if config.optimizer.algorithm == "muon":
        raise ConfigError(
            f"optimizer.algorithm muon does not support several ranks (torchrun started {count}). Remove it, or train "
            "in one process"
        )
    if config.play.max_staleness and config.engine.kind == "torch":
        raise ConfigError(
            f"max_staleness is {config.play.max_staleness} and the engine of {count} ranks computes in their own "
            "processes: choose one that samples elsewhere (--engine.kind vllm, or process on CPUs), or max_staleness 0"
        )
    servers_elsewhere = config.engine.urls or config.engine.gpus or find_device(config.device).type == "cpu"
    if config.engine.kind == "vllm" and not servers_elsewhere:
        raise ConfigError(
            f"engine.urls and engine.gpus are empty, and a server of {count} ranks does not share the GPU of one of "
            "them: name GPUs that no rank uses (--engine.gpus), or servers (--engine.urls)"
        )
    if not config.first_rank_plays and count > config.play.num_prompts:
        raise ConfigError(
            f"num_prompts is {config.play.num_prompts} and there are {count} ranks, each of which plays whole groups; "
            "raise num_prompts, or start fewer ranks"
        )


def check_scale(config: RunConfig) -> None:
    """Raise `ConfigError` for an optimizer offload without a GPU, for an engine that would leave the GPU, for an
    adapter whose base model is not saved, and for rows of imitation that several ranks would compute.
    """
    on_cpu = find_device(config.device).type == "cpu"
    if isinstance(config, GRPOConfig) and config.engine.kind == "process" and not on_cpu:
        raise ConfigError(
            "engine.kind is process, which samples on the CPU: on a GPU use vllm, whose servers have weights of their "
            "own, or torch"
        )
    if config.scale.optimizer_offload and on_cpu:
        raise ConfigError(
            "optimizer_offload is True, and there is no GPU: on a CPU all is in the host's memory already"
        )
    if (size := config.scale.sequence_parallel_size) > 1 and isinstance(config, SFTConfig):
        raise ConfigError(f"sequence_parallel_size is {size}, and imitation runs in one process; set it to 1")
    if config.scale.lora_r and config.model == "tiny" and isinstance(config, SFTConfig):
        raise ConfigError(
            f"lora_r is {config.scale.lora_r}, and the model is made anew of random weights, which are kept nowhere: "
            "pass --model, or train the whole model"
        )


def limits(config: GRPOConfig) -> TokenLimits:
    """Return the config's token limits, as `play` takes them."""
    return TokenLimits(config.play.max_turn_tokens, config.longest_row)


def check_judge(config: GRPOConfig) -> None:
    """Raise an error if the judge of a config cannot be reached. Call this before a run begins or resumes."""
    if config.recipe.judge is not None:
        with closing(open_judge(config.recipe.judge)) as judge:
            judge.check()


def check_snapshots(config: GRPOConfig, arena: Arena) -> None:
    """Raise an error if an environment has no snapshots, which the sampler `tree` needs: begin an episode of each."""
    if config.env.workers:
        raise ConfigError("the sampler tree plays in one process: rollout workers (env.workers) give no snapshots")
    for env in counts_in(arena, 0)[1]:
        arena.begin(0, Start(0, 0, env=env))
        arena.recv(1)
        try:
            arena.snapshot(0)  # type: ignore[attr-defined]
        except UsageError as error:
            raise ConfigError(
                f"the sampler tree makes branches of episodes, which begin with snapshots: {error}"
            ) from error


def check(config: GRPOConfig) -> None:
    """Raise an error for a config that cannot work, before anything is created. This function checks the device, the
    judge's server, the options of the environment, seats, tasks in both splits, the needs of sampler and shaping, and
    the demonstrator of a cold start.
    """
    find_device(config.device)
    check_scale(config)
    check_judge(config)
    if config.cold_started:
        demonstrators(config.env.env_id)
    for split in ("train", "eval"):
        with closing(open_arena(config, split, here=True)) as opened:
            check_seats(opened, config.env.train_seats)
            if split == "eval":
                if config.eval_tasks:
                    held_out(opened, config.eval_tasks)
                continue
            curated_tasks(config.env.curated, config.env.env_id, opened)
            make_sampler(config, opened)
            if isinstance(config.recipe.sampler, Tree):
                check_snapshots(config, opened)
            if isinstance(config.recipe.shaping, StagedShaping):
                for parts in getattr(opened, "reward_parts", ()):
                    config.recipe.shaping.part_of(parts)
            if config.cold_started:
                for count in counts_in(opened, 0)[1].values():
                    Division(count)
