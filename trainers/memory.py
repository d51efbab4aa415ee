"""How much memory a run will need, counted before anything is loaded.

The model is built without storage, so its tensors are counted and not guessed; a pass through that shape counts what a
backward pass would keep. `doctor` shows the estimate, `train` refuses what it says does not fit, and `scale.fit`
chooses by it. Nothing here is faster or smaller than the run itself: it only adds up.

Left out: experts, which are chosen by what their input holds; and the moment in which a model is read from disk.
"""

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from palaestra.agents.adapters import inject
from palaestra.errors import UsageError
from palaestra.trainers.block_logprobs import BLOCK
from palaestra.trainers.config import GRPOConfig, ScaleConfig

FLOAT = 4
"""Bytes of a float32: gradients are summed, and moments kept, in no less."""
MOMENTS = {32: 8.0, 8: 2.03}
"""Bytes a trained weight of AdamW's two moments; in 8 bits a scale for each block comes on top."""
_SAMPLING = {4: 16, 2: 18}
"""Bytes for each row and word while a token is drawn, by the bytes of a weight: logits, log-probs, noise."""
_AGAIN, _GRADIENTS = 1.15, 0.3
"""Of what a layer keeps: what its backward pass needs where the layer is computed again, and where it is not."""
_BATCH = 64
"""Bytes of a token in a batch, at most: ids, log-probs, versions, weights and places."""
_PREFILL_TOKENS = 16_384
"""Tokens of a prefill pass of the engine, at most."""
_CONTEXT = 2**30
"""Of a GPU's context, libraries and workspaces, together."""
_COUNTING = "palaestra_counting"


@dataclass(frozen=True, slots=True)
class Outline:
    """A model as far as memory goes."""

    parameters: int
    trained: int
    """Those of an adapter, where it has one."""
    weight_bytes: int
    """In the type it is outlined in."""
    width: int
    """Of a hidden state."""
    inner: int
    """Of the feed-forward layer."""
    words: int
    """Rows of the output head."""
    tied: bool
    """The embedding is the output head."""
    layers: int
    heads: int
    key_heads: int
    head_width: int
    model: Any
    """Without storage."""

    @property
    def bytes(self) -> int:
        """Of one weight."""
        size: int = self.model.get_input_embeddings().weight.element_size()
        return size

    @property
    def adapted(self) -> bool:
        """Whether an adapter learns, and nothing else."""
        return self.trained < self.parameters

    def cache_token(self) -> int:
        """Bytes of a token's keys and values."""
        return 2 * self.layers * self.key_heads * self.head_width * self.bytes


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
    """What a run holds throughout, what it needs on top in each phase, and on the host."""

    held: tuple[Part, ...]
    playing: tuple[Part, ...]
    learning: tuple[Part, ...]
    stepping: tuple[Part, ...]
    """At an optimizer step, when no activations are left."""
    host: tuple[Part, ...] = ()
    """In main memory, where the model is on a GPU."""

    @property
    def total(self) -> int:
        """The most that is needed of the device at any moment: playing and learning take turns."""
        return _sum(self.held) + max(_sum(self.playing), _sum(self.learning), _sum(self.stepping))


def outline(config: Any, scale: ScaleConfig | None = None) -> Outline:
    """A model's shape, from its transformers config alone, in the type and with the adapter of a run."""
    scale = scale or ScaleConfig(precision="float32")
    dtype = torch.float32 if scale.precision == "auto" else getattr(torch, scale.precision)
    config = copy.deepcopy(config)
    AttentionInterface.register(_COUNTING, _linear_attention)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=_COUNTING, trust_remote_code=False
            )
    except Exception as error:  # Every architecture complains of a wrong config in its own way.
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(f"no causal language model can be made from this config: {reason}") from error
    inner = config.get_text_config()
    heads = getattr(inner, "num_attention_heads", None)
    head = model.get_output_embeddings()
    if not heads or head is None or not getattr(inner, "num_hidden_layers", None):
        raise UsageError(f"{type(model).__name__} has no attention heads or no output head; the engine needs both")
    if scale.lora_r:
        inject(model, scale.lora_r, scale.lora_alpha, scale.lora_target_modules)
    weights = list(model.parameters())
    return Outline(
        parameters=sum(weight.numel() for weight in weights),
        trained=sum(weight.numel() for weight in weights if weight.requires_grad),
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in [*weights, *model.buffers()]),
        width=head.weight.shape[1],
        inner=getattr(inner, "intermediate_size", None) or 4 * inner.hidden_size,
        words=head.weight.shape[0],
        tied=head.weight is model.get_input_embeddings().weight,
        layers=inner.num_hidden_layers,
        heads=heads,
        key_heads=getattr(inner, "num_key_value_heads", None) or heads,
        head_width=getattr(inner, "head_dim", None) or inner.hidden_size // heads,
        model=model,
    )


