"""The optimizers of a learner: AdamW, fused on a GPU or with moments in 8 bits, or Muon with AdamW for the rest.

Each optimizer reads its learning rate from its parameter groups. Left out: the parameters that they update
(`master_weights`), and the location of their state between steps (`optimizer_offload`).
"""

import logging
from typing import Any

import torch
from torch.nn import Parameter

from palaestra.errors import MissingExtra
from palaestra.trainers.config.sections_config import OptimizerConfig, ScaleConfig
from palaestra.trainers.scale.master_weights import Masters


def make_optimizers(
    model: Any, masters: Masters, config: OptimizerConfig, scale: ScaleConfig
) -> list[torch.optim.Optimizer]:
    """Return AdamW for all parameters, or Muon for hidden matrices and AdamW for the rest."""
    if config.algorithm == "adamw":
        return [adamw(list(masters.stepped.values()), config, scale)]
    outer = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    hidden = {name for name, weight in masters.trained.items() if weight.ndim == 2 and id(weight) not in outer}
    matrices = [weight for name, weight in masters.stepped.items() if name in hidden]
    others = [weight for name, weight in masters.stepped.items() if name not in hidden]
    muon = torch.optim.Muon(matrices, config.matrix_learning_rate, weight_decay=config.weight_decay)
    return [muon, adamw(others, config, scale)] if others else [muon]


def adamw(parameters: list[Parameter], config: OptimizerConfig, scale: ScaleConfig) -> torch.optim.Optimizer:
    """Return AdamW for these parameters, with moments in 32 or 8 bits."""
    settings: dict[str, Any] = {"betas": (0.9, config.adam_beta2), "weight_decay": config.weight_decay}
    if scale.optimizer_bits == 8:
        return _adamw_8bit()(parameters, config.learning_rate, **settings)  # type: ignore[no-any-return]
    # On a GPU use the fused kernel: the others need extra memory of the size of the parameters.
    fused = True if parameters[0].device.type == "cuda" else None
    return torch.optim.AdamW(parameters, config.learning_rate, fused=fused, **settings)


def _adamw_8bit() -> Any:
    """Return bitsandbytes' class of AdamW. It quantises tensors of 4,096 or more weights, in blocks of 256."""
    # It warns of missing 4-bit kernels on a CPU, which are not used here.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        from bitsandbytes.optim import AdamW8bit  # type: ignore[attr-defined]
    except ImportError as error:
        raise MissingExtra("bitsandbytes", "quantized", "optimizer_bits 8") from error
    return AdamW8bit
