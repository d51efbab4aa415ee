"""What a run's config names, opened: its environment, its model, its engine, its limits."""

from dataclasses import asdict
from functools import partial

from palaestra.agents import TokenLimits
from palaestra.agents.engines.process import ProcessEngine
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.engines.vllm.engine import VllmEngine
from palaestra.agents.local_model import EngineMaker, LocalModel, find_device, load
from palaestra.protocols import Arena
from palaestra.registry import arena, demonstrator
from palaestra.trainers.config import EngineConfig, GRPOConfig
from palaestra.trainers.sampling.division import Division
from palaestra.trainers.sampling.seats import check_seats


def open_arena(config: GRPOConfig, split: str = "train") -> Arena:
    """The config's environment, with as many places as it plays at once."""
    return arena(config.env.env_id, config.play.slots, split=split, ordered=config.play.ordered, **config.env.options)


def open_model(name: str, config: GRPOConfig) -> LocalModel:
    """Load a model's folder or hub name for a run. An engine on servers that do not serve it is refused."""
    maker = engine_maker(config.engine)
    opened = load(name, slots=config.play.slots, seed=config.seed, device=config.device, engine=maker)
    if isinstance(opened.agent.engine, VllmEngine):
        opened.agent.engine.check(opened.tokenizer, config.longest_row)
    return opened


def engine_maker(config: EngineConfig) -> EngineMaker:
    """What makes the engine that a config names."""
    if config.kind == "torch":
        return TorchEngine
    if config.kind == "process":
        return partial(ProcessEngine, deadline=config.restart_seconds)
    options = asdict(config)
    del options["kind"]
    return partial(VllmEngine, **options)


def limits(config: GRPOConfig) -> TokenLimits:
    """The config's token limits, as `play` takes them."""
    return TokenLimits(config.play.max_turn_tokens, config.longest_row)


def check(config: GRPOConfig) -> None:
    """Refuse, before anything is made, what cannot work: the device, options of the environment, seats, tasks in both
    splits, and for the tiny agent a demonstrator.
    """
    find_device(config.device)
    if config.model == "tiny":
        demonstrator(config.env.env_id)
    for split in ("train", "eval"):
        opened = open_arena(config, split)
        try:
            check_seats(opened, config.env.train_seats)
            if split == "train" and config.model == "tiny":
                Division(opened.task_count)
        finally:
            opened.close()
