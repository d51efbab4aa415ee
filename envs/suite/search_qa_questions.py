"""Questions about the world of `search_qa_world`: drawn with their answer, and parsed again by the demonstrator.

    single       In which city was Sopa Rin born?                          one fact (NQ, TriviaQA, PopQA)
    bridge       Who is the mayor of the city where Sopa Rin was born?     each hop asks about the result of the one
                                                                           before (HotpotQA, 2Wiki, MuSiQue)
    comparison   Who was born earlier, ...? Were ... born in the same city?          two facts (2Wiki, HotpotQA)

Each problem has only one wording, so it cannot be in two splits. Left out: searching, and the reward.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from palaestra.envs.suite.demonstrations import pattern_of
from palaestra.envs.suite.search_qa_world import RELATIONS, YEARS, Entity, FactWorld, Relation, sentence_of

T = TypeVar("T")
KINDS = ("single", "bridge", "comparison")
MAX_HOPS = 4
SAME = {
    "birthplace": "Were {a} and {b} born in the same city?",
    "author": "Were {a} and {b} written by the same person?",
    "seat": "Do {a} and {b} have their seat in the same city?",
    "place": "Did {a} and {b} take place in the same city?",
}
"""Relations that two entities may have in common, and the question about each."""


@dataclass(frozen=True, slots=True)
class Question:
    """A problem and its answer."""

    prompt: str
    answers: tuple[str, ...]
    """The answer and its aliases."""
    kind: str
    hops: int


def draw_question(world: FactWorld, kind: str, hops: int, rng: np.random.Generator) -> Question:
    """Draw a question of a kind. A bridge question has from two to `hops` hops."""
    if kind == "comparison":
        return _comparison(world, rng)
    length = 1 if kind == "single" else int(rng.integers(2, hops + 1))
    while True:
        chain = _chain(world, length, rng)
        if chain is not None:
            subject, relations, last = chain
            text = subject.name
            for relation in relations[:-1]:
                text = relation.phrase.format(s=text)
            return Question(relations[-1].question.format(s=text), last.names, kind, length)


def _chain(world: FactWorld, length: int, rng: np.random.Generator) -> tuple[Entity, list[Relation], Entity] | None:
    """Draw an entity and `length` relations; return them and the last entity. None if the chain ends or repeats."""
    subject = last = _any(world.everything, rng)
    met, path = {subject.name}, []
    for _ in range(length):
        relations = world.relations(last.kind)
        if not relations:
            return None
        path.append(_any(relations, rng))
        last = last.facts[path[-1].name]
        if last.name in met:
            return None
        met.add(last.name)
    return subject, path, last


def _comparison(world: FactWorld, rng: np.random.Generator) -> Question:
    """Draw a question about two entities: which is older, or (yes or no equally often) whether they share something."""
    if world.kind == "full" and rng.random() < 0.5:
        kind = _any(sorted(YEARS), rng)
        while True:
            pair = [_any(world.entities[kind], rng) for _ in range(2)]
            if pair[0].year != pair[1].year:
                break
        first, second = sorted(pair, key=lambda entity: entity.name)  # The order must not reveal the answer.
        older = min(pair, key=lambda entity: entity.year)
        return Question(YEARS[kind][1].format(a=first.name, b=second.name), older.names, "comparison", 2)
    relations = [item for item in RELATIONS if item.name in SAME and item.of in world.entities]
    relation, same = _any(relations, rng), bool(rng.integers(2))
    while True:
        item, other = (_any(world.entities[relation.of], rng) for _ in range(2))
        shared = item.facts[relation.name]
        if same:
            mates = [each for each in world.entities[relation.of] if each.facts[relation.name] is shared]
            other = _any(mates, rng)
        if item is not other and (other.facts[relation.name] is shared) == same:
            break
    first, second = sorted((item, other), key=lambda entity: entity.name)
    text = SAME[relation.name].format(a=first.name, b=second.name)
    return Question(text, ("yes" if same else "no",), "comparison", 2)


def _any(items: Sequence[T], rng: np.random.Generator) -> T:
    return items[int(rng.integers(len(items)))]


# Parse a question


@dataclass(frozen=True, slots=True)
class Lookup:
    """A fact to look up: the template of its sentence, and the words to search for."""

    sentence: str
    query: str

    def value_in(self, subject: str, text: str) -> str | None:
        """Return the object that a text states, or None. Text in quotation marks is ignored, because it is wrong."""
        text = re.sub(r'"[^"]*"', "", " ".join(text.split()))
        head, _, tail = sentence_of(self.sentence, subject, "{o}").partition("{o}")
        match = re.search(rf"{re.escape(head)}([^.]+?){re.escape(tail)}", text)
        return match[1] if match else None


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """The lookups that answer a question: a chain about one subject, or the same lookup about two."""

    subjects: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    compare: str = ""
    """Comparison of two subjects: `earlier` or `same`; empty for a chain."""

    def step(self, texts: Sequence[str]) -> tuple[str, Lookup] | str | None:
        """Return the next subject and lookup after these replies, or the answer; None if a reply lacks the fact."""
        if self.compare:
            facts = [self.lookups[0].value_in(s, text) for s, text in zip(self.subjects, texts, strict=False)]
            if None in facts:
                return None
            if len(facts) < 2:
                return self.subjects[len(facts)], self.lookups[0]
            if self.compare == "same":
                return "yes" if facts[0] == facts[1] else "no"
            return self.subjects[0] if str(facts[0]) < str(facts[1]) else self.subjects[1]
        subject = self.subjects[0]
        for lookup, text in zip(self.lookups, texts, strict=False):
            fact = lookup.value_in(subject, text)
            if fact is None:
                return None
            subject = fact
        return (subject, self.lookups[len(texts)]) if len(texts) < len(self.lookups) else subject


_QUESTIONS = [(pattern_of(relation.question), relation) for relation in RELATIONS]
_PHRASES = [(pattern_of(relation.phrase), relation) for relation in RELATIONS]
_PAIRS = [
    *((pattern_of(question), Lookup(sentence, query), "earlier") for sentence, question, query in YEARS.values()),
    *(
        (pattern_of(SAME[relation.name]), Lookup(relation.sentence, relation.query), "same")
        for relation in RELATIONS
        if relation.name in SAME
    ),
]


def plan_for(question: str) -> LookupPlan | None:
    """Return the plan for a generated question; None for any other question."""
    for pattern, lookup, compare in _PAIRS:
        if pair := pattern.fullmatch(question):
            return LookupPlan((pair["a"], pair["b"]), (lookup,), compare)
    return chain_for(question, _QUESTIONS)


def chain_for(text: str, outermost: Iterable[tuple[re.Pattern[str], Relation]] = _PHRASES) -> LookupPlan | None:
    """Return the lookups for a question, or for a phrase such as "the mayor of Sopa"; None for any other text."""
    path: list[Relation] = []
    patterns = outermost
    while match := next(((hit, relation) for pattern, relation in patterns if (hit := pattern.fullmatch(text))), None):
        text, patterns = match[0]["s"], _PHRASES
        path.insert(0, match[1])
    return LookupPlan((text,), tuple(Lookup(relation.sentence, relation.query) for relation in path)) if path else None
