"""Estimate the memory of a run before anything is loaded.

The model is built without storage, so the sizes of its tensors are exact; a pass through it counts what is kept for a
backward pass. `doctor` shows the estimate, `train` refuses a run that does not fit, and `scale.fit` uses it to choose
settings. The estimate does not make the run itself faster or smaller.

Not counted: the moment when a model is read from disk.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from palaestra.agents.adapters import inject
from palaestra.agents.engines.packed_layers import packed_weights
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.sections_config import ScaleConfig
from palaestra.trainers.losses.chunked_logprobs import BLOCK, WORDS
from palaestra.trainers.scale.activation_count import COUNTING, activation_bytes, register_counting
from palaestra.trainers.scale.optimizer_offload import BUCKET_WEIGHTS

FLOAT = 4
"""Bytes of a float32, the smallest type in which gradients are summed and moments are kept."""
MOMENTS = {32: 8.0, 8: 2.03}
"""Bytes per trained weight of AdamW's two moments. In 8 bits each block also has a scale."""
_SAMPLING = {4: 16, 2: 18}
"""Bytes per row and vocabulary entry while a token is sampled, by the bytes of a weight: logits, log-probs, noise."""
_AGAIN, _GRADIENTS = 1.15, 0.3
"""Memory of a layer's backward pass relative to what the layer keeps: with recomputation, and without."""
_BATCH = 64
"""Largest number of bytes of a token in a batch: ids, log-probs, versions, weights and indices."""
_PREFILL_TOKENS = 16_384
"""Largest number of tokens in a prefill pass of the engine."""
_CONTEXT = 2**30
"""Bytes that the GPU context, libraries and workspaces use together."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The sizes of a model that determine its memory."""

    parameters: int
    trained: int
    """Number of trained parameters: those of the adapter if there is one, otherwise all."""
    weight_bytes: int
    """Bytes of all weights in the type of the outline."""
    width: int
    """Size of a hidden state, in numbers."""
    inner: int
    """Inner size of the feed-forward layer."""
    words: int
    """Number of rows of the output head (the vocabulary size)."""
    tied: bool
    """True if the embedding is also the output head."""
    layers: int
    heads: int
    key_heads: int
    head_width: int
    model: Any
    """The model without storage (on the meta device)."""

    @property
    def bytes(self) -> int:
        """Return the bytes per weight."""
        size: int = self.model.get_input_embeddings().weight.element_size()
        return size

    @property
    def adapted(self) -> bool:
        """Return whether only an adapter is trained."""
        return self.trained < self.parameters

    def cache_token(self) -> int:
        """Return the bytes of a token's keys and values in the cache."""
        return 2 * self.layers * self.key_heads * self.head_width * self.bytes

    def copied_token(self) -> int:
        """Return the bytes that a prefill copies for each token in the cache: keys and values of one layer, gathered,
        and repeated for heads that share them.
        """
        repeated = self.heads // self.key_heads if self.heads > self.key_heads else 0
        return self.cache_token() // self.layers * (1 + repeated)


@dataclass(frozen=True, slots=True)
class Part:
    """One item that uses memory."""

    name: str
    size: int
    """Size in bytes."""
    how: str
    """Explanation of the estimate."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of a run: what it always holds, what each phase needs in addition, and what it needs on the host."""

    persistent: tuple[Part, ...]
    playing: tuple[Part, ...]
    learning: tuple[Part, ...]
    stepping: tuple[Part, ...]
    """Memory at an optimizer step, when no activations exist."""
    host: tuple[Part, ...] = ()
    """Main memory, if the model is on a GPU."""

    @property
    def total(self) -> int:
        """Return the peak of device memory. Playing and learning never overlap."""
        return _sum(self.persistent) + max(_sum(self.playing), _sum(self.learning), _sum(self.stepping))


def outline(config: Any, scale: ScaleConfig | None = None) -> Outline:
    """Return the sizes of a model, built from its transformers config alone, with the dtype and adapter of `scale`."""
    scale = scale or ScaleConfig(precision="float32")
    dtype = torch.float32 if scale.precision == "auto" else getattr(torch, scale.precision)
    config = copy.deepcopy(config)
    register_counting()
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(
                config,
                dtype=dtype,
                attn_implementation=COUNTING,
                experts_implementation=COUNTING,
                trust_remote_code=False,
            )
    except Exception as error:  # Each architecture raises its own errors for a wrong config.
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


