r"""Science questions with four options, computed with Python and answered by a letter in a box.

A task:      A wind of 72.5 km/h is how fast in metres per second?

             A) 9 m/s
             B) 6 m/s
             C) 20.1 m/s
             D) 13.4 m/s
An episode:  <tool_call>{"name": "code_interpreter", "arguments": {"code": "print(72.5 / 3.6)"}}</tool_call>
             20.13888888888889
             \boxed{C}

Questions are generated (`science_families`), or come from a file with the columns of GPQA or MegaScience
(`envs/data/science_files`). MegaScience asks for a short answer instead of a letter, or for the letter of an option
that its question lists. `prompt` selects one of the two settings that arXiv:2510.11701 compares: with the tool, or
without it. The prompts' wording is our own.
"""

import re
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from palaestra.envs import Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.data.rows import require_file
from palaestra.envs.data.science_files import holds_questions, read_questions
from palaestra.envs.rewards.answer import reading
from palaestra.envs.rewards.choice import LETTERS, chosen
from palaestra.envs.rewards.mathematics import UNIT, boxed, matches, rule, settled, unwrapped
from palaestra.envs.rewards.quotation import exact_match
from palaestra.envs.rewards.structure import as_float, holds_mathematics
from palaestra.envs.sandboxes import Limits
from palaestra.envs.suite.demonstrations import call, question_of, replies_of, solution_of
from palaestra.envs.suite.science_families import FAMILIES, keyed
from palaestra.envs.tools.python import CodeInterpreter
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt, Message
from palaestra.errors import UsageError

_BOX = r"Put the final answer into \boxed{}: the capital letter of an option where there are options."
PROMPTS = {
    "agentic": (
        "Answer the science question. Analyse it step by step and settle on a strategy first. Then use the tool to "
        f"compute precisely and to check what you found. Once you are sure, stop calling it. {_BOX}"
    ),
    "self-contained": f"Answer the science question. Reason step by step and check each one yourself. {_BOX}",
}


class Interpreter(CodeInterpreter):
    """Code interpreter with the default limits, because no computation here takes long."""

    limits = Limits()


class Science(ToolEnv):
    """Answer a science question."""

    max_turns = 8
    chance = 1 / len(LETTERS)

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        questions: str | None = None,
        prompt: str = "agentic",
        sandbox: Where = "local",
    ) -> None:
        """`questions` is a file with the columns of GPQA or MegaScience, `prompt` agentic or self-contained.

        `tasks` takes such a file too, beside those of tasks.
        """
        super().__init__(split, tasks)
        if tasks is not None and questions is not None:
            raise UsageError("tasks and questions both name a file; expected one of them")
        if prompt not in tuple(PROMPTS):
            raise UsageError(f"prompt is {prompt!r}; expected {' or '.join(map(repr, PROMPTS))}")
        self.questions = None if questions is None else require_file(questions)
        self.system = PROMPTS[prompt]
        self.toolkits = in_sandbox(sandbox, Interpreter) if prompt == "agentic" else ()

    def read_tasks(self, path: str, split: str) -> Sequence[Task] | None:
        """Read a file with the columns of GPQA or MegaScience; return None for any other file."""
        return read_questions(path, split, _asked) if holds_questions(path) else None

    def task(self, rng: np.random.Generator) -> Task:
        family = FAMILIES[rng.integers(len(FAMILIES))]
        question, options = family.draw(rng)
        return lettered(question, options, subject=family.subject)

    def task_set(self, split: str) -> Sequence[Task]:
        """Return the generated questions, or those of the file."""
        return super().task_set(split) if self.questions is None else read_questions(self.questions, split, _asked)

    def reward(self, attempt: Attempt) -> float | Awaitable[float]:
        """Score the letter, or a short answer, which may have another wording or form."""
        task = attempt.task
        if task.data.get("kind") == "short":
            return _same(attempt.answer, str(task.answer))
        return float(chosen(attempt.answer, task.data.get("letters", LETTERS)) == task.answer)

    def explain(self, attempt: Attempt) -> str:
        """Return the letter that was read, or the short answer, and the rule that compares it."""
        task = attempt.task
        if task.data.get("kind") != "short":
            place = r'\boxed{}, <answer>, "Answer:" or the last line, where two letters are none'
            letter = chosen(attempt.answer, task.data.get("letters", LETTERS))
            return reading(letter, place, "compared with the right letter")
        value, expected = boxed(attempt.answer), str(task.answer)
        how = rule(value or "", expected) if holds_mathematics(expected) else "compared as words"
        return reading(value, r"the last \boxed{}", how)


