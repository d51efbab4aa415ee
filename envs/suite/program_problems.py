"""Generated programming problems in eight families; the hidden tests are made from a reference solution.

A family is a statement with two numbers to fill in, and the body of the function that solves it. The two numbers decide
everything that the agent sees, also the example, so no problem is in two splits. Left out: problems that need a
well-known algorithm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from textwrap import indent
from typing import Any

import numpy as np

from palaestra.envs.suite.demonstrations import pattern_of
from palaestra.episode import Task

HIDDEN_CASES = 10
MAX_DRAWS = 200
"""Largest number of inputs drawn for a problem; ten times what most problems need."""
NAME = "solve"
"""Name of the function to write."""
_READ = {"numbers": "input()\nnumbers = list(map(int, input().split()))", "word": "word = input().strip()"}
_TOLD = {
    "numbers": "The first line says how many numbers there are, the second holds them, with blanks between.",
    "word": "One line holds a word of small letters.",
}
_PRINT = {"int": "print(result)", "str": "print(result)", "list[int]": "print(*result)"}
_PRINTED = {"int": "Print one number.", "str": "Print one word.", "list[int]": "Print them on one line, with blanks."}
_TYPES = {"numbers": "list[int]", "word": "str"}


@dataclass(frozen=True, slots=True)
class ProgramTemplate:
    name: str
    argument: str
    returns: str
    statement: str
    body: str

    def function(self, a: int, b: int) -> str:
        """Return the reference solution as a function."""
        return f"def {NAME}({self.argument}):\n{indent(self.body.format(a=a, b=b), '    ')}\n"

    def program(self, a: int, b: int) -> str:
        """Return the reference solution as a program that reads stdin."""
        return (
            f"{self.function(a, b)}\n{_READ[self.argument]}\nresult = {NAME}({self.argument})\n{_PRINT[self.returns]}\n"
        )

    def numbers_of(self, text: str) -> tuple[int, int] | None:
        """Return the two numbers if a text contains this family's statement; None for any other text."""
        match = pattern_of(self.statement, r"\d+").search(" ".join(text.split()))
        return (int(match["a"]), int(match["b"])) if match else None


FAMILIES = (
    ProgramTemplate(
        "divisible_or_greater", "numbers", "int",
        "Add up the numbers that are divisible by {a} or greater than {b}.",
        "return sum(x for x in numbers if x % {a} == 0 or x > {b})",
    ),
    ProgramTemplate(
        "pairs", "numbers", "int",
        "Count the positions i < j for which {b} times the number at i plus the number at j is divisible by {a}.",
        "return sum(({b} * x + y) % {a} == 0 for j, y in enumerate(numbers) for x in numbers[:j])",
    ),
    ProgramTemplate(
        "folded", "numbers", "int",
        "Start with {b}. For each number in turn multiply by {a}, add the number, and keep the remainder on division "
        "by 997, which is never negative. What is left at the end?",
        "value = {b}\nfor x in numbers:\n    value = (value * {a} + x) % 997\nreturn value",
    ),
    ProgramTemplate(
        "calm_run", "numbers", "int",
        "Find the longest run of neighbouring numbers in which neighbours differ by at most {a}, the first one where "
        "several are as long, and multiply the sum of its numbers by {b}.",
        "runs = [[numbers[0]]]\nfor x, y in zip(numbers, numbers[1:]):\n    if abs(x - y) > {a}:\n"
        "        runs.append([])\n    runs[-1].append(y)\nreturn {b} * sum(max(runs, key=len))",
    ),
    ProgramTemplate(
        "best_window", "numbers", "int",
        "Find the greatest sum of at least one and at most {a} neighbouring numbers, and add {b} to it.",
        "return {b} + max(sum(numbers[i:j]) for i in range(len(numbers)) "
        "for j in range(i + 1, min(i + {a}, len(numbers)) + 1))",
    ),
    ProgramTemplate(
        "by_remainder", "numbers", "list[int]",
        "Leave out the numbers less than -{b}, and sort the others by their remainder on division by {a}, which is "
        "never negative; those with the same remainder by size.",
        "return sorted((x for x in numbers if x >= -{b}), key=lambda x: (x % {a}, x))",
    ),
    ProgramTemplate(
        "shifted", "word", "str",
        "Shift every letter by {a} places in the alphabet, where a follows on z, turn the word around, and put its new "
        "first {b} letters, or all where there are fewer, behind it once more.",
        "turned = ''.join(chr((ord(c) - 97 + {a}) % 26 + 97) for c in reversed(word))\nreturn turned + turned[:{b}]",
    ),
    ProgramTemplate(
        "letters", "word", "int",
        "Give a the place 1, b the place 2, and so on. For each letter multiply its place by {a} and take the "
        "remainder on division by {b}7 (the number with a 7 behind it). Add these up.",
        "return sum((ord(c) - 96) * {a} % {b}7 for c in word)",
    ),
)  # fmt: skip


