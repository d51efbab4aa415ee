"""Questions that a search engine answers: one fact, a chain of facts, or two facts compared.

A task:      Who is the mayor of the city where Sopa Rin was born?
An episode:  <tool_call>{"name": "search", "arguments": {"query": "Sopa Rin born"}}</tool_call>
             ... Sopa Rin was born in Teza. ...
             <tool_call>{"name": "search", "arguments": {"query": "Teza mayor"}}</tool_call>
             ... The mayor of Teza is Niku Vera. ...
             Answer: Niku Vera

    gymnasium.make("palaestra/SearchQA-v0", kinds="bridge", hops=3)                       a generated world, offline
    gymnasium.make("palaestra/SearchQA-v0", tasks="hotpotqa_dev.jsonl",
                   search={"backend": "retrieve", "url": "http://127.0.0.1:8000/retrieve"})  a published set

The passages come from one generated world (`search_qa_world`), which each process indexes once. The questions come from
the same world (`search_qa_questions`), or from a file with the columns of NQ, HotpotQA and others (`question_files`).
Success is the exact match of Search-R1, token F1 with `metric="f1"`, or the rule of Reagent's data with `metric="rule"`
(`rewards.by_source`). Exact match, F1 and, as `quality` for progressive rewards (`--recipe prs`), length-aware BLEU are
always reported. Left out: judging by a model.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv, Toolkit
from palaestra.envs.core.backends import Where
from palaestra.envs.data.question_files import holds_questions, read_questions
from palaestra.envs.rewards.answer import MARK, final_answer, reading
from palaestra.envs.rewards.bleu import length_aware_bleu
from palaestra.envs.rewards.by_source import rule_reward
from palaestra.envs.rewards.quotation import exact_match, token_f1
from palaestra.envs.search.index import Index
from palaestra.envs.search.remembered import Remembered
from palaestra.envs.suite.demonstrations import call, question_of, replies_of
from palaestra.envs.suite.search_qa_names import draw_person_name
from palaestra.envs.suite.search_qa_questions import KINDS, MAX_HOPS, draw_question, plan_for
from palaestra.envs.suite.search_qa_world import WorldName, check_world, draw_world
from palaestra.envs.tools.search import Search, with_search
from palaestra.episode import Attempt, Message
from palaestra.errors import UnknownTask, UsageError

log = logging.getLogger("palaestra.envs")
_warned: list[bool] = []
METRICS = ("em", "f1", "rule")


class SearchQA(ToolEnv):
    """Answer a question by searching."""

    system = "Search for what you need, step by step. End with Answer: VALUE, without other words."
    max_turns = 10
    parts: Mapping[str, RewardPart] = {
        "success": RewardPart(), "em": RewardPart(weight=0.0), "f1": RewardPart(weight=0.0),
        "quality": RewardPart(weight=0.0),
    }  # fmt: skip

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        kinds: str | Sequence[str] = "single,bridge,comparison",
        hops: int = 2,
        metric: str = "em",
        world: str = "full",
        size: int | None = None,
        world_seed: int = 0,
        search: Where | None = None,
    ) -> None:
        """`kinds` are single, bridge and comparison, `hops` the most that a bridge has; `metric` is em, f1 or rule.

        `world` is full, or plain with passages of one sentence; `size` is how many things it holds. `search` is a
        backend with passages of your own in place of the world's: a file of questions in `tasks` needs one.
        """
        super().__init__(split, tasks)
        self.kinds = _kinds(kinds)
        if type(hops) is not int or not 2 <= hops <= MAX_HOPS:
            raise UsageError(f"hops is {hops!r}; expected a whole number from 2 to {MAX_HOPS}")
        if metric not in METRICS:
            raise UsageError(f"metric is {metric!r}; expected one of {', '.join(METRICS)}")
        self.hops, self.metric, self.world = hops, metric, check_world(world, size, world_seed)
        self.toolkits = searching(search, self.world, tasks)

    @property
    def chance(self) -> float:  # type: ignore[override]  # It depends on the kinds of questions.
        """Success rate of guessing: about half of the comparisons (yes or no, one of two), and few other questions."""
        return 0.55 * ("comparison" in self.kinds) / len(self.kinds) + 0.02

    def read_tasks(self, path: str, split: str) -> Sequence[Task] | None:
        """Read files of NQ, HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, TriviaQA or PopQA; None for other files."""
        return read_questions(path, split) if holds_questions(path) else None

    def task(self, rng: np.random.Generator) -> Task:
        kind = self.kinds[rng.integers(len(self.kinds))]
        question = draw_question(draw_world(*self.world), kind, self.hops, rng)
        data = {"kind": kind, "hops": question.hops, "aliases": list(question.answers[1:]), "world": list(self.world)}
        return Task(question.prompt, question.answers[0], data=data)

    def reward(self, attempt: Attempt) -> Mapping[str, float] | Awaitable[Mapping[str, float]]:
        """Compare the text after "Answer:" with the answer and its aliases."""
        answer, expected = final_answer(attempt.answer), expected_answers(attempt.task)
        scores = {"em": float(exact_match(answer, expected)), "f1": token_f1(answer, expected)}
        scores["quality"] = length_aware_bleu(answer, expected)
        if self.metric != "rule":
            return {"success": scores[self.metric], **scores}
        return self._by_rule(answer, attempt.task, scores)  # Awaited: mathematics may take a process of its own.

    async def _by_rule(self, answer: str | None, task: Task, scores: Mapping[str, float]) -> Mapping[str, float]:
        rule = await rule_reward(answer, expected_answers(task), str(task.data.get("source", "")))
        return {"success": rule, **scores}

    def explain(self, attempt: Attempt) -> str:
        """Return what was read from the answer, how it is compared, and the right answers."""
        right = " or ".join(map(repr, expected_answers(attempt.task)[:5]))
        how = "as words and numbers, without case, punctuation and articles"
        place = "the last Answer: or else the whole answer"
        return reading(final_answer(attempt.answer), place, f"compared {how} with {right}")


class WorldSearch(Search):
    """Search in the generated world from which the questions are drawn."""

    snippet_chars = 600  # Enough for a whole passage.
    draw: Callable[..., Any] = staticmethod(draw_world)

    def __init__(self, world: WorldName) -> None:
        super().__init__(index_of(self.draw, world))
        if world[0] == "plain":
            self.most_results = 1

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Raise UsageError for a question from a file, because the generated passages do not contain its answer."""
        if "world" not in task.data:
            raise UsageError(
                f"the question {task.prompt[:80]!r} comes from a file, and the passages here are those of a generated "
                "world; say where to search: search=FOLDER of `palaestra index build`, or "
                'search={"backend": "retrieve", "url": ...}'
            )
        super().start(task, rng)


