"""Questions about the world of `search_qa_world`: drawn with their answer, and read again by whoever plays by rule.

    single       In which city was Sopa Rin born?                          one fact (NQ, TriviaQA, PopQA)
    bridge       Who is the mayor of the city where Sopa Rin was born?     each hop asks about the one before (HotpotQA,
                                                                           2Wiki, MuSiQue)
    comparison   Who was born earlier, ...? Were ... born in the same city?          two facts (2Wiki, HotpotQA)

One problem is asked in one form, so no split has it in other words. Left out: searching, and the reward.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from palaestra.envs.suite.search_qa_world import RELATIONS, YEARS, Entity, Relation, World, said

T = TypeVar("T")
KINDS = ("single", "bridge", "comparison")
MAX_HOPS = 4
SAME = {
    "birthplace": "Were {a} and {b} born in the same city?",
    "author": "Were {a} and {b} written by the same person?",
    "seat": "Do {a} and {b} have their seat in the same city?",
    "place": "Did {a} and {b} take place in the same city?",
}
"""Relations that two entities may have in common, and how that is asked."""


@dataclass(frozen=True, slots=True)
class Question:
    """A problem and its answer."""

    prompt: str
    answers: tuple[str, ...]
    """The answer, and its other names."""
    kind: str
    hops: int


def draw_question(world: World, kind: str, hops: int, rng: np.random.Generator) -> Question:
    """A question of a kind; a bridge has two hops, or as many as `hops`."""
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


def _chain(world: World, length: int, rng: np.random.Generator) -> tuple[Entity, list[Relation], Entity] | None:
    """Somebody, so many relations, and where they lead; None where it ends early or comes back."""
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


def _comparison(world: World, rng: np.random.Generator) -> Question:
    """Which of two is the older one, or whether two have something in common, as often as not."""
    if world.kind == "full" and rng.random() < 0.5:
        kind = _any(sorted(YEARS), rng)
        while True:
            pair = [_any(world.entities[kind], rng) for _ in range(2)]
            if pair[0].year != pair[1].year:
                break
        first, second = sorted(pair, key=lambda entity: entity.name)  # The order says nothing.
        older = min(pair, key=lambda entity: entity.year)
        return Question(YEARS[kind][1].format(a=first.name, b=second.name), older.names, "comparison", 2)
    asked = [one for one in RELATIONS if one.name in SAME and one.of in world.entities]
    relation, wanted = _any(asked, rng), bool(rng.integers(2))
    while True:
        one, other = (_any(world.entities[relation.of], rng) for _ in range(2))
        shared = one.facts[relation.name]
        if wanted:
            mates = [each for each in world.entities[relation.of] if each.facts[relation.name] is shared]
            other = _any(mates, rng)
        if one is not other and (other.facts[relation.name] is shared) == wanted:
            break
    first, second = sorted((one, other), key=lambda entity: entity.name)
    text = SAME[relation.name].format(a=first.name, b=second.name)
    return Question(text, ("yes" if wanted else "no",), "comparison", 2)


def _any(items: Sequence[T], rng: np.random.Generator) -> T:
    return items[int(rng.integers(len(items)))]


# Reading a question again


@dataclass(frozen=True, slots=True)
class Lookup:
    """One fact to be found: its sentence, and what to search for."""

    sentence: str
    query: str

    def words(self, subject: str) -> str:
        """The query for this fact of a subject."""
        return f"{subject} {self.query}"

    def found(self, subject: str, text: str) -> str | None:
        """The object that a text names; what stands in quotation marks is what the text contradicts."""
        text = re.sub(r'"[^"]*"', "", " ".join(text.split()))
        head, _, tail = said(self.sentence, subject, "{o}").partition("{o}")
        named = re.search(rf"{re.escape(head)}([^.]+?){re.escape(tail)}", text)
        return named[1] if named else None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a question is answered: a chain of lookups about one subject, or the same lookup about two."""

    subjects: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    compare: str = ""
    """For two subjects: `earlier` or `same`."""

    def step(self, texts: Sequence[str]) -> tuple[str, Lookup] | str | None:
        """After these replies: the next subject and lookup, or the answer; None where a reply lacks the fact."""
        if self.compare:
            found = [self.lookups[0].found(s, text) for s, text in zip(self.subjects, texts, strict=False)]
            if None in found:
                return None
            if len(found) < 2:
                return self.subjects[len(found)], self.lookups[0]
            if self.compare == "same":
                return "yes" if found[0] == found[1] else "no"
            return self.subjects[0] if str(found[0]) < str(found[1]) else self.subjects[1]
        subject = self.subjects[0]
        for lookup, text in zip(self.lookups, texts, strict=False):
            fact = lookup.found(subject, text)
            if fact is None:
                return None
            subject = fact
        return (subject, self.lookups[len(texts)]) if len(texts) < len(self.lookups) else subject


def _reader(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w)\\}", r"(?P<\1>.+)", re.escape(template)))


_QUESTIONS = [(_reader(relation.question), relation) for relation in RELATIONS]
_PHRASES = [(_reader(relation.phrase), relation) for relation in RELATIONS]
_PAIRS = [
    *((_reader(asked), Lookup(sentence, query), "earlier") for sentence, asked, query in YEARS.values()),
    *((_reader(SAME[one.name]), Lookup(one.sentence, one.query), "same") for one in RELATIONS if one.name in SAME),
]


def plan_for(question: str) -> Plan | None:
    """The plan of a question of ours; None for any other."""
    for pattern, lookup, compare in _PAIRS:
        if pair := pattern.fullmatch(question):
            return Plan((pair["a"], pair["b"]), (lookup,), compare)
    return chain_for(question, _QUESTIONS)


def chain_for(text: str, outermost: Iterable[tuple[re.Pattern[str], Relation]] = _PHRASES) -> Plan | None:
    """The lookups that a question, or a phrase such as "the mayor of Sopa", stands for."""
    path: list[Relation] = []
    patterns = outermost
    while match := next(((found, one) for pattern, one in patterns if (found := pattern.fullmatch(text))), None):
        text, patterns = match[0]["s"], _PHRASES
        path.insert(0, match[1])
    return Plan((text,), tuple(Lookup(one.sentence, one.query) for one in path)) if path else None
