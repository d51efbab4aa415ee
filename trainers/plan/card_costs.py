"""The costs of a step on cards: decoding bound by memory bandwidth, reading and learning by the matrix rate.

Rates of the cards are those of NVIDIA's data sheets of the SXM versions, dense, in bfloat16 (the sheets of newer ones
print twice that, for sparse matrices); a B200 is an eighth of a DGX B200. The shares of them that are reached, and the
seconds of the trainer's process, are assumptions: none was measured on a card. Left out: what fits into the memory
(`card_plan`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.plan.step_simulation import Costs
from palaestra.trainers.plan.workload import PlannedEpisode

if TYPE_CHECKING:
    from palaestra.trainers.scale.memory_estimate import Outline  # It imports torch, which `--help` needs not.

BANDWIDTH_SHARE, READING_SHARE, LEARNING_SHARE = 0.6, 0.5, 0.4
"""Assumed shares of bandwidth that decoding reaches, and of the matrix rate that reading and learning reach."""
RECOMPUTED = 4 / 3
"""Factor of learning with activation checkpointing: the forward pass is computed twice."""
PASS_SECONDS, TURN_SECONDS, NOTICED_SECONDS, PUBLISH_SECONDS = 0.002, 0.001, 0.005, 0.5
"""Assumed: what a server does beside each pass, the trainer's work for a turn, the delay before it notices a turn, and
what it takes to stop and start the servers at an update."""
MACHINE = 8
"""Cards of one machine; what joins more cards goes over the network."""
_HOST_LINK = 25e9
"""Bytes a second between a card and the main memory, where a server that sleeps keeps its weights."""
_STEPPED_BYTES = 40
"""Bytes that AdamW reads and writes for each weight: float32 copy, two moments and gradient, and the rounded weight."""


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of card."""

    size: float
    """Memory in GB."""
    bandwidth: float
    """Bytes a second of its memory."""
    matrix: float
    """Operations a second of dense products in bfloat16."""
    link: float
    """Bytes a second in one direction to the other cards of its machine."""
    network: float = 50e9
    """Bytes a second to other machines."""


CardName = Literal["a100", "h100", "h200", "b200"]
CARDS: dict[CardName, Card] = {
    "a100": Card(80, 2.039e12, 312e12, 300e9, 25e9),
    "h100": Card(80, 3.35e12, 989e12, 450e9),
    "h200": Card(141, 4.8e12, 989e12, 450e9),
    "b200": Card(180, 8e12, 2250e12, 900e9),
}


def card_costs(
    shape: "Outline",
    config: GRPOConfig,
    card: Card,
    episodes: Sequence[PlannedEpisode],
    *,
    learners: int,
    shared: bool,
    cards: int,
) -> Costs:
    """Return the costs on `cards` cards of which `learners` learn; `shared`: one card plays and learns in turn."""
    active, bandwidth = active_parameters(shape), card.bandwidth * BANDWIDTH_SHARE
    link = card.link if cards <= MACHINE else card.network
    reading = 2 * active / (card.matrix * READING_SHARE)
    length = sum(episode.tokens**2 for episode in episodes) / sum(episode.tokens for episode in episodes)
    attention = 6 * shape.layers * shape.heads * shape.head_width * length  # Causal: half of all pairs.
    learned = (6 * active + attention) / (card.matrix * LEARNING_SHARE)
    if config.scale.gradient_checkpointing:
        learned *= RECOMPUTED
    if learners > 1:  # A micro-batch gathers the weights twice and scatters their gradients; nothing overlaps.
        learned += 3 * shape.weight_bytes / link / max(1, config.optimizer.micro_batch_tokens)
    stepped = shape.trained / learners * _STEPPED_BYTES / (_HOST_LINK if config.scale.optimizer_offload else bandwidth)
    sent = shape.weight_bytes / (bandwidth if shared else link)
    sleep = 2 * shape.weight_bytes / _HOST_LINK if shared else 0.0
    return Costs(
        decode_pass=shape.weight_bytes / bandwidth + PASS_SECONDS,
        decode_row=2 * active / (card.matrix * READING_SHARE),
        decode_context=shape.cache_token() / bandwidth,
        read_token=reading,
        turn=TURN_SECONDS,
        latency=NOTICED_SECONDS,
        learn_step=stepped * config.optimizer.num_mini_batches,
        learn_token=learned / learners,
        publish=sent + sleep + PUBLISH_SECONDS,
    )


def active_parameters(shape: "Outline") -> int:
    """Return the weights that one token is multiplied with: of a mixture's experts only those that it is sent to."""
    config: Any = shape.model.config.get_text_config()
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if not experts:
        return shape.parameters
    within = sum(weight.numel() for name, weight in shape.model.named_parameters() if ".experts." in name)
    active: int = shape.parameters - within + within * config.num_experts_per_tok // experts
    return active
