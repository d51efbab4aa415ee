"""How much memory a run will need, counted before anything is loaded.

The model is built without storage, so its tensors are counted and not guessed; a forward pass through that shape counts
what a backward pass would keep. Nothing here is faster or smaller than the run itself: it only adds up.

Left out: the allocator's fragments, the GPU's context (about half a gigabyte), the steps in which the engine's cache
grows (up to 4,096 positions ahead of its rows), and the moment in which a model is read from disk. An estimate below
the device's memory is therefore no promise, one above it is a warning.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM

from palaestra.errors import UsageError
from palaestra.trainers.block_logprobs import BLOCK
from palaestra.trainers.config import GRPOConfig

_BYTES = 4
"""Of a weight, and of everything that is computed from it: training is in float32."""
_LOGITS = 2
"""Tensors of a block's tokens times vocabulary alive at once: logits, and their exponentials."""
_SAMPLING = 32
"""Bytes for each row and word while a token is drawn: logits, log-probs and noise, which is hashed in 64 bits."""
_BATCH = 64
"""Bytes of a token in a batch, at most: ids, log-probs, versions, weights and places."""
_COUNTING = "palaestra_counting"


@dataclass(frozen=True, slots=True)
class Outline:
    """A model as far as memory goes."""

    parameters: int
    weight_bytes: int
    words: int
    """Rows of the output head."""
    layers: int
    heads: int
    key_heads: int
    head_width: int
    model: Any
    """Without storage."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that takes memory."""

    name: str
    size: int
    """In bytes."""
    how: str
    """How it was estimated."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run holds throughout, and what it needs on top while it plays and while it learns."""

    held: tuple[Part, ...]
    playing: tuple[Part, ...]
    learning: tuple[Part, ...]

    @property
    def total(self) -> int:
        """The most that is needed at any moment: playing and learning take turns."""
        return _sum(self.held) + max(_sum(self.playing), _sum(self.learning))


def outline(config: Any) -> Outline:
    """A model's shape, from its transformers config alone."""
    config = copy.deepcopy(config)
    AttentionInterface.register(_COUNTING, _linear_attention)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation=_COUNTING, trust_remote_code=False
            )
    except Exception as error:  # Every architecture complains of a wrong config in its own way.
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(f"no causal language model can be made from this config: {reason}") from error
    inner = config.get_text_config()
    heads = getattr(inner, "num_attention_heads", None)
    head = model.get_output_embeddings()
    if not heads or head is None or not getattr(inner, "num_hidden_layers", None):
        raise UsageError(f"{type(model).__name__} has no attention heads or no output head; the engine needs both")
    weights = list(model.parameters())
    return Outline(
        parameters=sum(weight.numel() for weight in weights),
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in [*weights, *model.buffers()]),
        words=head.weight.shape[0],
        layers=inner.num_hidden_layers,
        heads=heads,
        key_heads=getattr(inner, "num_key_value_heads", None) or heads,
        head_width=getattr(inner, "head_dim", None) or inner.hidden_size // heads,
        model=model,
    )


def estimate(shape: Outline, config: GRPOConfig, *, keeps_scores: bool = False) -> Estimate:
    """The memory of a run with these settings.

    `keeps_scores` where the device's attention has no kernel for this model and keeps every score.
    """
    longest = config.longest_row
    mini_batches, slots = config.optimizer.num_mini_batches, config.play.slots
    rows = -(-config.play.num_prompts // min(mini_batches, config.play.num_prompts)) * config.play.num_generations
    # A row longer than a micro-batch stands alone.
    tokens = min(max(config.optimizer.micro_batch_tokens, longest), rows * longest)
    block = min(tokens, max(BLOCK.values()))
    gradients = shape.parameters * _BYTES
    held = [Part("weights", shape.weight_bytes, "counted, in float32")]
    if config.recipe.kl.beta > 0:
        held.append(Part("reference model", shape.weight_bytes, f"a copy, for beta is {config.recipe.kl.beta:g}"))
    held.append(Part("AdamW state", 2 * gradients, "two figures a weight"))
    cache = shape.layers * 2 * slots * shape.key_heads * longest * shape.head_width * _BYTES
    held.append(Part("key-value cache", cache, f"{slots} slots, rows of {longest} tokens, all full"))
    sampling = slots * shape.words * _SAMPLING
    learning = [
        Part("gradients", gradients, "one figure a weight"),
        Part("batch", rows * longest * _BATCH, f"{rows} rows of {longest} tokens, at {_BATCH} bytes"),
        Part("logits", block * shape.words * _LOGITS * _BYTES, f"{block} tokens, {_LOGITS} times the vocabulary"),
    ]
    kept = activation_bytes(shape, tokens)
    if kept is None:
        learning.append(Part("activations", 0, "could not be counted for this architecture: not in the total"))
    else:
        learning.append(Part("activations", kept, f"counted by a forward pass of {tokens} tokens without storage"))
    if keeps_scores:
        scores = shape.layers * shape.heads * tokens * min(tokens, longest) * _BYTES
        learning.append(Part("attention scores", scores, "this device has no kernel that forgets them"))
    return Estimate(
        tuple(held), (Part("sampling", sampling, f"{slots} rows, {_SAMPLING} bytes a word"),), tuple(learning)
    )


def activation_bytes(shape: Outline, tokens: int) -> int | None:
    """What a backward pass through the layers keeps for so many tokens; None where the model cannot be followed."""
    own = {tensor.untyped_storage()._cdata for tensor in (*shape.model.parameters(), *shape.model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor  # Held, so that no other takes its number.
        return tensor

    ids = torch.zeros((1, tokens), dtype=torch.long, device="meta")
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            shape.model.base_model(input_ids=ids, use_cache=False)
    except Exception:  # Experts are chosen by what their input holds, and here it holds nothing.
        return None
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def attention_keeps_scores(shape: Outline, device: torch.device) -> bool:
    """Whether attention in float32 falls back to the arithmetic that keeps all scores, on a GPU."""
    if device.type != "cuda":
        return False
    from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_efficient_attention

    query = torch.zeros((1, shape.heads, 64, shape.head_width), device=device, requires_grad=True)
    keys = torch.zeros((1, shape.key_heads, 64, shape.head_width), device=device, requires_grad=True)
    asked = SDPAParams(query, keys, keys, None, 0.0, True, shape.heads != shape.key_heads)
    return not (can_use_efficient_attention(asked) or can_use_cudnn_attention(asked))


class _Kept(torch.autograd.Function):
    """Keeps what an attention kernel keeps: its inputs, its output, and a figure for each token and head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """An output of the right shape."""
        out = torch.empty_like(query)
        ctx.save_for_backward(query, keys, values, out, query.new_empty(query.shape[:-1]))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        """Never called: only the forward pass is counted."""
        return None, None, None


def _linear_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Stands in for attention where only memory is counted."""
    out: Tensor = _Kept.apply(query, key, value)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None


def _sum(parts: tuple[Part, ...]) -> int:
    return sum(part.size for part in parts)
