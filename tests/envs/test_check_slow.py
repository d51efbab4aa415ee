"""`palaestra check` of an environment whose toolkits take long to start: few starts, several at once, all findings."""

import asyncio
import sys
from typing import ClassVar

import flawed
import pytest
from checked import RECORDED, failed, findings
from flawed import adds, adds_with_the_tool, unable

from palaestra.envs import Task, Toolkit, tool
from palaestra.envs.checks import at_once
from palaestra.envs.checks.trials import EPISODES

MAX_STARTS = 30
"""Starts of a check: 24 where there is no demonstrator, 25 with one."""


class Server(Toolkit):
    """Has five tools, and says how many of its kind run."""

    starts, running, most = 0, 0, 0
    notes: ClassVar[dict] = {}

    async def start(self, task, rng):
        Server.starts += 1
        Server.running += 1
        Server.most = max(Server.most, Server.running)
        self.notes = {}
        await asyncio.sleep(0)

    async def close(self):
        Server.running -= 1

    @tool
    async def read(self, title: str) -> str:
        """Read a note."""
        return self.notes.get(title, "nothing")

    @tool
    async def write(self, title: str, text: str) -> str:
        """Write a note."""
        self.notes[title] = text
        return "written"

    @tool
    async def names(self) -> str:
        """List the notes."""
        return ", ".join(self.notes) or "none"

    @tool
    async def clear(self) -> str:
        """Remove all notes."""
        self.notes.clear()
        return "done"

    @tool
    async def count(self) -> int:
        """Count the notes."""
        return len(self.notes)

    def final(self):
        return {"notes": dict(self.notes)}


def slow(cls):
    """The class with toolkits that take long to start, where this module and other processes find it."""
    name = f"Slow{cls.__name__}"
    return vars(sys.modules[__name__]).setdefault(
        name, type(name, (cls,), {"toolkits": (Server,), "__module__": __name__})
    )


SLOW = {cls: slow(cls) for cls in (
    flawed.Sound, flawed.Lenient, flawed.Absent, flawed.Containing, flawed.Listing, flawed.Mostly, flawed.Whole,
    flawed.Expecting, flawed.ByDesk, flawed.Moody, flawed.Raising,
)}  # fmt: skip


class Written(flawed.Sound):
    """Judged by the notes alone."""

    toolkits = (Server,)

    def task(self, rng):
        return Task(f"Write a note of the title {rng.integers(10**6)}.", data={"kind": "note"})

    def reward(self, attempt):
        return float(attempt.task.prompt.split()[-1][:-1] in attempt.final["notes"])


def writes(messages, rng):
    if messages[-1]["role"] == "tool":
        return "done"
    return flawed.hermes.render(
        [flawed.ParsedCall("write", {"title": messages[-1]["content"].split()[-1][:-1], "text": ""})]
    )


@pytest.fixture(autouse=True)
def always_slow(monkeypatch):
    monkeypatch.setattr(at_once, "SLOW_SECONDS", 0.0)
    Server.starts = Server.running = Server.most = 0


@pytest.mark.parametrize(
    ("cls", "demonstrator"), [(SLOW[flawed.Sound], None), (SLOW[flawed.Sound], adds), (Written, writes)]
)
def test_a_slow_environment_starts_few_servers_and_several_at_once(cls, demonstrator):
    found = findings(cls, demonstrator=demonstrator)
    assert [one.message for one in found if not one.passed] == []
    assert "the checks play fewer of them" in found[1].message
    assert Server.starts <= MAX_STARTS
    assert 4 <= Server.most <= at_once.AT_ONCE
    assert Server.running == 0
    assert findings(cls, RECORDED, demonstrator=demonstrator, slow=True)[0].passed


@pytest.mark.parametrize(
    ("cls", "name", "said"),
    [(flawed.Lenient, "cheats fail", "claim success"),
     (flawed.Absent, "cheats fail", "do nothing"),
     (flawed.Containing, "cheats fail", "every number or name seen"),
     (flawed.Listing, "hedged answers fail", "hides the right one among others"),
     (flawed.Mostly, "constant answers fail", "always answer 'it is not'"),
     (flawed.Whole, "tasks can be judged", "attempt.answer is text; compare with str"),
     (flawed.Expecting, "unanswered episodes are scored", "attempt.answer is None there"),
     (flawed.Moody, "determinism", "is played differently after another episode")],
)  # fmt: skip
def test_a_slow_environment_is_spared_episodes_and_no_finding(cls, name, said):
    assert said in failed(SLOW[cls], name, slow=True)[name]


def test_a_slow_reward_that_reads_what_a_tool_has_set_is_found():
    said = failed(SLOW[flawed.ByDesk], RECORDED, demonstrator=adds_with_the_tool, slow=True)[RECORDED]
    assert "reads self.desk, which is not there later" in said


class RaisingWhenRight(flawed.Sound):
    toolkits = (Server,)

    def reward(self, attempt):
        return 1 / (attempt.answer != attempt.task.answer) - 1.0


def test_what_a_reward_raises_for_an_answer_is_not_said_of_unanswered_episodes_that_play_beside_it():
    together, apart = "arena equals single", "unanswered episodes are scored"
    said = failed(RaisingWhenRight, together, apart, demonstrator=adds, slow=True)
    assert list(said) == [together]
    assert said[together].startswith("ZeroDivisionError: ")


def test_what_a_slow_reward_raises_is_reported_once():
    ((_, said),) = failed(SLOW[flawed.Raising]).items()
    assert said.startswith("KeyError: 'key'")


def test_a_slow_demonstrator_that_fails_is_found():
    name = "demonstrator succeeds"
    said = failed(SLOW[flawed.Sound], name, demonstrator=unable, slow=True)[name]
    assert "its demonstrator succeeds in 0%" in said


questions: dict = {}


def errs_once(messages, rng):
    """Give a wrong answer in the second of all tasks."""
    place = questions.setdefault(messages[-1]["content"], len(questions))
    return "no" if place == 1 else adds(messages, rng)


def test_a_slow_demonstrator_that_errs_once_is_given_as_many_episodes_as_a_quick_one():
    questions.clear()
    assert failed(SLOW[flawed.Sound], "demonstrator succeeds", demonstrator=errs_once, slow=True) == {}
    assert len(questions) == EPISODES
