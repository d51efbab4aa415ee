"""Plan a run on a number of cards: try the splits between serving and learning, and keep the fastest that fits.

One card plays and learns in turn. Several are split; each serving card has a server of its own. Left out: a model that
needs several cards for one server, which vLLM can divide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.plan.card_costs import Card, card_costs
from palaestra.trainers.plan.step_simulation import ServingLayout, StepForecast, StepSimulation
from palaestra.trainers.plan.workload import PlannedEpisode, sample_episodes
from palaestra.trainers.scale.available_memory import gpu_room
from palaestra.trainers.scale.fit_memory import fitted
from palaestra.trainers.scale.memory_estimate import Outline, outline
from palaestra.trainers.validation import changed

_SERVER_SHARE = 0.9
"""Share of its card's memory that vLLM takes where nothing else uses the card."""
_SERVER_WORKSPACE = 3 * 2**30
"""Bytes of a server that are neither weights nor cache; assumed."""
_ROWS = 256
"""Most rows that a server decodes at once."""


@dataclass(frozen=True, slots=True)
class CardPlan:
    """The forecast for one number of cards."""

    cards: int
    serving: int
    learning: int
    slots: int
    max_staleness: int
    step: StepForecast
    notes: tuple[str, ...] = ()
    """Settings that `train` would choose for the learner to fit."""

    def dollars(self, price: float) -> float:
        """Return what a step costs, if a card costs so much an hour."""
        return self.cards * price * self.step.seconds / 3600


def plan_cards(
    cards: int, config: GRPOConfig, model_config: Any, card: Card, episodes: Sequence[PlannedEpisode]
) -> list[CardPlan]:
    """Return the fastest plan by turns, and for several cards also the fastest that plays one batch ahead.

    Raise `UsageError` if no split fits.
    """
    count = config.play.num_prompts * config.play.num_generations
    sequence, plans, refused = sample_episodes(episodes, 4 * count), list[CardPlan](), ""
    for serving in _splits(cards):
        learning = 1 if cards == 1 else cards - serving
        try:
            settled, notes = _learner(config, model_config, card, learning, shared=cards == 1)
            shape = outline(model_config, settled.scale)
            room = _slots(shape, settled, card, episodes, serving, shared=cards == 1)
        except UsageError as error:
            refused = str(error)
            continue
        costs = card_costs(shape, settled, card, episodes, learners=learning, shared=cards == 1, cards=cards)
        for staleness in (0, 1) if cards > 1 else (0,):
            slots = min(room, count * (1 + staleness))
            layout = ServingLayout(serving, slots, count, config.play.num_generations, staleness)
            step = StepSimulation(costs, layout, sequence).forecast(steps=4)
            plans.append(CardPlan(cards, serving, learning, slots, staleness, step, notes))
    if not plans:
        raise UsageError(f"no split of {cards} cards fits: {refused}")
    ranked = sorted(plans, key=lambda plan: plan.step.seconds)
    by_turns, ahead = ([plan for plan in ranked if plan.max_staleness == lead] for lead in (0, 1))
    return by_turns[:1] + ahead[:1]


def extrapolated(cards: int, smaller: Sequence[CardPlan], larger: Sequence[CardPlan]) -> list[CardPlan]:
    """Return the larger plans with the step time of `cards` cards: `fixed + divided / cards` through both of a kind."""
    kinds = {plan.max_staleness: plan for plan in smaller}
    plans = []
    for large in larger:
        if (small := kinds.get(large.max_staleness)) is None:
            continue
        divided = max(0.0, small.step.seconds - large.step.seconds) / (1 / small.cards - 1 / large.cards)
        seconds = large.step.seconds - divided / large.cards + divided / cards
        factor, step = cards / large.cards, replace(large.step, seconds=seconds)
        serving, slots = round(large.serving * factor), round(large.slots * factor)
        plans.append(replace(large, cards=cards, serving=serving, learning=cards - serving, slots=slots, step=step))
    return plans


def _splits(cards: int) -> Iterator[int]:
    """Yield how many cards serve: every number up to 8 cards, of more every eighth."""
    yield from range(1, max(2, cards)) if cards <= 8 else range(cards // 8, cards, cards // 8)


def _learner(
    config: GRPOConfig, model_config: Any, card: Card, learning: int, *, shared: bool
) -> tuple[GRPOConfig, tuple[str, ...]]:
    """Return the config with which the learner fits its cards. Raise `UsageError` if it does not."""
    engine = {"kind": "vllm", "urls": (), "gpus": () if shared else ("0",)}  # Servers that are named are cards as well.
    fit = fitted(changed(config, engine), model_config, replace(gpu_room(card.size), ranks=learning))
    return fit.config, fit.notes


def _slots(
    shape: Outline, config: GRPOConfig, card: Card, episodes: Sequence[PlannedEpisode], serving: int, *, shared: bool
) -> int:
    """Return how many episodes the servers hold at once, with rows of their mean length."""
    share = config.engine.memory_share if shared else _SERVER_SHARE
    free = share * card.size * 1e9 - shape.weight_bytes - _SERVER_WORKSPACE
    tokens = free / shape.cache_token()
    if tokens < config.longest_row:
        raise UsageError(
            f"a server with {share:.0%} of {card.size:g} GB has no room for one row of {config.longest_row} tokens "
            "beside the weights; serve it divided (vLLM's --tensor-parallel-size)"
        )
    mean = sum(episode.tokens for episode in episodes) / len(episodes)
    return serving * max(1, min(_ROWS, int(tokens / mean)))