def searching(
    search: Where | None,
    world: WorldName,
    tasks: str | None,
    kit: type[Search] = Search,
    world_kit: type[WorldSearch] = WorldSearch,
) -> tuple[Callable[[], Toolkit], ...]:
    """Return the search toolkits: with the backend `search`, or in the generated world if `search` is None."""
    if search is None:
        return (partial(world_kit, world),)
    toolkits = with_search(search, kit)
    if not tasks and not _warned:
        _warned.append(True)
        log.warning(
            "the questions are of a generated world, and search=%r looks elsewhere: few answers will be found, unless "
            "its passages are draw_world(...).documents() of search_qa_world; tasks=FILE asks other questions",
            search,
        )
    return toolkits


@lru_cache(maxsize=8)
def index_of(draw: Callable[..., Any], world: WorldName) -> Index:
    """Return the index of a world's passages. Each process builds it once."""
    from palaestra.envs.search.embedded import EmbeddedIndex

    return Remembered(EmbeddedIndex.of(list(draw(*world).documents())))


def expected_answers(task: Task) -> list[str]:
    """Return the answer of a task and its aliases."""
    answers = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
    return [str(answer) for answer in (*answers, *task.data.get("aliases", ()))]


def _kinds(kinds: str | Sequence[str]) -> tuple[str, ...]:
    entries = kinds.replace(",", " ").split() if isinstance(kinds, str) else kinds
    names = tuple(entries) if isinstance(entries, list | tuple) else ()
    if not names or any(name not in KINDS for name in names):
        raise UsageError(f"kinds is {kinds!r}; expected some of {', '.join(KINDS)}, such as kinds=single,bridge")
    return tuple(dict.fromkeys(names))


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: one search for each fact. With probability 1 - tool_rate, guess at once."""
    question, replies = question_of(messages), replies_of(messages)
    plan = plan_for(question)
    if plan is None:
        raise UnknownTask(question)
    step = plan.step(replies)
    if step is None or (not replies and rng.random() >= tool_rate):
        choices = {"same": ("yes", "no"), "earlier": plan.subjects}.get(plan.compare, (draw_person_name(rng),))
        return f"{MARK} {choices[rng.integers(len(choices))]}"
    if isinstance(step, str):
        return f"{MARK} {step}"
    subject, lookup = step
    return call("search", query=f"{subject} {lookup.query}")
