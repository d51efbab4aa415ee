"""Refuse settings that DeepSpeed does not support, before a run begins."""

from palaestra.errors import ConfigError
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.scale.deepspeed_zero import require_deepspeed


def check_sharding(config: GRPOConfig, count: int) -> None:
    """Raise an error for settings that this number of ranks cannot shard, and if DeepSpeed is needed and missing."""
    scale = config.scale
    zero, size = count > 1 and scale.sharding == "deepspeed", scale.sequence_parallel_size
    if count % size:
        raise ConfigError(
            f"sequence_parallel_size is {size}, and the number of ranks must be divisible by it (torchrun started "
            f"{count}); start another number of ranks, or set it to 1"
        )
    if size > 1 and config.recipe.critic is not None:
        raise ConfigError(
            f"sequence_parallel_size is {size}, and the recipe has a critic, which needs whole rows on each rank; set "
            "it to 1, or choose a recipe without a critic"
        )
    if zero and scale.optimizer_bits == 8:
        raise ConfigError(
            "sharding is deepspeed and optimizer_bits is 8, and DeepSpeed's moments have 32 bits here; use fsdp, or 32"
        )
    if zero and scale.optimizer_offload:
        raise ConfigError(
            "sharding is deepspeed and optimizer_offload is True, and DeepSpeed's moments stay on the GPU here; use "
            "fsdp, or more ranks"
        )
    if zero:
        require_deepspeed("scale.sharding deepspeed")
    if size > 1:
        require_deepspeed(f"scale.sequence_parallel_size {size}")
