"""Any generator of reasoning-gym by its name, with a Python tool: puzzles, algorithms, logic, arithmetic.

A task:      Sort these numbers in descending order: -80.8, 46.1, 49.0 ... Convert all numbers as strings ...
An episode:  <tool_call>{"name": "python", "arguments": {"code": "sorted(['-80.8', '46.1', '49.0'], ..."}}</tool_call>
             ['49.0', '46.1', '-80.8']
             <answer>['49.0', '46.1', '-80.8']</answer>

    gymnasium.make("palaestra/Reasoning-v0", generator="countdown", config={"max_numbers": 5})

An answer succeeds if the generator's own verifier accepts it fully. Partial credit is reported as `credit`, but not
rewarded, because verifiers give some of it to wrong answers. If few answers are possible, one of them is often right
("Yes" in seven of ten items of `syllogism`); `chance` is this share. `reasoning_items` names the refused generators and
the reasons.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.rewards.answer import final_answer, reading
from palaestra.envs.suite.demonstrations import call, question_of, replies_of
from palaestra.envs.suite.reasoning_items import ITEMS, Items, open_items, require_known
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt, Message
from palaestra.errors import Broken, UnknownTask


class Reasoning(ToolEnv):
    """Solve a problem of a reasoning-gym generator."""

    system = (
        "Solve the problem; the tool may help. End with the answer alone between <answer> and </answer>, "
        "in the form that the problem asks for."
    )
    max_turns = 10
    deadlines = {"reward": 600.0}  # noqa: RUF012  (Answers that have to be killed may stand in line before another.)
    parts: Mapping[str, RewardPart] = {"success": RewardPart(), "credit": RewardPart(weight=0.0)}

    def __init__(
        self,
        split: str = "train",
        generator: str = "number_sorting",
        config: Mapping[str, Any] | None = None,
        sandbox: Where = "local",
    ) -> None:
        """`generator` is one of reasoning-gym's ("?" lists them), `config` holds its own settings.

        `sandbox` is where programs run.
        """
        super().__init__(split)
        require_known(generator, config or {})
        self.generator, self.config = generator, dict(config or {})
        self.toolkits = in_sandbox(sandbox, Python)

    @property
    def items(self) -> Items:
        """The items of the generator. The generator is checked before its first use."""
        return open_items(self.generator, self.config)

    @property
    def chance(self) -> float:  # type: ignore[override]  # It depends on the generator and its settings.
        """Success rate of always giving the commonest answer."""
        return self.items.commonest

    def task(self, rng: np.random.Generator) -> Task:
        """Draw an item. No item is in two splits, because the text of a question decides its split."""
        number = int(rng.integers(ITEMS))
        item = self.items.item(number)
        return Task(prompt=item["question"], answer=item["answer"], data={"generator": self.generator, "item": number})

    async def reward(self, attempt: Attempt) -> Mapping[str, float]:
        """Return the verifier's score of the text between the tags, or after "Answer:"."""
        items = await asyncio.to_thread(lambda: self.items)  # Some are slow to open, and some to draw from.
        item = await asyncio.to_thread(items.item, int(attempt.task.data["item"]))
        if item["question"] != attempt.task.prompt:
            raise Broken(f"{self.generator} draws another item for {attempt.task.data['item']} here than it did there")
        credit = await items.judge(answer_of(attempt.answer), item)
        return {"success": float(credit >= 1), "credit": credit}

    def explain(self, attempt: Attempt) -> str:
        """Return the text that was given to the verifier."""
        place = "the last <answer> tags, the last Answer: or else the whole answer"
        return reading(answer_of(attempt.answer), place, f"judged by the verifier of {self.generator}")


_FENCED = re.compile(r"```[\w+-]*\n((?:(?!```).)*)```", re.DOTALL)


def answer_of(text: str | None) -> str | None:
    """Return the agent's answer, without a code fence if one encloses all of it; None if there is no answer."""
    before, closed, _ = (text or "").rpartition("</answer>")
    _, opened, tagged = before.rpartition("<answer>")
    if not (opened and closed):
        return final_answer(text)
    fenced = _FENCED.fullmatch(tagged.strip())
    return (fenced[1] if fenced else tagged).strip()


_COUNTDOWN = '''
from functools import cache
from itertools import combinations

def splits(numbers, size):
    for places in combinations(range(len(numbers)), size):
        yield tuple(numbers[i] for i in places), tuple(x for i, x in enumerate(numbers) if i not in places)

@cache
def reach(numbers):
    """Every whole number that all of these make, with a way to make it."""
    if len(numbers) == 1:
        return {numbers[0]: str(numbers[0])}
    found = {}
    for size in range(1, len(numbers)):
        for left, right in splits(numbers, size):
            for a, x in reach(left).items():
                for b, y in reach(right).items():
                    found |= {a + b: f"({x}+{y})", a - b: f"({x}-{y})", a * b: f"({x}*{y})"}
                    if b and a % b == 0:
                        found[a // b] = f"({x}/{y})"
    return found

@cache
def solve(numbers, target):
    """A way to make the target: a few numbers make a, and the rest what then is missing."""
    if len(numbers) <= 3:
        return reach(numbers).get(target)
    for size in range(min(3, len(numbers) // 2), 0, -1):
        for few, rest in splits(numbers, size):
            for a, x in reach(few).items():
                missing = [(target - a, "({x}+{y})"), (a - target, "({x}-{y})"), (target + a, "({y}-{x})"),
                           (target * a, "({y}/{x})") if a else (0, "")]
                if a and target % a == 0:
                    missing.append((target // a, "({x}*{y})"))
                if target and a % target == 0:
                    missing.append((a // target, "({x}/{y})"))
                for b, way in missing:
                    if way and (y := solve(rest, b)) and ("/{y}" not in way or b):
                        return way.format(x=x, y=y)
'''
_ASKED = re.compile(r"(?:equals|make|Calculate) (-?\d+)")
_NUMBERS = re.compile(r"\d+(?:, \d+)+")
_SORT = re.compile(r"Sort these numbers in (a|de)scending order: (.+)")
_SUM = re.compile(r"arithmetic problem: ([-+\d ]+)=")


def _program(question: str) -> str | None:
    """Return a program for questions of the generators number_sorting, chain_sum and countdown; None for others."""
    if sort := _SORT.search(question):
        return f"sorted({sort[2].split(', ')}, key=float, reverse={sort[1] == 'de'})"
    if summed := _SUM.search(question):
        return summed[1].strip()
    target, numbers = _ASKED.search(question), _NUMBERS.search(question)
    if target and numbers:
        return f"{_COUNTDOWN}\nprint(solve(({numbers[0]}), {target[1]}))"
    return None


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: a program, then its output. With probability 1 - tool_rate, guess at once."""
    if replies := replies_of(messages):
        return f"<answer>{replies[-1].strip()}</answer>"
    question = question_of(messages)
    program = _program(question)
    if program is None:
        raise UnknownTask(question)
    if rng.random() >= tool_rate:
        return f"<answer>{rng.integers(100, 1000)}</answer>"
    return call("python", code=program)
