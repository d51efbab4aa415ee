"""Compute logits from hidden states exactly as the model itself does.

Engine and trainer share this step. Some model families (Granite, Cohere, Gemma) scale the logits of the output layer or
cap them softly. Code that ignores this gets wrong log-probs, and a comparison of engine and trainer does not show the
error, because both have it. So the model's own forward pass runs once over a few tokens, and its logits must equal
those of the `Head`.

Left out: models that do anything else between hidden states and logits. They are refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from palaestra.errors import UsageError

_SCALES = ("logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier")
"""Names of a factor in the configs of transformers; some models multiply by it, others divide."""
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_TOKENS = 8
_PROBE_LOGIT = 100.0
"""The largest logit in the second row of the probe: random weights give logits so near to 0 that a cap of 30 would not
be seen."""


@dataclass(frozen=True, slots=True)
class Head:
    """Function from hidden states to float32 logits. `layer` is the model's own output layer."""

    layer: Any
    scale: float = 1.0
    cap: float | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.layer(hidden).float()
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap

    def __str__(self) -> str:
        scale = "" if self.scale == 1.0 else f" times {self.scale:g}"
        return f"the output layer{scale}" + ("" if self.cap is None else f", softly capped at {self.cap:g}")


_known: WeakKeyDictionary[Any, tuple[float, float | None]] = WeakKeyDictionary()


def head_of(model: Any) -> Head:
    """Return the head whose logits equal those of the model's own forward pass. Raise UsageError if there is none.

    The search runs once for each model. It uses no random numbers, and does not change the mode of any module.
    """
    layer = model.get_output_embeddings()
    if layer is None:
        raise _refusal(model, "it has no output layer")
    if model not in _known:
        head = _find(model, layer)
        _known[model] = head.scale, head.cap
    return Head(layer, *_known[model])


def assume_head(model: Any, of: Any) -> None:
    """Take over the head of another model of the same architecture, because a part of a model cannot be probed."""
    head_of(of)
    _known[model] = _known[of]


@torch.no_grad()
def _find(model: Any, layer: Any) -> Head:
    """Return the first candidate whose logits equal those of the model."""
    hidden, model_logits = _probe(model, layer)
    shape = (*hidden.shape[:-1], layer.weight.shape[0])
    if model_logits.shape != shape:
        raise _refusal(
            model, f"its own forward gives logits {list(model_logits.shape)}, its output layer {list(shape)}"
        )
    if not (hidden.isfinite().all() and model_logits.isfinite().all()):
        raise _refusal(model, "its own forward gives numbers that are not finite, as diverged weights do")
    # In bfloat16 a model may round four times: the output layer's logits, their quotient, its tanh, their product.
    tolerance = max(1e-4, 4 * torch.finfo(hidden.dtype).eps)
    tried = []
    for head in _candidates(model.config.get_text_config(), layer):
        gap = _gap(head(hidden), model_logits)
        if gap <= tolerance:
            return head
        tried.append(f"by {gap:.2%} from {head}")
    raise _refusal(
        model,
        f"its own forward differs {', '.join(tried)} (parts of the largest logit; {tolerance:.2%} may be rounding)",
    )


def _probe(model: Any, layer: Any) -> tuple[Tensor, Tensor]:
    """Return last hidden states of some tokens, once unchanged and once scaled up [2, tokens, width], and the logits
    that the model computes from them.
    """
    weight = model.get_input_embeddings().weight
    ids = torch.arange(1, _TOKENS + 1, device=weight.device) * weight.shape[0] // (_TOKENS + 1)
    ids = ids.expand(2, -1)
    with evaluation_mode(model):
        hidden = getattr(model.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
        if hidden is None or hidden.shape[-1] != layer.weight.shape[-1]:
            raise _refusal(model, "its base model gives no last_hidden_state of the width that the output layer takes")
        largest = float(layer(hidden).abs().max()) or _PROBE_LOGIT
        factors = hidden.new_tensor([1.0, _PROBE_LOGIT / largest])[:, None, None]
        with layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] * factors,)):
            model_logits = model(input_ids=ids, use_cache=False).logits
    return hidden * factors, model_logits.float()


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Put all modules in evaluation mode (no dropout, no checkpointing); restore their modes at the end of the block.

    All modules are read at each call, because a trainer may wrap or add modules.
    """
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _candidates(config: Any, layer: Any) -> Iterator[Head]:
    """Yield the heads to try: those with factors and caps of the config first, the plain output layer last."""
    factors, caps = (
        [value for name in names if isinstance(value := getattr(config, name, None), (int, float)) and value]
        for names in (_SCALES, _CAPS)
    )
    scales = [scale for factor in factors for scale in (1 / factor, factor)]
    return (Head(layer, scale, cap) for cap in (*caps, None) for scale in (*scales, 1.0))


def _gap(logits: Tensor, model_logits: Tensor) -> float:
    """Return the largest difference of two sets of logits, as a share of the largest logit of the same row."""
    largest = model_logits.abs().amax((1, 2)).clamp(min=1e-30)
    return float(((logits - model_logits).abs().amax((1, 2)) / largest).max())


def _refusal(model: Any, reason: str) -> UsageError:
    return UsageError(
        f"log-probs of a {type(model).__name__} would be wrong here: {reason}. Use a model whose logits are those of "
        "its output layer on its base model's last hidden state, changed by nothing but a factor (its config's "
        f"{', '.join(_SCALES)}) and a soft cap ({', '.join(_CAPS)})"
    )
