"""Two searches, the second about the result of the first, in a small world that is drawn for every task.

A task:      What is the mayor of the city where Bado was born?
An episode:  <tool_call>{"name": "search", "arguments": {"query": "Bado born"}}</tool_call>
             Kemu
             <tool_call>{"name": "search", "arguments": {"query": "Kemu mayor"}}</tool_call>
             Tila
             Answer: Tila

Nothing can be memorised: the 64 names change their roles with every task. Prompts and replies are short, and one reply
is one fact, so that a model of two layers can learn the task.
"""

from collections.abc import Sequence

import numpy as np

from palaestra.envs import Task, ToolEnv, load_tasks, tool
from palaestra.envs.rewards.answer import MARK, final_answer
from palaestra.envs.rewards.quotation import exact_match
from palaestra.envs.suite.demonstrations import call, pattern_of, question_of, replies_of
from palaestra.episode import Attempt, Message
from palaestra.errors import ToolError, UnknownTask, UsageError

NAMES = tuple(
    first + second
    for first in ("Ba", "De", "Fi", "Go", "Ke", "Lu", "Mo", "Ti")
    for second in ("do", "gi", "ka", "la", "mu", "ne", "po", "ru")
)
RELATIONS = ("mayor", "river", "country")
PEOPLE = 8
CITIES = 8
QUESTIONS = (
    "What is the {relation} of the city where {person} was born?",
    "{person} was born in a city. What is its {relation}?",
)
"""Two forms of the question, so that training covers every name although a fifth of the questions is held out."""


class TwoHop(ToolEnv):
    """Find a fact about the city where somebody was born."""

    system = "End with Answer: NAME"
    max_turns = 4

    def task(self, rng: np.random.Generator) -> Task:
        """Draw people, cities and facts of the cities. All names differ."""
        names = [NAMES[at] for at in rng.permutation(len(NAMES))]
        people, cities, others = names[:PEOPLE], names[PEOPLE : PEOPLE + CITIES], names[PEOPLE + CITIES :]
        born = {person: cities[at] for person, at in zip(people, rng.integers(CITIES, size=PEOPLE), strict=True)}
        facts = {f"{person} born": city for person, city in born.items()}
        for number, city in enumerate(cities):
            for offset, relation in enumerate(RELATIONS):
                facts[f"{city} {relation}"] = others[number * len(RELATIONS) + offset]
        relation = RELATIONS[rng.integers(len(RELATIONS))]
        return Task(
            prompt=QUESTIONS[rng.integers(len(QUESTIONS))].format(relation=relation, person=people[0]),
            answer=facts[f"{born[people[0]]} {relation}"],
            data={"facts": facts},
        )

    def read_tasks(self, path: str, split: str) -> Sequence[Task]:
        """Read tasks. Raise UsageError if a task has no `facts`, because every search would fail."""
        tasks = load_tasks(path, split)
        if any("facts" not in task.data for task in tasks):
            raise UsageError(
                f"{path} has tasks without 'facts', which two-hop searches; expected a file of its own tasks"
            )
        return tasks

    @tool
    def search(self, query: str) -> str:
        """Look up one fact: "Name relation", where the relation is born, mayor, river or country."""
        facts: dict[str, str] = self.problem.data["facts"]
        fact = facts.get(" ".join(query.split()))
        if fact is None:
            raise ToolError("no result")
        return fact

    def reward(self, attempt: Attempt) -> float:
        """Return 1.0 if the name, alone or after "Answer:", is right. Case and punctuation do not matter."""
        return float(exact_match(final_answer(attempt.answer), attempt.task.answer))


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: search twice, then answer with the second reply. With probability 1 - tool_rate, guess at once."""
    replies, question = replies_of(messages), question_of(messages)
    match = next((match for q in QUESTIONS if (match := pattern_of(q, r"\w+").fullmatch(question))), None)
    if match is None:
        raise UnknownTask(question)
    lost = any(reply not in NAMES for reply in replies)
    if lost or (not replies and rng.random() >= tool_rate):
        return f"{MARK} {NAMES[rng.integers(len(NAMES))]}"
    if len(replies) >= 2:
        return f"{MARK} {replies[-1]}"
    return call("search", query=f"{replies[0]} {match['relation']}" if replies else f"{match['person']} born")