def lettered(question: str, options: Sequence[str], **data: Any) -> Task:
    """Return a task for a question; the first of `options` is the right one. Only the question decides their order."""
    order = [int(at) for at in keyed(question).permutation(len(options))]
    lines = [f"{letter}) {options[at]}" for letter, at in zip(LETTERS, order, strict=True)]
    text = "\n".join((question, "", *lines))
    return Task(prompt=text, answer=LETTERS[order.index(0)], data={"kind": "choice", **data})


_OPTION_LINE = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+\S", re.MULTILINE)
_LETTER = re.compile(r"\(?([A-Z])(?:\)?[.:]?|[).:]\s.*)", re.DOTALL)
"""Pattern of an answer that is an option's letter, with or without the text of the option."""


def _asked(task: Task) -> Task:
    """Return the task of a file's question. If its answer is the letter of a listed option, it is multiple choice."""
    wrong, data, right = task.data["wrong"], {"kind": "short", "subject": task.data["subject"]}, str(task.answer)
    if wrong:
        return replace(lettered(task.prompt, (right, *wrong), subject=data["subject"]), id=task.id)
    letters, match = "".join(_OPTION_LINE.findall(task.prompt)), _LETTER.fullmatch(right)
    if match and len(letters) > 1 and "ABCDEFGHIJ".startswith(letters):
        if match[1] not in letters:
            raise ValueError(f"has the answer {right!r:.50}, but options {letters[0]} to {letters[-1]}")
        data |= {"kind": "choice", "letters": letters}
        right = match[1]
    return replace(task, answer=right, data=data)


_QUANTITY = re.compile(rf"(.*\d\}}?)\$?\s+{UNIT}(?:\^?-?\d)?(?:[ /·*]{UNIT}(?:\^?-?\d)?)*\$?")
"""Pattern of a number, a blank, and its unit."""


async def _same(answer: str | None, expected: str) -> float:
    """Return 1.0 if a short answer equals the expected one, otherwise 0.0.

    Text with a digit or an operator is compared only as mathematics, where punctuation counts; other text is compared
    as words. For a quantity, the number without its unit is enough.
    """
    if holds_mathematics(expected):
        quantity, value = _QUANTITY.fullmatch(expected), boxed(answer)
        if quantity and value and settled(value, quantity[1].replace("$", "")):
            return 1.0
        return float(await matches(answer, expected))
    words = unwrapped(boxed(answer) or "")
    return float(not holds_mathematics(words) and exact_match(words, expected))


_OPTION = re.compile(r"^([A-D])\) ([\d.e+-]+)", re.MULTILINE)


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: compute, then choose the nearest option. With probability 1 - tool_rate, guess at once."""
    prompt, replies = question_of(messages), replies_of(messages)
    if replies and (value := as_float(replies[-1])) is not None:
        options = {letter: float(text) for letter, text in _OPTION.findall(prompt)}
        return rf"\boxed{{{min(options, key=lambda letter: abs(options[letter] - value))}}}"
    templates = ((family.question, family.right) for family in FAMILIES)
    expression = solution_of(prompt.partition("\n\n")[0], templates, r"[\d.]+")
    if replies or rng.random() >= tool_rate:
        return rf"\boxed{{{LETTERS[rng.integers(len(LETTERS))]}}}"
    return call("code_interpreter", code=f"from math import *\nprint({expression})")
