"""The service that `long_qa` is about: products, the facts in its knowledge base, and the claims in an answer.

A world is drawn from its size and a seed. Every kind of fact has its own unit or words, so a text can be searched for
claims of that kind: `claims("It weighs 310 grams.")` is {("weight", "310 grams")}. A message never asks twice for a
kind. Not recognised: the product of a claim, denials ("not 310 grams" counts as a claim), and numbers that are written
as words; use a judge for these (`envs.rewards.judge`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from palaestra.envs.search.index import Document
from palaestra.envs.suite.demonstrations import pattern_of
from palaestra.envs.suite.search_qa_names import draw_person_name
from palaestra.envs.suite.search_qa_world import sentence_of
from palaestra.envs.suite.service_world import PRODUCTS


class Kind(NamedTuple):
    """A kind of fact that every product has. In its texts `{s}` is the product and `{o}` the value."""

    name: str
    question: str
    sentence: str
    query: str
    """Search words to add to the product's name."""
    unit: str = ""
    """Unit of the number, in the singular. If it is empty, the value is one of `words`."""
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
"""Pattern of a number. All repeats are bounded, so that a long text of digits takes linear time."""
_OTHERS = rf"(?:{_NUMBER}(?:, ?{_NUMBER}){{0,5}} ?(?:or|and|to|/|[-\u2013\u2014]) ?)?"
"""Pattern of further numbers before the same unit: "12 or 24 months" claims both."""
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
"""Kind of the fact, product, value."""


@dataclass(frozen=True)
class ProductFacts:
    """All products with their facts."""

    facts: Mapping[str, Mapping[str, str]]
    """Values, by product and kind of fact."""

    def documents(self) -> Iterator[Document]:
        """Yield the articles of the knowledge base, two per product."""
        for number, (product, values) in enumerate(self.facts.items()):
            lines = [sentence_of(kind.sentence, product, values[kind.name]) for kind in KINDS]
            for part, title in enumerate(("Data", "Service")):
                body = [*lines[part::2], _FILLERS[(number + part) % len(_FILLERS)]]
                turn = number % len(body)  # The first sentence differs between articles.
                yield Document(f"a{number}-{part}", f"{title}: {product}", " ".join(body[turn:] + body[:turn]))


@lru_cache(maxsize=8)
def draw_service(size: int, seed: int) -> ProductFacts:
    """Draw the service with `size` products."""
    rng, facts = np.random.default_rng([seed, size, 17]), dict[str, dict[str, str]]()
    while len(facts) < size:
        makers = draw_person_name(rng).split()
        for name in rng.choice(PRODUCTS, size=3, replace=False):  # A maker has several products.
            facts[f"the {makers[0]} {name}"] = {kind.name: drawn_value(kind, rng) for kind in KINDS}
    return ProductFacts(dict(list(facts.items())[:size]))


def drawn_value(kind: Kind, rng: np.random.Generator) -> str:
    """Draw a value of this kind."""
    if kind.unit:
        return f"{rng.integers(*kind.values)} {kind.unit}s"
    return kind.words[rng.integers(len(kind.words))]


def draw_facts(service: ProductFacts, rng: np.random.Generator) -> list[Fact]:
    """Draw two to four facts of different kinds about one or two products."""
    products = [str(name) for name in rng.choice(list(service.facts), size=rng.integers(1, 3), replace=False)]
    kinds = [KINDS[at].name for at in rng.permutation(len(KINDS))[: rng.integers(2, 5)]]
    return [
        (kind, product, service.facts[product][kind])
        for kind, product in ((kind, products[at % len(products)]) for at, kind in enumerate(kinds))
    ]


def message_of(facts: Sequence[Fact]) -> str:
    """Return the customer's message that asks for these facts."""
    return MESSAGE.format(questions=" ".join(_NAMED[kind].question.format(s=product) for kind, product, _ in facts))


def sentences_of(facts: Sequence[Fact]) -> str:
    """Return the reference answer: the facts as sentences."""
    return " ".join(sentence_of(_NAMED[kind].sentence, product, value) for kind, product, value in facts)


def questions_in(message: str) -> list[tuple[Kind, str]]:
    """Return the kind and the product of each question in a message, in the message's order."""
    questions = [
        (match.start(), kind, match[1])
        for kind in KINDS
        for match in pattern_of(kind.question, r"the \w+ \w+").finditer(message)
    ]
    return [(kind, product) for _, kind, product in sorted(questions, key=lambda question: question[0])]


def value_in(kind: Kind, product: str, text: str) -> str | None:
    """Return the value of a fact that an article states; None if the article does not state it."""
    head, _, tail = sentence_of(kind.sentence, product, "{o}").partition("{o}")
    match = re.search(rf"{re.escape(head)}([^.]+?){re.escape(tail)}", " ".join(text.split()))
    return match[1] if match else None


def claims(text: str) -> set[tuple[str, str]]:
    """Return every (kind, value) that a text claims, about any product."""
    claimed, text = set[tuple[str, str]](), " ".join(text.split())
    for kind in KINDS:
        for match in _CLAIMS[kind.name].findall(text):
            if kind.unit:
                claimed |= {(kind.name, f"{_plain(value)} {kind.unit}s") for value in re.findall(_NUMBER, match)}
            else:
                word = match.lower()
                claimed |= {(kind.name, value) for value in kind.words if word in value.lower().split()}
    return claimed


def _plain(number: str) -> Any:
    """Return a number in one form (24 for 24 and 24.0), so that equal claims compare as equal."""
    try:
        value = float(number.replace(",", ""))
    except ValueError:  # 1.2.3
        return number
    return int(value) if value.is_integer() else value
