"""The service that `long_qa` is about: products, what its knowledge base says of them, and what an answer claims.

A world is drawn from its size and a seed. Every kind of fact has a unit or words of its own, so a text can be searched
for claims of that kind: `claims("It weighs 310 grams.")` is {("weight", "310 grams")}. A message asks for no kind
twice. Left out: to which product a claim belongs, denials ("not 310 grams" claims it), and numbers that are written as
words: for these there are judges (`envs.rewards.judge`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from palaestra.envs.search.index import Document
from palaestra.envs.suite.search_qa_world import made_up, said
from palaestra.envs.suite.service_world import PRODUCTS


class Kind(NamedTuple):
    """One thing that is known of every product: `{s}` is the product, `{o}` what is said."""

    name: str
    question: str
    sentence: str
    query: str
    """What to search for beside the product's name."""
    unit: str = ""
    """Of a number, in the singular; without one the value is one of `words`."""
    values: tuple[int, int] = (0, 0)
    words: tuple[str, ...] = ()


KINDS = (
    Kind("price", "What does {s} cost?", "{s} costs {o}.", "costs", "crown", (20, 400)),
    Kind("warranty", "How long is the warranty of {s}?", "The warranty of {s} is {o}.", "warranty", "month", (6, 60)),
    Kind("delivery", "How long does the delivery of {s} take?", "The delivery of {s} takes {o}.", "delivery", "day",
         (2, 30)),
    Kind("return", "How long may I keep {s} before I send it back?", "{s} can be sent back within {o}.", "sent back",
         "week", (2, 14)),
    Kind("battery", "How long does the battery of {s} last?", "The battery of {s} lasts {o}.", "battery", "hour",
         (3, 90)),
    Kind("weight", "How heavy is {s}?", "{s} weighs {o}.", "weighs", "gram", (100, 999)),
    Kind("material", "What is {s} made of?", "{s} is made of {o}.", "made of",
         words=("oak", "steel", "copper", "glass", "bamboo", "porcelain", "linen", "cork")),
    Kind("depot", "Which depot repairs {s}?", "{s} is repaired at {o}.", "repaired at",
         words=tuple(f"the {name} depot" for name in ("Northgate", "Millpond", "Harbour", "Orchard", "Stonebridge"))),
)  # fmt: skip
_NAMED = {kind.name: kind for kind in KINDS}
_NUMBER = r"(?<!\d)\d{1,9}(?:[.,]\d{1,9}){0,3}(?!\d)"
"""Bounded, as all repeats here are: a text of digits alone must not cost more than it is long."""
_OTHERS = rf"(?:{_NUMBER}(?:, ?{_NUMBER}){{0,5}} ?(?:or|and|to|/|[-\u2013\u2014]) ?)?"
"""Further numbers of one unit: "12 or 24 months" claims both."""
_CLAIMS = {
    kind.name: re.compile(
        rf"({_OTHERS}{_NUMBER})[ -]?{kind.unit}s?\b"
        if kind.unit
        else rf"\b({'|'.join(word.removeprefix('the ').removesuffix(' depot') for word in kind.words)})\b",
        re.IGNORECASE,
    )
    for kind in KINDS
}
_FILLERS = ("Customers call it reliable.", "It has been sold for many years.", "A leaflet comes with it.",
            "It is shown in most shops.")  # fmt: skip
MESSAGE = "Hello, I have some questions. {questions} Thank you!"
Fact = tuple[str, str, str]
"""Its kind, the product, the value."""


@dataclass(frozen=True)
class Service:
    """All products, and what is said of them."""

    facts: Mapping[str, Mapping[str, str]]
    """Values by product and kind."""

    def documents(self) -> Iterator[Document]:
        """The knowledge base: two articles a product."""
        for number, (product, values) in enumerate(self.facts.items()):
            lines = [said(kind.sentence, product, values[kind.name]) for kind in KINDS]
            for part, title in enumerate(("Data", "Service")):
                own = [*lines[part::2], _FILLERS[(number + part) % len(_FILLERS)]]
                turn = number % len(own)  # What comes first differs from article to article.
                yield Document(f"a{number}-{part}", f"{title}: {product}", " ".join(own[turn:] + own[:turn]))


@lru_cache(maxsize=8)
def draw_service(size: int, seed: int) -> Service:
    """The service with so many products."""
    rng, facts = np.random.default_rng([seed, size, 17]), dict[str, dict[str, str]]()
    while len(facts) < size:
        makers = made_up(rng).split()
        for name in rng.choice(PRODUCTS, size=3, replace=False):  # A maker has several products.
            facts[f"the {makers[0]} {name}"] = {kind.name: drawn_value(kind, rng) for kind in KINDS}
    return Service(dict(list(facts.items())[:size]))


def drawn_value(kind: Kind, rng: np.random.Generator) -> str:
    """A value that a product may have."""
    if kind.unit:
        return f"{rng.integers(*kind.values)} {kind.unit}s"
    return kind.words[rng.integers(len(kind.words))]


def draw_facts(service: Service, rng: np.random.Generator) -> list[Fact]:
    """Two to four facts of one or two products, each of another kind."""
    products = [str(one) for one in rng.choice(list(service.facts), size=rng.integers(1, 3), replace=False)]
    kinds = [KINDS[at].name for at in rng.permutation(len(KINDS))[: rng.integers(2, 5)]]
    return [
        (kind, product, service.facts[product][kind])
        for kind, product in ((kind, products[at % len(products)]) for at, kind in enumerate(kinds))
    ]


def message_of(facts: Sequence[Fact]) -> str:
    """What the customer writes who wants to know these."""
    return MESSAGE.format(questions=" ".join(_NAMED[kind].question.format(s=product) for kind, product, _ in facts))


def told(facts: Sequence[Fact]) -> str:
    """The facts in sentences: the reference answer."""
    return " ".join(said(_NAMED[kind].sentence, product, value) for kind, product, value in facts)


def asked_in(message: str) -> list[tuple[Kind, str]]:
    """What a message asks for, in its order."""
    found = [
        (match.start(), kind, match[1])
        for kind in KINDS
        for match in re.finditer(re.escape(kind.question).replace(r"\{s\}", r"(the \w+ \w+)"), message)
    ]
    return [(kind, product) for _, kind, product in sorted(found, key=lambda one: one[0])]


def found_in(kind: Kind, product: str, text: str) -> str | None:
    """The value that an article names, as it stands there."""
    head, _, tail = said(kind.sentence, product, "{o}").partition("{o}")
    named = re.search(rf"{re.escape(head)}([^.]+?){re.escape(tail)}", " ".join(text.split()))
    return named[1] if named else None


def claims(text: str) -> set[tuple[str, str]]:
    """Every kind and value that a text claims, of whatever product."""
    found, text = set[tuple[str, str]](), " ".join(text.split())
    for kind in KINDS:
        for match in _CLAIMS[kind.name].findall(text):
            if kind.unit:
                found |= {(kind.name, f"{_plain(one)} {kind.unit}s") for one in re.findall(_NUMBER, match)}
            else:
                word = match.lower()
                found |= {(kind.name, one) for one in kind.words if word in one.lower().split()}
    return found


def _plain(number: str) -> Any:
    """24 for 24 and 24.0, so that both are one claim."""
    try:
        value = float(number.replace(",", ""))
    except ValueError:  # 1.2.3
        return number
    return int(value) if value.is_integer() else value
