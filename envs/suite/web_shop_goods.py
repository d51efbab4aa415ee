"""The products of the shop of `web_shop`, and how well a purchase fits its goal.

`fit` is WebShop's reward (arXiv 2207.01206, section 3.3; `web_agent_site/engine/goal.py` of its code): the share of
attributes, options and the price bound that fit, times a factor for the type. Two parts are different: the words of
titles are compared instead of nouns, and an attribute or option fits if all its words are the same, not by fuzzy match.

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
"""Number of products of each kind."""
_WORD = re.compile(r"\w+")


def money(cents: int) -> str:
    return f"${cents / 100:.2f}"


def words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


@dataclass(frozen=True)
class Product:
    """A product of the shop."""

    key: str
    title: str
    query: str
    """Kind of the product."""
    price: int
    """Price in cents."""
    attributes: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    """Bullet points of the product's page, including its attributes."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    category: str = ""
    """Category levels from wide to narrow, separated by ›."""
    description: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the product as plain data for a reward, without its options."""
        return {name: value for name, value in asdict(self).items() if name != "options"}

    @cached_property
    def found_by(self) -> frozenset[str]:
        """Words of the product that a search matches."""
        return words(" ".join((self.title, self.query, *self.attributes, *self.bullets, self.description)))


class Catalogue:
    """All products of a shop. It never changes, so copies share it."""

    def __init__(self, products: Iterable[Product], number: int = 0) -> None:
        self.number = number
        self.products: Mapping[str, Product] = {product.key: product for product in products}
        self.kinds = sorted({product.query for product in self.products.values()})

    def __deepcopy__(self, memo: object) -> "Catalogue":
        return self

    def search(self, query: str) -> list[Product]:
        """Return products with a word of the query, those with most words first. An empty query finds all products."""
        query_words = words(query)
        ranked = [(len(query_words & product.found_by), product) for product in self.products.values()]
        matches = [pair for pair in ranked if pair[0] or not query_words]
        return [product for _, product in sorted(matches, key=lambda pair: -pair[0])]


@lru_cache(maxsize=256)
def draw_catalogue(number: int) -> Catalogue:
    """Draw a catalogue. Products of a kind share most attributes, so several nearly fit a goal."""
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
    """Return how well a line of an order fits a goal, from 0 to 1."""
    text = " ".join((line["title"], *line["bullets"], line["description"])).lower()
    attributes = sum(_holds(line["attributes"], term) or term.lower() in text for term in goal["attributes"])
    chosen = list(line["chosen"].values())
    options = sum(_holds(chosen, term) for term in goal["options"])
    cheap = goal["most"] is None or line["price"] <= goal["most"]
    count = len(goal["attributes"]) + len(goal["options"]) + 1
    return type_fit(line, goal) * (attributes + options + cheap) / count


def _holds(texts: Iterable[str], term: str) -> bool:
    """Return whether one of the texts has exactly the words of a term."""
    return any(words(text) == words(term) for text in texts)


def type_fit(line: Mapping[str, Any], goal: Mapping[str, Any]) -> float:
    """Return WebShop's factor for the type (0, 0.1, 0.5 or 1), by the words of title, query and categories."""
    title_words = words(goal["title"])
    title = len(words(line["title"]) & title_words) / len(title_words) if title_words else 0.2
    if title < 0.1:
        return 0.1 if title else 0.0
    shared = {level.strip() for level in line["category"].split("›")} & {
        level.strip() for level in goal["category"].split("›")
    }
    return 1.0 if line["query"] == goal["query"] or len(shared) >= 2 or title > 0.2 else 0.5
