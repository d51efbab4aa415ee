"""Two seats divide books, hats and balls that are worth different things to them, as in arXiv 1706.05125.

A task:      Divide 2 books, 1 hat and 3 balls.
A game:      buyer_0    Take 2 books, 0 hats, 1 ball
             buyer_1    Take 0 books, 1 hat, 3 balls
             buyer_0    Accept

An offer names what the speaker takes; the other gets the rest. Each seat sees only its own values of the items; all
items together are worth 10 to each. Both seats get 0 unless an offer is accepted before the turns run out. After an
illegal turn the seat is told why, and one turn is used up.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from palaestra.envs.core.author import Game, Rounds
from palaestra.envs.core.scoring import RewardPart
from palaestra.episode import Message, Task

SEATS = ("buyer_0", "buyer_1")
KINDS = ("book", "hat", "ball")
WORTH = 10
"""Value of all items together, for each seat."""
TURNS = 8
"""Number of turns of a game, of both seats together. Illegal turns count."""
ItemCounts = tuple[int, ...]


def worth(counts: Sequence[int], values: Sequence[int]) -> int:
    """Return the value of these items for a seat."""
    return sum(n * value for n, value in zip(counts, values, strict=True))


def _valuations(counts: ItemCounts) -> list[ItemCounts]:
    """Return all value lists (one value for each kind) with which all items together are worth WORTH."""
    tops = [range(WORTH // count + 1) for count in counts]
    return [(a, b, c) for a in tops[0] for b in tops[1] for c in tops[2] if worth(counts, (a, b, c)) == WORTH]


DIVISIBLE = [counts for counts in product(range(1, 5), repeat=len(KINDS)) if _valuations(counts)]
"""Counts (one to four of each kind) for which some values make all items worth WORTH; 4, 4 and 4 have none."""


class Negotiation(Game):
    """Divide items with private values before the turns run out."""

    seats = SEATS
    system = dict.fromkeys(
        SEATS,
        "Begin with Take 1 book, 0 hats, 2 balls (the other gets the rest), or Accept. You are paid what your share is "
        "worth to you, and nothing without a deal.",
    )
    parts = {"success": RewardPart(), "deal": RewardPart(weight=0.0)}  # noqa: RUF012

    def task(self, rng: np.random.Generator) -> Task:
        """Draw one to four items of each kind, and the values for each seat."""
        counts = DIVISIBLE[rng.integers(len(DIVISIBLE))]
        ways = _valuations(counts)
        first, second = (ways[at] for at in rng.integers(len(ways), size=2))
        return Task(prompt=f"Divide {items_text(counts)}.", data={"counts": counts, "values": [first, second]})

    def rounds(self, task: Task, rng: np.random.Generator) -> Rounds:
        """Let the seats take turns until an offer is accepted. The random stream of the game decides who begins."""
        counts: ItemCounts = task.data["counts"]
        values: Mapping[str, ItemCounts] = dict(zip(SEATS, task.data["values"], strict=True))
        speaker, other = SEATS if rng.random() < 0.5 else SEATS[::-1]
        openings = {seat: f"{task.prompt} To you {worths(values[seat])}." for seat in SEATS}
        offer: ItemCounts | None = None
        message = "You begin with an offer."
        for left in range(TURNS, 0, -1):
            text = (yield {speaker: f"{openings.pop(speaker, '')} {message} {left} turns left.".strip()})[speaker]
            if accepts(text) and offer is not None:
                shares = {other: offer, speaker: tuple(n - m for n, m in zip(counts, offer, strict=True))}
                return {seat: {"success": worth(shares[seat], values[seat]) / WORTH, "deal": 1.0} for seat in SEATS}
            counts_taken, fault = read_offer(text, counts)
            if counts_taken is None:
                message = "There is no offer to accept: say Take and what you take." if accepts(text) else fault
                continue
            offer, message = counts_taken, f"The other takes {items_text(counts_taken)}."
            speaker, other = other, speaker
        return {seat: {"success": 0.0, "deal": 0.0} for seat in SEATS}


def items_text(counts: Sequence[int]) -> str:
    """Return counts as text, for example `2 books, 1 hat, 3 balls`."""
    return ", ".join(f"{n} {kind if n == 1 else kind + 's'}" for n, kind in zip(counts, KINDS, strict=True))


def worths(values: Sequence[int]) -> str:
    """Return the value of one item of each kind, as text."""
    return ", ".join(f"a {kind} is worth {value}" for value, kind in zip(values, KINDS, strict=True))


def accepts(text: str | None) -> bool:
    return re.match(r"\W*accept\b", text or "", re.IGNORECASE) is not None


def read_offer(text: str | None, counts: ItemCounts) -> tuple[ItemCounts | None, str]:
    """Return (the items that the speaker takes, ""), or (None, why the offer is illegal). Kinds not named are 0."""
    match = re.match(r"\W*take\b(.*)", text or "", re.IGNORECASE)
    items = re.findall(r"(?<![-.\d])(\d{1,3}) (book|hat|ball)s?\b", match[1].lower() if match else "")
    if not items:
        return None, "That is no offer: say Take and what you take, or Accept."
    if len({kind for _, kind in items}) < len(items):
        return None, "That is no legal offer: it names a kind twice."
    numbers = {kind: int(number) for number, kind in items}
    for kind, there in zip(KINDS, counts, strict=True):
        if numbers.get(kind, 0) > there:
            return None, f"That is no legal offer: the {kind}s are {there}."
    return tuple(numbers.get(kind, 0) for kind in KINDS), ""


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play either seat by rule: accept half of the worth, or less near the end; otherwise offer to take the best items.

    This game has no tool; with probability 1 - tool_rate the turn is illegal.
    """
    texts = [str(message["content"]) for message in messages if message["role"] == "user"]
    counts = tuple(int(n) for n in re.findall(r"(\d+) (?:book|hat|ball)", texts[0].partition(".")[0]))
    values = tuple(int(value) for value in re.findall(r"is worth (\d+)", texts[0]))
    turns = re.search(r"(\d+) turns left", texts[-1])
    if len(counts) != len(KINDS) or len(values) != len(KINDS) or turns is None or rng.random() >= tool_rate:
        return "Let us see."
    offered = re.search(r"The other takes ([^.]*)", texts[-1])
    left = int(turns[1])
    if offered:
        remaining = [n - int(m) for n, m in zip(counts, re.findall(r"\d+", offered[1]), strict=True)]
        if worth(remaining, values) >= (WORTH // 2 if left > 2 else 1):
            return "Accept"
    aim, offer = min(WORTH, 4 + left // 2), [0] * len(KINDS)
    for at in sorted(range(len(KINDS)), key=lambda at: -values[at]):
        while offer[at] < counts[at] and values[at] and worth(offer, values) < aim:
            offer[at] += 1
    return f"Take {items_text(offer)}"
