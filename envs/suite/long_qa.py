"""A customer's message with two to four questions, answered in sentences from a knowledge base.

A task:      Hello, I have some questions. What does the Teza lamp cost? How heavy is the Teza lamp? Thank you!
An episode:  <tool_call>{"name": "search", "arguments": {"query": "the Teza lamp costs"}}</tool_call>
             [1] Data: the Teza lamp ... The Teza lamp costs 120 crowns. ...
             The Teza lamp costs 120 crowns. The Teza lamp weighs 310 grams.

    gymnasium.make("palaestra/LongQA-v0")                                                 a generated service, offline
    gymnasium.make("palaestra/LongQA-v0", tasks="dialogues.jsonl", search="my_articles",
                   judge={"base_url": "http://localhost:8000/v1", "model": "Qwen/Qwen3-32B"})   questions, references

`success` is 1 if the answer covers all questions and claims nothing else. `quality` is graded, for progressive rewards
(`--recipe prs`): the share of questions that are answered, but half of it if one claim is not in the knowledge base,
and 0 if there are more such claims or one contradicts the knowledge base. So a fluent answer with a wrong figure gets
0. An answer of more than `verbosity` times the reference's words loses quality with each further word, and is no
success, unless it is no longer than the message and a reference together. With `judge`, a served model decides both, by
marks or by a label; a file with references needs a judge. Left out: messages with images.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.data.problem_files import load_problems
from palaestra.envs.rewards.bleu import length, length_aware_bleu, wordiness
from palaestra.envs.rewards.judge import AnswerScore, who_judges
from palaestra.envs.suite.demonstrations import call, question_of, replies_of
from palaestra.envs.suite.long_qa_world import (
    Fact,
    claims,
    draw_facts,
    draw_service,
    drawn_value,
    message_of,
    questions_in,
    sentences_of,
    value_in,
)
from palaestra.envs.suite.search_qa import WorldSearch, searching
from palaestra.envs.suite.search_qa_world import WorldName
from palaestra.envs.tools.search import Search
from palaestra.episode import Attempt, Message
from palaestra.errors import UnknownTask, UsageError

_REFERENCES = ("reference", "references", "golden_answers", "response")
"""Columns that may hold reference answers, in addition to those of all problem files."""


class LongQA(ToolEnv):
    """Answer all questions of a customer."""

    system = (
        "Answer each question of the customer briefly, in full sentences and with the units that the knowledge base "
        "uses. Search for what you need. Say nothing that the knowledge base does not say."
    )
    max_turns = 12
    parts: Mapping[str, RewardPart] = {"success": RewardPart(), "quality": RewardPart(weight=0.0)}
    chance = 0.0

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        size: int = 300,
        world_seed: int = 0,
        search: Where | None = None,
        judge: Where | None = None,
        bleu_share: float = 0.0,
        verbosity: float = 3.0,
    ) -> None:
        """`size` is how many products there are; `search` a backend with articles of your own, which a file needs.

        `judge` is a served model, {"base_url": ..., "model": ...}, with "backend": "label" for a strict label.
        `bleu_share` of the quality is length-aware BLEU; beyond `verbosity` times the reference's words it falls.
        """
        super().__init__(split, tasks)
        if type(size) is not int or not 4 <= size <= 20_000:
            raise UsageError(f"size is {size!r}; expected a number of products from 4 to 20,000")
        if not 0 <= bleu_share <= 1 or not verbosity >= 1:
            raise UsageError(
                f"bleu_share is {bleu_share!r}, verbosity {verbosity!r}; expected a share from 0 to 1, and at least 1"
            )
        self.world: WorldName = ("service", size, world_seed)
        self.bleu_share, self.verbosity, self.judge = bleu_share, verbosity, who_judges(judge)
        self.toolkits = searching(search, self.world, tasks, Search, KnowledgeBase)

    def read_tasks(self, path: str, split: str) -> Sequence[Task]:
        """Read tasks, or questions with references in `reference`, `references`, `answer` or `response`."""
        problems = load_problems(path, split, ("question", "Question", "query"), partial(_referred, self.world))
        if self.judge is None and any("facts" not in task.data for task in problems):
            raise UsageError(
                f"{path} has references and no facts, so it needs a judge: give the option judge, a mapping with "
                "base_url and model of a server that compares answers with references"
            )
        return problems

    def task(self, rng: np.random.Generator) -> Task:
        facts = draw_facts(draw_service(*self.world[1:]), rng)
        data = {"facts": [list(fact) for fact in facts], "world": list(self.world)}
        return Task(message_of(facts), sentences_of(facts), data=data)

    def reward(self, attempt: Attempt) -> Mapping[str, float] | Awaitable[Mapping[str, float]]:
        """Return `success` (whether the whole answer is right) and `quality`."""
        return self._graded(attempt, self._checked(attempt)) if self.judge is None else self._judged(attempt)

    def explain(self, attempt: Attempt) -> str:
        """List the right facts and what the answer claims about each, then its other claims."""
        long = f"\ntoo long: verbosity is {self.verbosity:g}" if self._too_long(attempt) else ""
        if self.judge is not None:
            return f"a judge compared the answer with {' or '.join(map(repr, references(attempt.task)))}{long}"
        facts, claimed = _facts(attempt.task), claims(attempt.answer or "")
        lines = [f"{kind} of {product}: {value} is {_how(kind, value, claimed)}" for kind, product, value in facts]
        other = sorted(value for kind, value in claimed if kind not in {kind for kind, _, _ in facts})
        return "\n".join([*lines, *([f"also claimed: {', '.join(other)}"] if other else [])]) + long

    def _checked(self, attempt: Attempt) -> AnswerScore:
        """Grade an answer by the facts of the knowledge base."""
        facts, claimed = _facts(attempt.task), claims(attempt.answer or "")
        expected = {kind: value for kind, _, value in facts}
        if any(expected.get(kind, value) != value for kind, value in claimed):
            return AnswerScore(0.0, False)
        service_facts = draw_service(*attempt.task.data["world"][1:]).facts
        true = {pair for _, product, _ in facts for pair in service_facts[product].items()}
        covered = len(expected.items() & claimed) / len(expected)
        quality = covered * max(0.0, 1 - len(claimed - true) / 2)
        return AnswerScore(quality, quality == 1.0)

    async def _judged(self, attempt: Attempt) -> Mapping[str, float]:
        assert self.judge is not None
        prompt = next(str(message["content"]) for message in attempt.messages if message["role"] == "user")
        return self._graded(attempt, await self.judge.verdict(prompt, references(attempt.task), attempt.answer))

    def _graded(self, attempt: Attempt, verdict: AnswerScore) -> Mapping[str, float]:
        answer, right = attempt.answer or "", references(attempt.task)
        quality = verdict.quality
        if self.bleu_share and quality:  # A contradiction shares many words with the reference.
            quality = (1 - self.bleu_share) * quality + self.bleu_share * length_aware_bleu(answer, right)
        quality *= max(wordiness(answer, reference, self.verbosity) for reference in right)
        return {"success": float(verdict.match and not self._too_long(attempt)), "quality": quality}

    def _too_long(self, attempt: Attempt) -> bool:
        """Return whether an answer is too long for every reference, and longer than full sentences need."""
        answer, right = attempt.answer or "", references(attempt.task)
        if any(wordiness(answer, reference, self.verbosity) == 1.0 for reference in right):
            return False
        return length(answer) > max(length(f"{attempt.task.prompt} {reference}") for reference in right)


class KnowledgeBase(WorldSearch):
    """Search in the articles of a generated service."""

    snippet_chars = Search.snippet_chars
    draw = staticmethod(lambda kind, size, seed: draw_service(size, seed))


def references(task: Task) -> list[str]:
    """Return the reference answers of a task."""
    return [str(answer) for answer in (task.answer if isinstance(task.answer, list | tuple) else [task.answer])]


def _facts(task: Task) -> list[Fact]:
    return [(str(kind), str(product), str(value)) for kind, product, value in task.data["facts"]]


def _how(kind: str, value: str, claimed: set[tuple[str, str]]) -> str:
    others = sorted(claim for name, claim in claimed if name == kind and claim != value)
    if others:
        return f"contradicted by {', '.join(others)}"
    return "said" if (kind, value) in claimed else "missing"


def _referred(world: WorldName, task: Task) -> Task:
    """Return a file's task with its references. A generated task has facts instead, which are checked."""
    if "facts" in task.data:
        if tuple(task.data.get("world", ())) != world:
            raise ValueError(f"is about the service {task.data.get('world')}; expected {list(world)}: size, world_seed")
        facts = draw_service(*world[1:]).facts
        valid = isinstance(task.data["facts"], list) and all(isinstance(fact, list) for fact in task.data["facts"])
        if not valid or any(facts.get(product, {}).get(kind) != value for kind, product, value in _facts(task)):
            raise ValueError("has facts that are not in the knowledge base")
        return task
    answer: Any = task.answer
    if answer is None:
        answer = next((task.data[name] for name in _REFERENCES if task.data.get(name)), None)
    texts = [text for text in (answer if isinstance(answer, list | tuple) else [answer]) if str(text or "").strip()]
    if not texts:
        raise ValueError(f"has no reference; expected one of the columns answer, {', '.join(_REFERENCES)}")
    return replace(task, answer=[str(text) for text in texts])


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: one search for each question. With probability 1 - tool_rate, answer at once with random values."""
    message, replies = question_of(messages), replies_of(messages)
    questions = questions_in(message)
    if not questions:
        raise UnknownTask(message)
    if not replies and rng.random() >= tool_rate:
        return sentences_of([(kind.name, product, drawn_value(kind, rng)) for kind, product in questions])
    if len(replies) < len(questions):
        kind, product = questions[len(replies)]
        return call("search", query=f"{product} {kind.query}")
    pairs = zip(questions, replies, strict=False)
    facts = [(kind.name, product, value_in(kind, product, text)) for (kind, product), text in pairs]
    return sentences_of([(kind, product, value) for kind, product, value in facts if value]) or "I do not know."