def estimate(
    shape: Outline, config: GRPOConfig, *, on_gpu: bool = False, ranks: int = 1, device: int = 0
) -> MemoryEstimate:
    """Return the memory estimate of one rank of a run with these settings. `shape` must have the compute dtype;
    `device` is the memory of the device, of which the run's own vLLM server has a share.
    """
    longest, scale = config.longest_row, config.scale
    mini_batches = min(config.optimizer.num_mini_batches, config.play.num_prompts)
    rows = -(-config.play.num_prompts // mini_batches) * config.play.num_generations
    # A row longer than a micro-batch is a micro-batch of its own.
    tokens = min(max(config.optimizer.micro_batch_tokens, longest), rows * longest)
    persistent = [Part("weights", shape.weight_bytes, f"counted, {shape.bytes} bytes each")]
    if config.recipe.kl.beta > 0 and not shape.adapted:
        persistent.append(Part("reference model", shape.weight_bytes, f"a copy, for beta is {config.recipe.kl.beta:g}"))
    trained, bits = shape.trained // ranks, scale.optimizer_bits or 32
    state = [Part("AdamW state", round(trained * MOMENTS[bits]), f"moments in {bits} bits")]
    if ranks > 1:
        frozen = (shape.parameters - shape.trained) * shape.bytes // ranks
        persistent.append(Part("sharded weights", trained * FLOAT + frozen, f"one of {ranks} shards"))
    elif shape.bytes != FLOAT and not shape.adapted:
        state.append(Part("float32 copies", trained * FLOAT, "what the optimizer steps on"))
    gradients = Part("gradients", trained * FLOAT, "sums in float32, one figure a trained weight")
    summed_later = ranks > 1 and not scale.reduce_each_pass
    own_sums = Part("gradients", shape.trained * FLOAT, "whole float32 sums, until the ranks add theirs")
    batch = Part("batch", rows * longest * _BATCH, f"{rows} rows of {longest} tokens, at {_BATCH} bytes")
    host = [batch] if on_gpu else []
    playing = _playing(shape, config, on_gpu=on_gpu) if config.engine.kind != "vllm" else ()
    if on_gpu and config.engine.kind == "vllm" and not (config.engine.urls or config.engine.gpus):
        playing = (Part("vLLM server", round(config.engine.memory_share * device), "asleep while the learner learns"),)
        host.append(Part("vLLM's weights", shape.weight_bytes, "kept in main memory while the server sleeps"))
    persistent += [] if on_gpu else [batch]
    (host if scale.optimizer_offload else persistent).extend(state)
    if config.engine.kind == "process":
        persistent.append(Part("engine's weights", shape.weight_bytes, "a copy, in a process of its own"))
    if on_gpu:
        persistent.append(Part("GPU context", _CONTEXT, "with libraries and workspaces; about"))
    checkpointed, trains_head = bool(scale.gradient_checkpointing), not shape.adapted
    passes = _passes(shape, tokens, checkpointed=checkpointed, trains_head=trains_head, on_gpu=on_gpu)
    return MemoryEstimate(
        tuple(persistent),
        playing,
        (own_sums if summed_later else gradients, *passes, *(_gathered(shape) if ranks > 1 else ())),
        (gradients, *([_bucket(shape, state)] if scale.optimizer_offload else ())),
        tuple(host),
    )


def _bucket(shape: Outline, state: list[Part]) -> Part:
    """Return the optimizer state that is on the device at once, if it is in main memory between the steps."""
    largest = shape.width * (shape.words if not shape.adapted else max(shape.inner, shape.width))
    share = min(1.0, max(largest, BUCKET_WEIGHTS) / shape.trained)
    return Part("optimizer bucket", round(share * sum(part.size for part in state)), "state that is stepped at once")


def _gathered(shape: Outline) -> tuple[Part, ...]:
    """Return the weights that each rank of a sharded model holds whole in a pass: embedding, output layer, two layers,
    and the gradient of one layer.
    """
    outside = shape.words * shape.width * (1 if shape.tied else 2)
    layer = (shape.parameters - outside) // shape.layers
    size = outside * shape.bytes + layer * (2 * shape.bytes + FLOAT)
    return (Part("gathered weights", size, "of two layers, and what is outside of layers"),)


def _playing(shape: Outline, config: GRPOConfig, *, on_gpu: bool) -> tuple[Part, ...]:
    """Return the memory of the built-in engine while it plays."""
    slots, whole = config.play.slots, config.play.slots * config.longest_row
    cached = min(config.play.cache_tokens or whole, whole)
    prefill = min(_PREFILL_TOKENS, cached) * (shape.width + shape.inner) * shape.bytes * 4
    packed = (
        0
        if on_gpu
        else packed_weights(shape.model) * (shape.bytes if config.engine.sampling_precision == "same" else 2)
    )
    return (
        *([Part("packed weights", packed, "matrices in the layout in which a CPU samples faster")] if packed else []),
        Part("key-value cache", cached * shape.cache_token(), f"{cached} tokens in {slots} slots"),
        Part("sampling", slots * shape.words * _SAMPLING[shape.bytes], f"{slots} rows of {shape.words} words"),
        Part("prefill", prefill + cached * shape.copied_token(), "one pass through a layer, and copies of its cache"),
    )


def _passes(shape: Outline, tokens: int, *, checkpointed: bool, trains_head: bool, on_gpu: bool) -> list[Part]:
    """Return the peak memory of the forward and backward pass of a micro-batch."""
    counted = activation_bytes(shape.model, tokens)
    if counted is None:
        return [Part("activations", 0, "could not be counted for this architecture: not in the total")]
    layer, outside = counted
    boundary = tokens * shape.width * shape.bytes
    stack = shape.layers * (boundary if checkpointed else layer)
    how = f"{tokens} tokens, {shape.layers} layers" + (", one tensor each" if checkpointed else "")
    head = shape.words * shape.width * trains_head
    block = min(BLOCK["cuda" if on_gpu else "cpu"], tokens)
    short = shape.bytes % FLOAT  # A logit also exists in the short type, if that is not float32.
    logits = block * (shape.words if on_gpu else min(WORDS, shape.words))
    # First logits and their exponentials; later the gradients of logits and head, and a block's share of the latter.
    at_head = max(logits * 2 * FLOAT, logits * (FLOAT + short) + head * (FLOAT + (short or FLOAT)))
    # The gradient of a tied output layer is held until that of the embedding is computed.
    in_layers = round(layer * (_AGAIN if checkpointed else _GRADIENTS)) + head * shape.bytes * shape.tied
    worst = max(
        (at_head, f"a block of {block} tokens at the output layer, and its gradient"),
        (in_layers, "one layer in the backward pass"),
    )
    return [Part("activations", stack + outside, how), Part("backward pass", *worst)]


def _sum(parts: tuple[Part, ...]) -> int:
    return sum(part.size for part in parts)
