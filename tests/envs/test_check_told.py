"""What `check` says of a fault: once, at its author's line, and of two plays that differ the first difference."""

import itertools
import re
import sys
from typing import ClassVar

import numpy as np
import pytest
from checked import failed, findings

from palaestra import Broken, EnvironmentDefect, Task
from palaestra.envs import ToolEnv, Toolkit, tool
from palaestra.envs.checks.check import CHECKS
from palaestra.envs.checks.findings import difference

pytestmark = pytest.mark.usefixtures("own_module")


class Sound(ToolEnv):
    """Keeps every promise."""

    max_turns = 2

    def task(self, rng):
        number = int(rng.integers(10**6))
        return Task(f"What is {number} + 1?", answer=str(number + 1))

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


class Undeclared(Sound):
    def reward(self, attempt):
        return {"success": 0.0, "bonus": 1.0}


class NotANumber(Sound):
    def reward(self, attempt):
        return float("nan")


class Raising(Sound):
    def reward(self, attempt):
        return {}["key"]


class Asserting(Sound):
    def reward(self, attempt):
        assert attempt.answer == attempt.task.answer
        return 1.0


class RaisingTwice(Sound):
    """For one reason without an answer, for another where it clears the screen."""

    def reward(self, attempt):
        if attempt.answer is None:
            raise ValueError("nothing")
        if "\x1b[2J" in attempt.answer:
            raise ValueError("a control character")
        return float(attempt.answer == attempt.task.answer)


class Alone(Toolkit):
    """Serves where no other one has started."""

    living: ClassVar[set] = set()

    def start(self, task, rng):
        self.living.add(self)

    def close(self):
        self.living.discard(self)

    @tool
    def look(self) -> str:
        """Look."""
        if self.living - {self}:
            raise Broken("too many look at once")
        return ""


class NotBesideOthers(Sound):
    toolkits = (Alone,)


def looks(messages, rng):
    if messages[-1]["role"] == "tool":
        return str(int(messages[0]["content"].split()[2]) + 1)
    return '<tool_call>{"name": "look", "arguments": {}}</tool_call>'


class Absent(Toolkit):
    """Looks for its server behind another port each time."""

    ports = itertools.count(5000)

    def start(self, task, rng):
        raise ConnectionError(f"no server at port {next(self.ports)}")

    @tool
    def look(self) -> str:
        """Look."""
        return ""


class NotStarting(Sound):
    toolkits = (Absent,)


class Moody(Sound):
    """Its reward draws from a generator of its own."""

    rng = np.random.default_rng(0)

    def reward(self, attempt):
        return float(self.rng.random())


def line_of(function, further=1):
    code = function.__code__
    return f"({code.co_filename}, line {code.co_firstlineno + further}, in {code.co_name})"


# One fault, once.


@pytest.mark.parametrize(
    ("cls", "said", "place"),
    [(Undeclared, "'bonus', which is not declared", line_of(Undeclared.reward, 0)),
     (NotANumber, "success = nan", line_of(NotANumber.reward, 0)),
     (Raising, "KeyError: 'key'", line_of(Raising.reward)),
     (Asserting, "AssertionError: ", line_of(Asserting.reward)),
     (NotStarting, "did not start: ConnectionError: no server", line_of(Absent.start))],
)  # fmt: skip
def test_a_fault_is_told_once_and_at_its_authors_line(cls, said, place):
    found = findings(cls)
    assert [finding.name for finding in found] == list(CHECKS)
    (told,) = (finding for finding in found if not finding.passed)
    assert said in told.message
    assert place in told.message
    unreached = [finding for finding in found if finding.skipped and finding.message.startswith("not reached")]
    assert len(unreached) >= 7
    assert all(repr(told.name) in finding.message for finding in unreached)


def test_faults_that_differ_are_told_each():
    class Twice(Raising):
        @tool
        def undescribed(self) -> str:
            return ""

    sys.modules[__name__].Twice = Twice
    assert failed(Twice).keys() == {"gymnasium contract", "tool schemas"}
    assert failed(RaisingTwice).keys() == {"hostile turns", "unanswered episodes are scored"}


def test_what_breaks_beside_others_only_is_told_for_what_it_is():
    said = failed(NotBesideOthers, demonstrator=f"{__name__}:looks")
    assert said.keys() == {"vector equals single"}
    assert "ended broken" in said["vector equals single"]
    assert "too many look at once" in said["vector equals single"]


def test_of_two_plays_that_differ_the_first_place_is_shown():
    said = failed(Moody)["determinism"]
    assert re.search(r"np_random only: success is 0\.\d+ and 0\.\d+$", said)


def test_the_first_difference_is_found_in_depth():
    one = {"task": Task("?", data={"facts": [1, (2, 3)], "other": 1})}
    other = {"task": Task("?", data={"facts": [1, (2, 4)], "other": 2})}
    assert difference(one, one) == ""
    assert difference(one, other) == "task.data['facts'][1][1] is 3 and 4"
    assert difference([1], [1, 2], "calls") == "calls is [1] and [1, 2]"


# Toolkits are given as classes.


@pytest.mark.parametrize(
    ("given", "said"),
    [(Absent, "Naming.toolkits is Absent, which is no tuple; expected a tuple of classes: toolkits = (Absent,)"),
     (Absent(), "Naming.toolkits has an instance of Absent"),
     ([Absent()], "every environment makes its own; expected a tuple of classes: toolkits = (Absent,), or functools"),
     (("Absent",), "Naming.toolkits has 'Absent'; expected classes")],
)  # fmt: skip
def test_toolkits_that_are_no_classes_are_refused_by_name(given, said):
    with pytest.raises(EnvironmentDefect) as refused:
        type("Naming", (Sound,), {"toolkits": given})
    assert said in str(refused.value)

    class Naming(Sound):
        def __init__(self):
            super().__init__()
            self.toolkits = given

    with pytest.raises(EnvironmentDefect) as refused:
        Naming().reset(seed=0)
    assert said in str(refused.value)
