"""`palaestra plan MODEL --env ID`: forecast a run's step on rented cards, and what it costs, before one is rented.

It computes on this machine alone: the model's config, the memory estimate of `doctor`, and a simulation of the step.
Left out: a measurement. No figure that it shows has been compared with a GPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from palaestra.cli.finding import say
from palaestra.cli.output import Reported, reporting
from palaestra.cli.train import parse
from palaestra.errors import UsageError
from palaestra.reading import RecordReader
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.plan.card_costs import BANDWIDTH_SHARE, CARDS, LEARNING_SHARE, READING_SHARE, CardName
from palaestra.trainers.plan.workload import AssumedEpisodes, PlannedEpisode, measured

if TYPE_CHECKING:
    from palaestra.trainers.plan.card_plan import CardPlan

_LARGEST = 64
"""Most cards that are simulated. More are extrapolated from half as many and from these."""
_DRAWN = 512
"""Episodes that are drawn where no file has any."""


@dataclass(frozen=True)
class PlanOptions(Reported):
    """Forecast a step of a training run on GPUs: its seconds, idle time, the best split of the cards, and its price.

    Options of `palaestra train` describe the run. Nothing is played, learned or rented.
    """

    model: Annotated[str, tyro.conf.Positional]
    """Folder or hub name of the model; only its config and tokenizer are read."""
    env: str = "two-hop"
    """Environment; of a file's episodes those of this environment count."""
    gpus: tuple[int, ...] = (1, 8, 64, 512)
    """Numbers of cards; more than 64 are extrapolated."""
    card: CardName = "h100"
    """Kind of the cards: 80 GB of an A100 or H100, 141 GB of an H200, 180 GB of a B200."""
    price: float | None = None
    """Dollars that a card costs an hour."""
    episodes: tuple[Path, ...] = ()
    """Files of recorded episodes (`palaestra eval --save FILE`), whose lengths and tool seconds are taken."""
    assumed: AssumedEpisodes = field(default_factory=AssumedEpisodes)
    """Episodes where no file is given."""

    def __post_init__(self) -> None:
        if self.price is not None and self.price < 0:
            raise UsageError(f"--price is {self.price:g}; expected dollars that a card costs an hour, such as 2.5")
        if not self.gpus or min(self.gpus) < 1:
            raise UsageError("--gpus expects numbers of cards, each at least 1, such as 1 8 64")


def run(arguments: Sequence[str]) -> int:
    """Print the forecast for each number of cards. Return 1 if the run fits on none of them."""
    options, remaining = tyro.cli(PlanOptions, args=list(arguments), prog="palaestra plan", return_unknown_args=True)
    config = parse([options.env, "--model", options.model, *remaining], "palaestra plan").config
    with reporting(options.json) as figures:
        return _plan(options, config, figures)


def _plan(options: PlanOptions, config: GRPOConfig, figures: dict[str, Any]) -> int:
    from palaestra.agents.known_models import located
    from palaestra.cli.model_check import read
    from palaestra.trainers.scale.memory_estimate import outline

    model_config, _, _ = read(located(options.model))
    outline(model_config)  # Raises an error for a config that is no language model's.
    episodes = _episodes(options, config)
    plans, refused = _plans(options, config, model_config, episodes)
    if plans:
        Console().print(_table(options, plans))
    for text in refused.values():
        say(text)
    rests = list(_rests(options, episodes, plans))
    for text in rests:
        say(text)
    rows = [asdict(plan) for plan in plans]
    for row, plan in zip(rows, plans, strict=True):
        row["dollars"] = None if options.price is None else plan.dollars(options.price)
    figures |= {"plans": rows, "refused": refused, "rests_on": rests}
    return 0 if plans else 1


def _episodes(options: PlanOptions, config: GRPOConfig) -> list[PlannedEpisode]:
    """Return the recorded episodes of the environment, or drawn ones where no file is named."""
    if not options.episodes:
        return options.assumed.draw(_DRAWN, config.longest_row)
    records = [record for _, record in RecordReader(options.episodes, say)]
    selected = [record.episode for record in records if record.env_id == config.env.env_id]
    if not selected:
        others = ", ".join(sorted({record.env_id for record in records})) or "none"
        raise UsageError(f"no file has an episode of {config.env.env_id}; environments of their episodes: {others}")
    return measured(selected)


