"""A judge at work: an agent's episode is the prompt, and a verdict in three blocks the answer (Agent-RRM's training).

A task:      The task:
             | Who is the mayor of the city where Sopa was born?

             [1] The agent says:
             | <tool_call>{"name": "search", "arguments": {"query": "Sopa born"}}</tool_call> ...
An episode:  <think>1 calls, 0 failed, 0 repeated; the answer is a guess</think>
             <critique>Look up what you answer before you answer it.</critique>
             <score>0.5</score>

    gymnasium.make("palaestra/Judge-v0")                             episodes of a small generated world, judged by rule
    gymnasium.make("palaestra/Judge-v0", tasks="labels.jsonl")       what `palaestra judge` has labelled

The reward is 0 where the form fails, else 0.1 + 0.9 (1 - |s - s*|) for a score s and the label s*. A file's rows have
the prompt of `palaestra.judging.prompt` and the label as their answer. Left out: agreement with outcomes in a group.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv
from palaestra.episode import Attempt, Call, Message, Status
from palaestra.errors import UnknownTask, UsageError
from palaestra.formats import ParsedCall, hermes
from palaestra.judging.annotator import annotated_calls, written
from palaestra.judging.prompt import RUBRIC, dialogue_prompt
from palaestra.judging.verdict import read_verdict

RUBRICS = {
    "full": RUBRIC,
    "brief": "Judge the agent's work, whose lines begin with a bar. Write <think>, <critique> and <score>.",
}
_TOOL = {"function": {"name": "search", "description": "Look up.", "parameters": {"properties": {"query": {}}}}}
_BLOCK = re.compile(r"^\[\d+\] (The agent says|A tool's result):\n((?:\|.*(?:\n|$))*)", re.MULTILINE)


class Judging(ToolEnv):
    """Judge how an agent has worked, in three blocks."""

    max_turns = 1
    parts: Mapping[str, RewardPart] = {
        "success": RewardPart(), "format": RewardPart(weight=0.0), "distance": RewardPart(weight=0.0),
    }  # fmt: skip

    def __init__(self, split: str = "train", tasks: str | None = None, rubric: str = "full") -> None:
        """`rubric` is full, what a served judge is told, or brief, for a model that learns it from labels."""
        super().__init__(split, tasks)
        if rubric not in RUBRICS:
            raise UsageError(f"rubric is {rubric!r}; expected one of {', '.join(RUBRICS)}")
        self.system = RUBRICS[rubric]

    def task(self, rng: np.random.Generator) -> Task:
        messages, calls, answer = drawn(rng)
        verdict = annotated_calls(calls, answer)
        ended = "The agent ended the episode with what it said last."
        return Task(dialogue_prompt(messages, [_TOOL], ended)[1]["content"], verdict.score)

    def reward(self, attempt: Attempt) -> Mapping[str, float]:
        """How near the score is to the label; nothing for what is not in the form."""
        label = float(attempt.task.answer)
        if not 0 <= label <= 1:
            raise UsageError(f"the label of task {attempt.task.id!r} is {label}; expected a score from 0 to 1")
        try:
            # Of the whole turn: an attempt's answer is without its thinking, which is a block here.
            verdict = read_verdict("" if attempt.answer is None else str(attempt.messages[-1]["content"]), clamp=False)
        except ValueError:
            verdict = None
        if verdict is None or not verdict.whole:
            return {"success": 0.0, "format": 0.0, "distance": 1.0}
        distance = abs(verdict.score - label)
        return {"success": 0.1 + 0.9 * (1 - distance), "format": 1.0, "distance": distance}


def drawn(rng: np.random.Generator) -> tuple[list[Message], list[Call], str | None]:
    """An episode of an agent that looks up two facts, well or badly: its messages, calls and answer."""
    person, city, mayor, other = (_name(rng) for _ in range(4))
    faults = {name: rng.random() < 0.35 for name in ("skips", "errs", "repeats", "guesses", "falls silent")}
    facts = [(f"{person} born", f"{person} was born in {city}."), (f"{city} mayor", f"The mayor of {city} is {mayor}.")]
    plan = [(query, text, Status.OK) for query, text in facts]
    if faults["skips"]:
        plan.pop()
    if faults["errs"]:
        plan.insert(int(rng.integers(len(plan) + 1)), ("", "the query is empty", Status.TOOL_ERROR))
    if faults["repeats"]:
        plan.append(plan[int(rng.integers(len(plan)))])
    answer = None if faults["falls silent"] else f"Answer: {other if faults['guesses'] else mayor}"
    messages: list[Message] = [
        {"role": "user", "content": f"Who is the mayor of the city where {person} was born?"},
    ]
    calls = []
    for query, text, status in plan:
        messages.append({"role": "assistant", "content": hermes.render([ParsedCall("search", {"query": query})])})
        messages.append({"role": "tool", "name": "search", "content": text})
        calls.append(Call("search", {"query": query}, text, status))
    return [*messages, {"role": "assistant", "content": answer or "I do not know"}], calls, answer


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Judge by rule what is quoted. With probability 1 - tool_rate, write any score."""
    question = str(next(message["content"] for message in messages if message["role"] == "user"))
    turns = [(who, "\n".join(line[2:] for line in text.splitlines())) for who, text in _BLOCK.findall(question)]
    if not turns:
        raise UnknownTask(question)
    calls, asked = [], list[ParsedCall]()
    for who, text in turns:
        if who == "The agent says":
            asked = [call for call in hermes.parse(text, ()).calls if isinstance(call, ParsedCall)]
        elif asked:
            status = Status.TOOL_ERROR if text == "the query is empty" else Status.OK
            calls.append(Call(asked[0].name, asked.pop(0).arguments, text, status))
    last = turns[-1][1]
    verdict = annotated_calls(calls, last if last.startswith("Answer:") else None)
    if rng.random() >= tool_rate:
        verdict = replace(verdict, score=float(rng.integers(11)) / 10)
    return written(verdict)


def _name(rng: np.random.Generator) -> str:
    return "".join(str(rng.choice(["ba", "de", "ki", "mo", "nu", "ra", "so", "ti"])) for _ in range(2)).title()