def estimate(shape: Outline, config: GRPOConfig, *, on_gpu: bool = False, ranks: int = 1) -> Estimate:
    """The memory of one rank of a run with these settings, whose model is outlined in the type that it computes in."""
    longest, scale = config.longest_row, config.scale
    mini_batches = min(config.optimizer.num_mini_batches, config.play.num_prompts)
    rows = -(-config.play.num_prompts // mini_batches) * config.play.num_generations
    # A row longer than a micro-batch stands alone.
    tokens = min(max(config.optimizer.micro_batch_tokens, longest), rows * longest)
    held = [Part("weights", shape.weight_bytes, f"counted, {shape.bytes} bytes each")]
    if config.recipe.kl.beta > 0 and not shape.adapted:
        held.append(Part("reference model", shape.weight_bytes, f"a copy, for beta is {config.recipe.kl.beta:g}"))
    trained, bits = shape.trained // ranks, scale.optimizer_bits or 32
    state = [Part("AdamW state", round(trained * MOMENTS[bits]), f"moments in {bits} bits")]
    if ranks > 1:
        state.append(Part("float32 weights", trained * FLOAT, f"one of {ranks} shards"))
    elif shape.bytes != FLOAT and not shape.adapted:
        state.append(Part("float32 copies", trained * FLOAT, "what the optimizer steps on"))
    gradients = Part("gradients", trained * FLOAT, "sums in float32, one figure a trained weight")
    batch = Part("batch", rows * longest * _BATCH, f"{rows} rows of {longest} tokens, at {_BATCH} bytes")
    host = [batch] if on_gpu else []
    held += [] if on_gpu else [batch]
    (host if scale.optimizer_offload else held).extend(state)
    if config.engine.kind == "process":
        held.append(Part("engine's weights", shape.weight_bytes, "a copy, in a process of its own"))
    if on_gpu:
        held.append(Part("GPU context", _CONTEXT, "with libraries and workspaces; about"))
    checkpointed, trains_head = bool(scale.gradient_checkpointing), not shape.adapted
    passes = _passes(shape, tokens, checkpointed=checkpointed, trains_head=trains_head, on_gpu=on_gpu)
    return Estimate(
        tuple(held),
        _playing(shape, config) if config.engine.kind != "vllm" else (),
        (gradients, *passes, *(_gathered(shape) if ranks > 1 else ())),
        (gradients, *(state if scale.optimizer_offload else ())),
        tuple(host),
    )


def _gathered(shape: Outline) -> tuple[Part, ...]:
    """What ranks that divide a model have whole in a pass: embedding, output layer, two layers, a layer's gradient."""
    outside = shape.words * shape.width * (1 if shape.tied else 2)
    layer = (shape.parameters - outside) // shape.layers
    size = outside * shape.bytes + layer * (2 * shape.bytes + FLOAT)
    return (Part("gathered weights", size, "of two layers, and what is outside of layers"),)


def _playing(shape: Outline, config: GRPOConfig) -> tuple[Part, ...]:
    """What the built-in engine holds while it plays."""
    slots, whole = config.play.slots, config.play.slots * config.longest_row
    cached = min(config.play.cache_tokens or whole, whole)
    prefill = min(_PREFILL_TOKENS, whole) * (shape.width + shape.inner) * shape.bytes * 4
    return (
        Part("key-value cache", cached * shape.cache_token(), f"{cached} tokens in {slots} slots"),
        Part("sampling", slots * shape.words * _SAMPLING[shape.bytes], f"{slots} rows of {shape.words} words"),
        Part("prefill", prefill, "one pass through a layer"),
    )


def _passes(shape: Outline, tokens: int, *, checkpointed: bool, trains_head: bool, on_gpu: bool) -> list[Part]:
    """What forward and backward pass of a micro-batch hold at their worst moment."""
    kept = activation_bytes(shape, tokens)
    if kept is None:
        return [Part("activations", 0, "could not be counted for this architecture: not in the total")]
    layer, outside = kept
    boundary = tokens * shape.width * shape.bytes
    stack = shape.layers * (boundary if checkpointed else layer)
    how = f"{tokens} tokens, {shape.layers} layers" + (", one tensor each" if checkpointed else "")
    head = shape.words * shape.width * trains_head
    block = min(BLOCK["cuda" if on_gpu else "cpu"], tokens)
    short = shape.bytes % FLOAT  # A logit is held in a short type too, when it is no float32.
    logits = block * shape.words
    # Logits and their exponentials; later their gradient, the head's, and a block's part of that.
    at_head = max(logits * 2 * FLOAT, logits * (FLOAT + short) + head * (FLOAT + (short or FLOAT)))
    # The gradient of a tied output layer waits for the embedding's.
    in_layers = round(layer * (_AGAIN if checkpointed else _GRADIENTS)) + head * shape.bytes * shape.tied
    worst = max(
        (at_head, f"a block of {block} tokens at the output layer, and its gradient"),
        (in_layers, "one layer in the backward pass"),
    )
    return [Part("activations", stack + outside, how), Part("backward pass", *worst)]


@lru_cache(maxsize=64)
def activation_bytes(shape: Outline, tokens: int) -> tuple[int, int] | None:
    """What a backward pass keeps of one layer, and of all that is outside of layers; None where the model cannot be
    followed.
    """
    own = {tensor.untyped_storage()._cdata for tensor in (*shape.model.parameters(), *shape.model.buffers())}
    kept: dict[int, tuple[Tensor, int]] = {}
    inside = [0]
    layers = [module for module in shape.model.modules() if isinstance(module, GradientCheckpointingLayer)]

    def keep(tensor: Tensor) -> Tensor:
        # Held, so that no other takes its number.
        if (name := tensor.untyped_storage()._cdata) not in own:
            kept.setdefault(name, (tensor, inside[0]))
        return tensor

    def enter(*_: Any) -> None:
        inside[0] = 1

    def leave(*_: Any) -> None:
        inside[0] = 0

    hooks = [
        hook
        for layer in layers
        for hook in (layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave))
    ]
    ids = torch.zeros((1, tokens), dtype=torch.long, device="meta")
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            shape.model.base_model(input_ids=ids, use_cache=False)
    except Exception:  # Experts are chosen by what their input holds, and here it holds nothing.
        return None
    finally:
        for hook in hooks:
            hook.remove()
    sums = [sum(t.untyped_storage().nbytes() for t, where in kept.values() if where == place) for place in (0, 1)]
    return sums[1] // max(1, len(layers)), sums[0]


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