def _plans(
    options: PlanOptions, config: GRPOConfig, model_config: Any, episodes: Sequence[PlannedEpisode]
) -> "tuple[list[CardPlan], dict[int, str]]":
    """Return the plans for all numbers of cards, and for each number on which the run does not fit the reason."""
    from palaestra.trainers.plan.card_plan import extrapolated, plan_cards

    @cache
    def simulated(cards: int) -> "list[CardPlan]":
        return plan_cards(cards, config, model_config, CARDS[options.card], episodes)

    plans, refused = list["CardPlan"](), dict[int, str]()
    for cards in sorted(set(options.gpus)):
        try:
            if cards <= _LARGEST:
                plans += simulated(cards)
            else:
                plans += extrapolated(cards, simulated(_LARGEST // 2), simulated(_LARGEST))
        except UsageError as error:
            refused[cards] = str(error)
    return plans, refused


def _table(options: PlanOptions, plans: "Sequence[CardPlan]") -> Table:
    """Return the table of all plans."""
    table = Table(
        title=f"A step of {options.model} on {options.card}: split is serving + learning", title_justify="left"
    )
    for name in ("cards", "play", "split", "slots", "s", "serving idle", "learning idle"):
        table.add_column(name, justify="left" if name == "play" else "right")
    if options.price is not None:
        table.add_column("$", justify="right")
    for plan in plans:
        ways = "ahead" if plan.max_staleness else "by turns"
        split = "1 in turn" if plan.cards == 1 else f"{plan.serving}+{plan.learning}"
        idle = [f"{share:.0%}" for share in (plan.step.serving_idle, plan.step.learning_idle)]
        if plan.cards > _LARGEST:
            split, idle = "-", ["-", "-"]
        dollars = [] if options.price is None else [f"{plan.dollars(options.price):.2f}"]
        table.add_row(f"{plan.cards}", ways, split, f"{plan.slots}", f"{plan.step.seconds:.1f}", *idle, *dollars)
    return table


def _rests(options: PlanOptions, episodes: Sequence[PlannedEpisode], plans: "Sequence[CardPlan]") -> Iterator[str]:
    """Yield sentences on what the figures rest on."""
    card, count = CARDS[options.card], len(episodes)
    if any(plan.cards > _LARGEST for plan in plans):
        yield (
            f"More than {_LARGEST} cards: extrapolated from {_LARGEST // 2} and {_LARGEST} by fixed + divided / cards; "
            "nothing was simulated."
        )
    turns = sum(len(episode.turns) for episode in episodes) / count
    sampled = sum(episode.sampled for episode in episodes) / count
    tokens = sum(episode.tokens for episode in episodes) / count
    waited = sum(turn.tool_seconds for episode in episodes for turn in episode.turns) / count
    yield (
        f"Episodes: {f'{count} recorded' if options.episodes else f'{count} drawn around --assumed.*, none measured'}; "
        f"on average {turns:.1f} turns, {sampled:,.0f} sampled tokens of {tokens:,.0f}, {waited:.1f} s of tools."
    )
    yield (
        f"Card: its maker's figures, {card.bandwidth / 1e12:g} TB/s, {card.matrix / 1e12:,.0f} TFLOP/s in bfloat16, "
        f"{card.size:g} GB."
    )
    yield (
        f"Assumed: decoding reaches {BANDWIDTH_SHARE:.0%} of the bandwidth, reading prompts {READING_SHARE:.0%} and "
        f"learning {LEARNING_SHARE:.0%} of the matrix rate. Nothing was measured on a GPU."
    )
    notes = {plan.cards: ", ".join(plan.notes) for plan in plans if plan.notes and plan.cards <= _LARGEST}
    if notes:
        yield "To fit, train chooses: " + "; ".join(f"with {cards}, {text}" for cards, text in notes.items()) + "."