def draw(rng: np.random.Generator) -> tuple[ProgramTemplate, int, int, list[Any], list[Any]]:
    """Draw a family, two numbers, inputs and outputs. Draw again if too few of the outputs are different."""
    while True:
        family, a, b = FAMILIES[rng.integers(len(FAMILIES))], int(rng.integers(2, 40)), int(rng.integers(1, 40))
        inputs, outputs = _cases(family, a, b)
        if len(outputs) == 1 + HIDDEN_CASES:
            return family, a, b, inputs, outputs


def contest_task(rng: np.random.Generator) -> Task:
    """Draw a problem: write a program that reads stdin, or a function. The two numbers decide which."""
    family, a, b, inputs, outputs = draw(rng)
    if (a + b) % 2:
        prompt = (
            f"{family.statement.format(a=a, b=b)}\n\nWrite a function {NAME}({family.argument}: "
            f"{_TYPES[family.argument]}) -> {family.returns}.\n\nExample: {NAME}({inputs[0]!r}) == {outputs[0]!r}"
        )
        arguments, results = ([[value] for value in values[1:]] for values in (inputs, outputs))
        tests: Mapping[str, Any] = {"fn_name": NAME, "inputs": arguments, "outputs": results}
    else:
        prompt = (
            f"{family.statement.format(a=a, b=b)}\n\nInput: {_TOLD[family.argument]}\nOutput: "
            f"{_PRINTED[family.returns]}\n\nExample input:\n{_stdin(inputs[0])}\nExample output:\n{_stdout(outputs[0])}"
        )
        tests = {"inputs": list(map(_stdin, inputs[1:])), "outputs": list(map(_stdout, outputs[1:]))}
    return Task(prompt=prompt, data={"family": family.name, "tests": tests})


def completion_task(rng: np.random.Generator) -> Task:
    """Draw a problem in the form of HumanEval: a signature with a docstring, and hidden assertions."""
    family, a, b, inputs, outputs = draw(rng)
    prompt = (
        f"def {NAME}({family.argument}: {_TYPES[family.argument]}) -> {family.returns}:\n"
        f'    """{family.statement.format(a=a, b=b)}\n\n    >>> {NAME}({inputs[0]!r})\n    {outputs[0]!r}\n    """\n'
    )
    asserted = [
        f"    assert candidate({value!r}) == {out!r}" for value, out in zip(inputs[1:], outputs[1:], strict=True)
    ]
    test = "\n".join(["def check(candidate):", *asserted])
    return Task(prompt=prompt, data={"family": family.name, "entry_point": NAME, "test": test, "context": prompt})


def solution_for(text: str, *, as_program: bool) -> tuple[str, str] | None:
    """Return a solution of a generated problem, and a call to try it with; None for any other problem."""
    for family in FAMILIES:
        numbers = family.numbers_of(text)
        if numbers:
            call = f"{NAME}({'[3, -1, 12]' if family.argument == 'numbers' else repr('palaestra')})"
            return (family.program if as_program else family.function)(*numbers), call
    return None


def _cases(family: ProgramTemplate, a: int, b: int) -> tuple[list[Any], list[Any]]:
    """Return inputs and outputs; the first of each is the example.

    No output comes twice, so a program that prints the same for every input passes at most one hidden case. Inputs
    become longer as they are drawn, because short ones have few possible outputs. After MAX_DRAWS draws there may be
    fewer cases.
    """
    rng = np.random.default_rng((FAMILIES.index(family), a, b))
    inputs: list[Any] = []
    outputs: list[Any] = []
    solve = _compiled(family.function(a, b))
    for number in range(MAX_DRAWS):
        size = rng.integers(3, 16 + number // 4)
        if family.argument == "numbers":
            value: Any = [int(x) for x in rng.integers(-60, 61, size=size)]
        else:
            value = "".join(chr(97 + int(at)) for at in rng.integers(26, size=size))
        if (output := solve(value)) not in outputs:
            inputs.append(value)
            outputs.append(output)
        if len(outputs) == 1 + HIDDEN_CASES:
            break
    return inputs, outputs


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Callable[[Any], Any]:
    """Return the function that a source of these families defines. Never call it with other text: it uses `exec`."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    solve: Callable[[Any], Any] = scope[NAME]
    return solve


def _stdin(value: Any) -> str:
    return value if isinstance(value, str) else f"{len(value)}\n{' '.join(map(str, value))}"


def _stdout(result: Any) -> str:
    return " ".join(map(str, result)) if isinstance(result, list) else str(result)
