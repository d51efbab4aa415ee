"""What the shop of `web_shop` sells, and how well a purchase fits what was asked for.

`fit` is WebShop's reward (arXiv 2207.01206, section 3.3; `web_agent_site/engine/goal.py` of its code): the share of
attributes, options and the price bound that fit, times how well the type does. Two parts of it are ours: words of
titles are compared instead of nouns, and an attribute or option fits where all its words are there, not by fuzzy match.

Left out: WebShop's own goods (`web_shop_files`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from palaestra.envs.suite.two_hop import NAMES

KINDS = ("kettle", "lamp", "jacket", "backpack", "rug", "clock", "blanket", "bottle")
ATTRIBUTES = (
    "waterproof", "lightweight", "foldable", "handmade", "recycled", "washable", "quiet", "unbreakable", "odourless",
    "heat resistant", "easy to clean", "made of wool",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "black", "white", "yellow")
SIZES = ("small", "medium", "large", "extra large")
MAKERS = 7
"""Products of a kind."""
_WORD = re.compile(r"\w+")


def money(cents: int) -> str:
    return f"${cents / 100:.2f}"


def words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


@dataclass(frozen=True)
class Product:
    """One thing that is sold."""

    key: str
    title: str
    query: str
    """What kind of thing it is."""
    price: int
    """In cents."""
    attributes: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    """What its page says of it, its attributes among it."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    category: str = ""
    """Levels, from wide to narrow, between ›."""
    description: str = ""

    def plain(self) -> dict[str, Any]:
        """What a reward reads of it."""
        return {name: value for name, value in asdict(self).items() if name != "options"}

    @cached_property
    def found_by(self) -> frozenset[str]:
        """The words that a search finds it by."""
        return words(" ".join((self.title, self.query, *self.attributes, *self.bullets, self.description)))


class Catalogue:
    """All that a shop sells. It has no state."""

    def __init__(self, products: Iterable[Product], number: int = 0) -> None:
        self.number = number
        self.products: Mapping[str, Product] = {one.key: one for one in products}
        self.kinds = sorted({one.query for one in self.products.values()})

    def __deepcopy__(self, memo: object) -> "Catalogue":
        return self

    def search(self, query: str) -> list[Product]:
        """Those that hold a word of the query, most words first; all for an empty one."""
        wanted = words(query)
        ranked = [(len(wanted & one.found_by), one) for one in self.products.values()]
        found = [pair for pair in ranked if pair[0] or not wanted]
        return [one for _, one in sorted(found, key=lambda pair: -pair[0])]


@lru_cache(maxsize=256)
def draw_catalogue(number: int) -> Catalogue:
    """A generated one. Products of a kind share most of their attributes, so that several nearly fit."""
    rng = np.random.default_rng(number)
    products = []
    for kind in KINDS:
        usual = rng.permutation(ATTRIBUTES)[:5].tolist()
        for maker in rng.permutation(NAMES)[:MAKERS].tolist():
            attributes = [usual[at] for at in sorted(rng.permutation(5)[:3])]
            colours = [COLOURS[at] for at in sorted(rng.permutation(len(COLOURS))[:4])]
            sizes = [SIZES[at] for at in sorted(rng.permutation(len(SIZES))[:3])]
            products.append((maker, kind, int(rng.integers(900, 9900)), attributes, colours, sizes))
    return Catalogue(
        (
            Product(f"P{at}", f"{maker} {kind}", kind, price, tuple(attributes), tuple(attributes),
                    {"colour": tuple(colours), "size": tuple(sizes)})
            for at, (maker, kind, price, attributes, colours, sizes) in
            enumerate((products[at] for at in rng.permutation(len(products))), 1)
        ),
        number,
    )  # fmt: skip


def fit(line: Mapping[str, Any], goal: Mapping[str, Any]) -> float:
    """How well a line of an order fits a goal, from 0 to 1."""
    text = " ".join((line["title"], *line["bullets"], line["description"])).lower()
    attributes = sum(_holds(line["attributes"], one) or one.lower() in text for one in goal["attributes"])
    chosen = list(line["chosen"].values())
    options = sum(_holds(chosen, one) for one in goal["options"])
    cheap = goal["most"] is None or line["price"] <= goal["most"]
    asked = len(goal["attributes"]) + len(goal["options"]) + 1
    return type_fit(line, goal) * (attributes + options + cheap) / asked


def _holds(texts: Iterable[str], wanted: str) -> bool:
    """Whether one of the texts has the words of another, and no others."""
    return any(words(text) == words(wanted) for text in texts)


def type_fit(line: Mapping[str, Any], goal: Mapping[str, Any]) -> float:
    """WebShop's factor for the type: 0, 0.1, 0.5 or 1, by the words of the titles, the query and the categories."""
    wanted = words(goal["title"])
    title = len(words(line["title"]) & wanted) / len(wanted) if wanted else 0.2
    if title < 0.1:
        return 0.1 if title else 0.0
    shared = {one.strip() for one in line["category"].split("›")} & {one.strip() for one in goal["category"].split("›")}
    return 1.0 if line["query"] == goal["query"] or len(shared) >= 2 or title > 0.2 else 0.5
