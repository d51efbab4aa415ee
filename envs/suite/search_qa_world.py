"""The fictional world that questions of `search_qa` are about: people, cities, works, organisations and events.

A world is drawn from its kind, its size and a seed, so every process with the same three has the same passages, and one
index serves all episodes of a process. A `full` world has a passage of several sentences for each entity, people with
the same name, works with the same title, and passages that quote errors. A `plain` world has only people, cities and
rivers, and passages of one sentence, so that a model of two layers can learn to look things up. Left out: names
(`search_qa_names`), the questions (`search_qa_questions`), and searching.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from palaestra.envs.search.index import Document
from palaestra.envs.suite.search_qa_names import draw_names, draw_words
from palaestra.errors import UsageError


class Relation(NamedTuple):
    """A kind of fact that every entity of one kind has. In its texts `{s}` is the entity and `{o}` the object."""

    name: str
    of: str
    to: str
    sentence: str
    phrase: str
    """Phrase that replaces the object in a longer question."""
    question: str
    query: str
    """Search words to add to the entity's name."""


RELATIONS = (
    Relation("birthplace", "person", "city", "{s} was born in {o}.", "the city where {s} was born",
             "In which city was {s} born?", "born"),
    Relation("teacher", "person", "person", "{s} studied under {o}.", "the teacher of {s}",
             "Under whom did {s} study?", "studied under"),
    Relation("employer", "person", "organisation", "{s} worked for {o}.", "the employer of {s}",
             "For which organisation did {s} work?", "worked for"),
    Relation("mayor", "city", "person", "The mayor of {s} is {o}.", "the mayor of {s}",
             "Who is the mayor of {s}?", "mayor"),
    Relation("river", "city", "river", "{s} lies on the river {o}.", "the river of {s}",
             "On which river does {s} lie?", "river"),
    Relation("author", "work", "person", "{s} was written by {o}.", "the author of {s}",
             "Who wrote {s}?", "written by"),
    Relation("scene", "work", "city", "{s} is set in {o}.", "the city where {s} is set",
             "In which city is {s} set?", "set in"),
    Relation("founder", "organisation", "person", "{s} was founded by {o}.", "the founder of {s}",
             "Who founded {s}?", "founded by"),
    Relation("seat", "organisation", "city", "{s} has its seat in {o}.", "the city where {s} has its seat",
             "In which city does {s} have its seat?", "seat"),
    Relation("place", "event", "city", "{s} took place in {o}.", "the city where {s} took place",
             "In which city did {s} take place?", "took place"),
    Relation("winner", "event", "person", "{s} was decided by {o}.", "the person who decided {s}",
             "Who decided {s}?", "decided by"),
)  # fmt: skip
PLAIN = ("birthplace", "mayor", "river")
"""The relations of a plain world."""
YEARS = {
    "person": ("The birth year of {s} is {o}.", "Who was born earlier, {a} or {b}?", "birth year"),
    "work": ("The year that saw {s} finished is {o}.", "Which was finished earlier, {a} or {b}?", "year finished"),
}
"""Kinds with a year: the sentence, the question that compares two, and the search words."""
SHARES: Mapping[str, Mapping[str, float]] = {
    "full": {"person": 0.42, "city": 0.16, "work": 0.22, "organisation": 0.1, "event": 0.1},
    "plain": {"person": 0.8, "city": 0.2},
}
"""How many of a world's entities are of each kind."""
SIZES = {"full": 2000, "plain": 1000}
MIN_SIZE, MAX_SIZE = 40, 20_000
ALIAS_SHARE, ERROR_SHARE = 0.3, 0.2
FIRST_YEAR, LAST_YEAR = 1400, 1900
_FORMS = ("novel", "play", "poem", "opera")
_SORTS = {"person": "a person of the upper valley", "city": "a city of the lowlands",
          "organisation": "an organisation with a long history", "event": "an event of the old calendar"}  # fmt: skip
_FILLERS = (
    "Letters about this lie in the provincial archive.",
    "A street and a small square are named after it.",
    "The parish registers mention it twice, without giving reasons.",
    "Travellers of the time wrote about it at length.",
    "Most sources agree on little else.",
    "A copper engraving of it hangs in the town hall.",
    "Two later accounts repeat this and add nothing.",
    "Scholars have argued about its importance ever since.",
)


