"""`check` names an author's mistake by what is wrong, and passes no environment in which no answer can win."""

import re
import sys

import numpy as np
import pytest
from checked import failed, findings

from palaestra import Task
from palaestra.envs import ToolEnv, tool

pytestmark = pytest.mark.usefixtures("own_module")


class Sound(ToolEnv):
    """Keeps every promise."""

    max_turns = 2

    def task(self, rng):
        number = int(rng.integers(10**6))
        return Task(f"What is {number} + 1?", answer=self.expected(number), data=self.world(number))

    def expected(self, number):
        return str(number + 1)

    def world(self, number):
        return {}

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


class Whole(Sound):
    def expected(self, number):
        return number + 1


class WholeOfNumpy(Sound):
    def expected(self, number):
        return np.int64(number + 1)


class Fraction(Whole):
    def world(self, number):
        return {"number": number}

    def expected(self, number):
        return number / 7


class Capital(Sound):
    """What was said is lowered, what was expected is not."""

    def expected(self, number):
        return f"City {number}"

    def reward(self, attempt):
        return float(attempt.answer is not None and attempt.answer.lower() == attempt.task.answer)


class ByTests(Sound):
    """The answer is a program of ours, and what is said is judged by tests."""

    def expected(self, number):
        return "print(1)"

    def world(self, number):
        return {"tests": [f"{number}"]}

    def reward(self, attempt):
        return float(attempt.answer in attempt.task.data["tests"])


class ByState(Sound):
    """The answer is what a tool has to be told."""

    told = None

    @tool
    def submit(self, number: int) -> str:
        """Hand it in."""
        self.told = number
        return "thank you"

    def reward(self, attempt):
        return float(self.told is not None and str(self.told) == attempt.task.answer.replace("\n", ""))

    def expected(self, number):
        return f"{number}\n"


class ByCalls(ByState):
    def reward(self, attempt):
        return float(any(call.arguments.get("number") == attempt.task.answer for call in attempt.calls))

    def expected(self, number):
        return number


def lowers(messages, rng):
    return messages[0]["content"]


class Drawing(Sound):
    rng = np.random.default_rng(0)

    def expected(self, number):
        return str(self.rng.random())


class Anything(Sound):
    @tool
    def show(self, what: object) -> str:
        """Show it."""
        return str(what)


class Described(Sound):
    @tool
    def show(self, what: object) -> str:
        """Show it.

        Args:
            what: any value
        """
        return str(what)


class NoTurns(Sound):
    def __init__(self, **options):
        super().__init__(**options)
        self.max_turns = 0


class Forgetting(Sound):
    def __init__(self, **options):
        self.seen = 0


class Refusing(Sound):
    def __init__(self):
        super().__init__()


class Gridded(Sound):
    def world(self, number):
        return {"size": 2, "grid": np.zeros((2, 2))}


class Holding(Sound):
    def world(self, number):
        return {"size": 2, "thing": object()}


class Constant(Sound):
    """In the split of training, by its prompt."""

    def task(self, rng):
        return Task("What is 1 + 1??", answer="2")

    @tool
    def add(self, number: int) -> int:
        """Add one."""
        return number + 1


# Can it be won?


@pytest.mark.parametrize(("cls", "kind"), [(Whole, "int"), (WholeOfNumpy, "int64"), (Fraction, "float")])
@pytest.mark.parametrize("demonstrator", [None, f"{__name__}:lowers"])
def test_an_answer_that_is_no_text_and_compared_with_text_is_found(cls, kind, demonstrator):
    said = failed(cls, demonstrator=demonstrator)["tasks can be judged"]
    assert re.search(rf"is {kind} \d+\S* and attempt.answer is text; compare with str", said)


def test_a_text_that_no_form_of_it_wins_is_found():
    assert "such as 'City" in failed(Capital)["tasks can be judged"]


@pytest.mark.parametrize("cls", [ByTests, ByState, ByCalls])
def test_what_is_not_judged_by_what_is_said_is_no_failure_and_not_called_ok(cls):
    found = next(finding for finding in findings(cls) if finding.name == "tasks can be judged")
    assert found.passed
    assert found.skipped
    assert "a demonstrator would show" in found.message


def test_a_demonstrator_that_wins_shows_that_it_can_be_won():
    class Reversed(Sound):
        def reward(self, attempt):
            return float((attempt.answer or "")[::-1] == attempt.task.answer)

    def reverse(messages, rng):
        return str(int(messages[0]["content"].split()[2]) + 1)[::-1]

    module = sys.modules[__name__]
    module.Reversed, module.reverse = Reversed, reverse
    assert "tasks can be judged" in failed(Reversed)
    assert failed(Reversed, demonstrator=f"{__name__}:reverse") == {}


# Named by what is wrong.


@pytest.mark.parametrize(
    ("cls", "name", "said"),
    [(Anything, "tool schemas", "the parameter 'what' of tool 'show' takes anything"),
     (NoTurns, "tasks are sound", "NoTurns.max_turns is 0; expected at least 1"),
     (Forgetting, "splits disjoint", "Forgetting(split='eval') has the split 'train'"),
     (Refusing, "splits disjoint", "super().__init__(**kwargs)"),
     (Gridded, "tasks are sound", "Task.data['grid'] is a numpy array"),
     (Holding, "tasks are sound", "Task.data['thing'] is of type object, which cannot be written"),
     (Drawing, "tasks are sound", "Task.answer is '0."),
     (Constant, "tasks are sound", "all have the prompt 'What is 1 + 1??'")],
)  # fmt: skip
def test_one_mistake_is_one_failure_with_its_name(cls, name, said):
    found = failed(cls)
    assert found.keys() == {name}
    assert said in found[name]


def test_a_parameter_that_takes_anything_may_be_described_in_words():
    assert failed(Described) == {}


def test_a_tool_without_text_is_not_reached_through():
    """What it gives back to a number is no way to the grader's state."""

    class Single(Constant):
        def task_set(self, split):
            return [self.task(None)] if split == "train" else [Task("What is 2 + 2?", answer="4")]

    sys.modules[__name__].Single = Single
    assert failed(Single) == {}
