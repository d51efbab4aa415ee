"""Two seats divide books, hats and balls that are worth different things to them, as in arXiv 1706.05125.

A task:      Divide 2 books, 1 hat and 3 balls.
A game:      buyer_0    Take 2 books, 0 hats, 1 ball
             buyer_1    Take 0 books, 1 hat, 3 balls
             buyer_0    Accept

An offer names what the speaker takes; the other gets the rest. What an item is worth to a seat, only that seat is
told; all items together are worth 10 to each. Nobody gets anything unless an offer is accepted before the turns run
out. A turn that is neither a legal offer nor an acceptance is answered, and uses up a turn.
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
"""What all items together are worth to a seat."""
TURNS = 8
"""Of both seats together, illegal ones too."""
Counts = tuple[int, ...]


def worth(counts: Sequence[int], values: Sequence[int]) -> int:
    """What these items are worth to a seat."""
    return sum(n * value for n, value in zip(counts, values, strict=True))


def _valuations(counts: Counts) -> list[Counts]:
    """Every way to value the kinds so that all items are worth WORTH together."""
    tops = [range(WORTH // count + 1) for count in counts]
    return [(a, b, c) for a in tops[0] for b in tops[1] for c in tops[2] if worth(counts, (a, b, c)) == WORTH]


DIVISIBLE = [counts for counts in product(range(1, 5), repeat=len(KINDS)) if _valuations(counts)]
"""One to four of each kind, where some values make them worth WORTH together; 4, 4 and 4 have none."""


class Negotiation(Game):
    """Divide items with private values before the turns run out."""

    seats = SEATS
    system = dict.fromkeys(SEATS, "Say Take 1 book, 0 hats, 2 balls (the other gets the rest), or Accept.")
    parts = {"success": RewardPart(), "deal": RewardPart(weight=0.0)}  # noqa: RUF012

    def task(self, rng: np.random.Generator) -> Task:
        """One to four of each kind, and two ways to value them."""
        counts = DIVISIBLE[rng.integers(len(DIVISIBLE))]
        ways = _valuations(counts)
        first, second = (ways[at] for at in rng.integers(len(ways), size=2))
        return Task(prompt=f"Divide {listed(counts)}.", data={"counts": counts, "values": [first, second]})

    def rounds(self, task: Task, rng: np.random.Generator) -> Rounds:
        """Offers in turn until one is accepted. The game's own randomness decides who begins."""
        counts: Counts = task.data["counts"]
        values: Mapping[str, Counts] = dict(zip(SEATS, task.data["values"], strict=True))
        speaker, other = SEATS if rng.random() < 0.5 else SEATS[::-1]
        told = {seat: f"{task.prompt} To you {worths(values[seat])}." for seat in SEATS}
        offer: Counts | None = None
        said = "You begin."
        for left in range(TURNS, 0, -1):
            text = (yield {speaker: f"{told.pop(speaker, '')} {said} {left} turns left.".strip()})[speaker]
            if accepts(text) and offer is not None:
                taken = {other: offer, speaker: tuple(n - m for n, m in zip(counts, offer, strict=True))}
                return {seat: {"success": worth(taken[seat], values[seat]) / WORTH, "deal": 1.0} for seat in SEATS}
            mine, fault = read_offer(text, counts)
            if mine is None:
                said = "There is no offer to accept." if accepts(text) else fault
                continue
            offer, said = mine, f"The other takes {listed(mine)}."
            speaker, other = other, speaker
        return {seat: {"success": 0.0, "deal": 0.0} for seat in SEATS}


def listed(counts: Sequence[int]) -> str:
    """2 books, 1 hat, 3 balls."""
    return ", ".join(f"{n} {kind if n == 1 else kind + 's'}" for n, kind in zip(counts, KINDS, strict=True))


def worths(values: Sequence[int]) -> str:
    """What one item of each kind is worth."""
    return ", ".join(f"a {kind} is worth {value}" for value, kind in zip(values, KINDS, strict=True))


def accepts(text: str | None) -> bool:
    return re.match(r"\W*accept\b", text or "", re.IGNORECASE) is not None


def read_offer(text: str | None, counts: Counts) -> tuple[Counts | None, str]:
    """What the speaker takes, or why the turn is no legal offer. A kind that is not named is left to the other."""
    found = re.match(r"\W*take\b(.*)", text or "", re.IGNORECASE)
    named = re.findall(r"(?<![-.\d])(\d{1,3}) (book|hat|ball)s?\b", found[1].lower() if found else "")
    if not named:
        return None, "That is no offer: say Take and what you take, or Accept."
    if len({kind for _, kind in named}) < len(named):
        return None, "That is no legal offer: it names a kind twice."
    taken = {kind: int(number) for number, kind in named}
    for kind, there in zip(KINDS, counts, strict=True):
        if taken.get(kind, 0) > there:
            return None, f"That is no legal offer: the {kind}s are {there}."
    return tuple(taken.get(kind, 0) for kind in KINDS), ""


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play either seat by rule: accept half of the worth, less towards the end; else take the best items.

    There is no tool here; with probability 1 - tool_rate it says nothing of use.
    """
    heard = [str(message["content"]) for message in messages if message["role"] == "user"]
    counts = tuple(int(n) for n in re.findall(r"(\d+) (?:book|hat|ball)", heard[0].partition(".")[0]))
    values = tuple(int(value) for value in re.findall(r"is worth (\d+)", heard[0]))
    turns = re.search(r"(\d+) turns left", heard[-1])
    if len(counts) != len(KINDS) or len(values) != len(KINDS) or turns is None or rng.random() >= tool_rate:
        return "Let us see."
    offered = re.search(r"The other takes ([^.]*)", heard[-1])
    left = int(turns[1])
    if offered:
        rest = [n - int(m) for n, m in zip(counts, re.findall(r"\d+", offered[1]), strict=True)]
        if worth(rest, values) >= (WORTH // 2 if left > 2 else 1):
            return "Accept"
    aim, taken = min(WORTH, 4 + left // 2), [0] * len(KINDS)
    for at in sorted(range(len(KINDS)), key=lambda at: -values[at]):
        while taken[at] < counts[at] and values[at] and worth(taken, values) < aim:
            taken[at] += 1
    return f"Take {listed(taken)}"