WorldName = tuple[str, int, int]
"""Kind, size and seed of a world."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A person, place or thing with its own passages; or a river, which has no passage."""

    name: str
    kind: str
    aliases: tuple[str, ...] = ()
    facts: dict[str, "Entity"] = field(default_factory=dict, repr=False, compare=False)
    """Object of each relation, by the name of the relation."""
    year: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """All names that are accepted in an answer."""
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class FactWorld:
    """All entities with their facts."""

    kind: str
    entities: Mapping[str, Sequence[Entity]]
    """Entities by kind."""
    errors: Mapping[str, tuple[str, str]]
    """Relation and wrong object that a passage quotes as an error, by the name of the entity. Few entities have one."""

    @cached_property
    def everything(self) -> tuple[Entity, ...]:
        """All entities of all kinds."""
        return tuple(_all(self.entities))

    def relations(self, kind: str) -> list[Relation]:
        """Return the relations that entities of this kind have in this world."""
        return [item for item in RELATIONS if item.of == kind and (self.kind == "full" or item.name in PLAIN)]

    def documents(self) -> Iterator[Document]:
        """Yield the passages, always in the same order."""
        for number, (title, text) in enumerate(self._plain() if self.kind == "plain" else self._full()):
            yield Document(f"p{number}", title, text)

    def _sentences(self, entity: Entity) -> list[str]:
        """Return the facts of an entity in sentences."""
        relations = self.relations(entity.kind)
        return [sentence_of(item.sentence, entity.name, entity.facts[item.name].name) for item in relations]

    def _plain(self) -> Iterator[tuple[str, str]]:
        for entity in self.everything:
            for sentence in self._sentences(entity):
                yield entity.name, sentence

    def _full(self) -> Iterator[tuple[str, str]]:
        for number, entity in enumerate(self.everything):
            name, lines = entity.name, self._sentences(entity)
            if entity.kind in YEARS:
                lines.append(sentence_of(YEARS[entity.kind][0], name, str(entity.year)))
            if entity.aliases:
                lines.append(sentence_of("{s} is also known as {o}.", name, entity.aliases[0]))
            turn = number % len(lines)  # The first sentence differs between passages.
            lines = lines[turn:] + lines[:turn]
            lines.insert(number % 3 + 1, _FILLERS[number % len(_FILLERS)])
            title = name.removeprefix("the ")
            sort = _SORTS.get(entity.kind) or f"a {_FORMS[number % len(_FORMS)]} in three parts"
            yield title, " ".join((sentence_of("{s} is {o}.", name, sort), *lines))
            if name in self.errors:
                relation, wrong = self.errors[name]
                quoted = sentence_of(_NAMED[relation].sentence, name, wrong)
                yield f"Errors about {title}", f'An old chronicle says: "{quoted}" This has proved to be wrong.'


_NAMED = {relation.name: relation for relation in RELATIONS}


def sentence_of(sentence: str, subject: str, thing: str) -> str:
    """Fill in a sentence, and begin it with a capital letter."""
    text = sentence.format(s=subject, o=thing)
    return text[0].upper() + text[1:]


@lru_cache(maxsize=8)
def draw_world(kind: str = "full", size: int = SIZES["full"], seed: int = 0) -> FactWorld:
    """Draw the world of this kind, size and seed."""
    rng = np.random.default_rng([seed, size, len(kind)])
    words = draw_words(rng, plain=kind == "plain")
    entities: dict[str, list[Entity]] = {}
    for sort, share in SHARES[kind].items():
        entities[sort] = _draw_entities(sort, int(size * share), words, rng, kind == "full")
    world = FactWorld(kind, entities, {})
    rivers = _draw_entities("river", len(entities["city"]) // 2, words, rng, kind == "full")
    objects = {**entities, "river": rivers}
    for entity in _all(entities):
        for relation in world.relations(entity.kind):
            others = objects[relation.to]
            chosen = others[int(rng.integers(len(others)))]
            entity.facts[relation.name] = others[others.index(chosen) - 1] if chosen is entity else chosen
    errors = {}
    if kind == "full":
        for entity in _all(entities):
            if rng.random() < ERROR_SHARE:
                relations = world.relations(entity.kind)
                relation = relations[int(rng.integers(len(relations)))]
                wrong = objects[relation.to][int(rng.integers(len(objects[relation.to])))]
                if wrong is not entity.facts[relation.name]:
                    errors[entity.name] = (relation.name, wrong.name)
    return FactWorld(kind, entities, errors)


def check_world(kind: str, size: int | None, seed: int) -> WorldName:
    """Return the kind, size and seed of a world with defaults filled in. Raise `UsageError` if one is not valid."""
    if kind not in tuple(SHARES):
        raise UsageError(f"world is {kind!r}; expected {' or '.join(map(repr, SHARES))}")
    size = SIZES[kind] if size is None else size
    if type(size) is not int or not MIN_SIZE <= size <= MAX_SIZE:
        raise UsageError(f"size is {size!r}; expected a number of entities from {MIN_SIZE} to {MAX_SIZE:,}")
    if type(seed) is not int or seed < 0:
        raise UsageError(f"world_seed is {seed!r}; expected a whole number from 0")
    return kind, size, seed


def _all(entities: Mapping[str, Sequence[Entity]]) -> Iterator[Entity]:
    return (entity for kind in entities.values() for entity in kind)


def _draw_entities(kind: str, count: int, words: Iterator[str], rng: np.random.Generator, full: bool) -> list[Entity]:
    """Draw `count` entities of a kind (at least 4), each with its own name."""
    names = draw_names(kind, count, words, rng, full)
    if kind in ("city", "river"):
        return [Entity(name, kind) for name in names]
    entities = []
    for name in names:
        alias = (next(words),) if full and kind == "person" and rng.random() < ALIAS_SHARE else ()
        entities.append(Entity(name, kind, alias, {}, int(rng.integers(FIRST_YEAR, LAST_YEAR))))
    return entities
