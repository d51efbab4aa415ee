"""Trail: two or three look-ups in a row, each for the result of the one before, with tools that may be busy.

A task:      Who taught the mayor of the city where Bado was born?
An episode:  three calls of `search`, then Answer: NAME

`kinds` chooses among four families of questions; each has a tool of its own, except that `teacher` goes one step
further than `city`. Names change their roles with every task, so nothing can be memorised.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from codes import STAGES, broken

import palaestra
from palaestra.envs import Task, ToolEnv, ToolError, tool
from palaestra.envs.rewards.answer import MARK, final_answer
from palaestra.envs.suite.two_hop import NAMES
from palaestra.episode import Attempt, Message
from palaestra.errors import UnknownTask
from palaestra.formats import ParsedCall, hermes

KINDS: Mapping[str, tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # The tool, the first relation, the second relations, further ones, and two forms of the question.
    "city": (
        "search",
        "born",
        ("mayor", "river", "country"),
        (),
        ("What is the {second} of the city where {name} was born?", "{name} was born in a city. What is its {second}?"),
    ),
    "teacher": (
        "search",
        "born",
        ("mayor", "judge", "bishop"),
        ("teacher",),
        (
            "Who taught the {second} of the city where {name} was born?",
            "{name} was born in a city. Who taught its {second}?",
        ),
    ),
    "goods": (
        "ledger",
        "bought",
        ("maker", "price", "owner"),
        (),
        ("What is the {second} of the thing that {name} bought?", "{name} bought a thing. What is its {second}?"),
    ),
    "land": (
        "atlas",
        "visited",
        ("guide", "coast", "king"),
        (),
        ("What is the {second} of the land that {name} visited?", "{name} visited a land. What is its {second}?"),
    ),
}
BUSY = "busy"


class Trail(ToolEnv):
    """Follow a trail of facts."""

    system = "End with Answer: NAME"
    max_turns = 8

    def __init__(self, split: str = "train", kinds: str = "city", fail: float = 0.0) -> None:
        """`kinds` of questions are joined by +. `fail` is the probability that a tool answers that it is busy."""
        super().__init__(split)
        self.kinds, self.fail = kinds.split("+"), fail

    def task(self, rng: np.random.Generator) -> Task:
        """Return a task with the facts of the trail, and the same number of other facts."""
        kind = self.kinds[rng.integers(len(self.kinds))]
        tool_name, first, seconds, more, questions = KINDS[kind]
        second = seconds[rng.integers(len(seconds))]
        names = [NAMES[at] for at in rng.permutation(len(NAMES))]
        relations, facts = (first, second, *more), {}
        for start in (0, len(relations) + 1):
            for number, relation in enumerate(relations):
                facts[f"{names[start + number]} {relation}"] = names[start + number + 1]
        question = questions[rng.integers(len(questions))].format(name=names[0], second=second)
        return Task(question, names[len(relations)], data={"facts": facts, "tool": tool_name})

    def _look_up(self, tool_name: str, query: str) -> str:
        if self.fail and self.rng.random() < self.fail:
            raise ToolError(BUSY)
        value = self.problem.data["facts"].get(" ".join(query.split()))
        if value is None or self.problem.data["tool"] != tool_name:
            raise ToolError("no result")
        return str(value)

    @tool
    def search(self, query: str) -> str:
        """Look up a fact about people and cities: "NAME relation"."""
        return self._look_up("search", query)

    @tool
    def ledger(self, query: str) -> str:
        """Look up a fact about things: "NAME relation"."""
        return self._look_up("ledger", query)

    @tool
    def atlas(self, query: str) -> str:
        """Look up a fact about lands: "NAME relation"."""
        return self._look_up("atlas", query)

    def reward(self, attempt: Attempt) -> float:
        """Return 1 for the right name, bare or after "Answer:"."""
        return float(final_answer(attempt.answer) == attempt.task.answer)


class StagedTrail(Trail):
    """The same tasks with a reward in stages."""

    reward = STAGES


def demonstrate(
    messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0, malformed: float = 0.0
) -> str:
    """Look up one fact after the other, and repeat a call that met a busy tool. With probability 1 - tool_rate, answer
    none at once.
    """
    replies = [message["content"] for message in messages if message["role"] == "tool"]
    question = next(message["content"] for message in messages if message["role"] == "user")
    tool_name, relations, name = _read(question)
    results = [reply for reply in replies if reply in NAMES]
    if any(reply not in NAMES and BUSY not in reply for reply in replies) or (
        not replies and rng.random() >= tool_rate
    ):
        return f"{MARK} none"
    if len(results) == len(relations):
        return f"{MARK} {results[-1]}"
    call = ParsedCall(tool_name, {"query": f"{[name, *results][-1]} {relations[len(results)]}"})
    return broken(call, rng) if rng.random() < malformed else hermes.render([call])


def _read(question: str) -> tuple[str, tuple[str, ...], str]:
    """Return the tool, the relations and the name of a question."""
    for tool_name, first, _, more, questions in KINDS.values():
        for form in questions:
            pattern = re.escape(form).replace(r"\{name\}", r"(?P<name>\w+)").replace(r"\{second\}", r"(?P<second>\w+)")
            if match := re.fullmatch(pattern, question):
                return tool_name, (first, match["second"], *more), match["name"]
    raise UnknownTask(question)


palaestra.register("study/Trail-v0", "trail:Trail", demonstrator="trail:demonstrate")
palaestra.register("study/StagedTrail-v0", "trail:StagedTrail", demonstrator="trail:demonstrate")
