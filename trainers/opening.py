"""What a run's config names, opened: its environment, its model, its limits."""

from palaestra.agents import TokenLimits
from palaestra.agents.local_model import LocalModel, find_device, load
from palaestra.protocols import Arena
from palaestra.registry import arena, demonstrator
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.sampling.division import Division
from palaestra.trainers.sampling.seats import check_seats


def open_arena(config: GRPOConfig, split: str = "train", here: bool = False) -> Arena:
    """The config's environment, with as many places as it plays at once; in this process if `here`."""
    env = config.env
    options = env.options | (
        {} if here or not env.workers else {"workers": env.workers, "ray_address": env.ray_address}
    )
    return arena(env.env_id, config.play.slots, split=split, ordered=config.play.ordered, **options)


def open_model(name: str, config: GRPOConfig) -> LocalModel:
    """Load a model's folder or hub name for a run."""
    return load(name, slots=config.play.slots, seed=config.seed, device=config.device)


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
        opened = open_arena(config, split, here=True)
        try:
            check_seats(opened, config.env.train_seats)
            if split == "train" and config.model == "tiny":
                Division(opened.task_count)
        finally:
            opened.close()
