"""`palaestra check` finds what most play never meets, stops at what is slow, and ends with what failed."""

import sqlite3
import time
from functools import partial
from typing import ClassVar

import flawed
import pytest
from checked import failed, findings
from flawed import Pair, Sound, takes

from palaestra.cli import main as command
from palaestra.envs import TextEnv, ToolError, Toolkit, tool
from palaestra.envs.checks import holdups
from palaestra.envs.checks.findings import CheckFinding
from palaestra.envs.rewards.progressive import RewardStage, StagedReward, parsed_calls
from palaestra.formats import ParsedCall, hermes

ESCAPE, UNANSWERED, BRANCHES = "crashing is no escape", "unanswered episodes are scored", "branches go on alike"
adds = flawed.adds
adds_with_the_tool = flawed.adds_with_the_tool


class Absent(Sound):
    look = takes("look", lambda self, text: {}[text])


class AtTimes(Sound):
    look = takes("look", lambda self, text: str(int(text)))


@pytest.mark.parametrize("again", [False, True], ids=["first", "again in one process"])
def test_what_a_tool_raises_beside_tool_errors_is_told_though_no_demonstrator_calls_it(again):
    said = failed(Absent, ESCAPE, demonstrator=adds)[ESCAPE]
    assert said.startswith("no call of this check was answered: the tool 'look' raised KeyError: ''")
    assert f"{__file__}, line " in said
    (noted,) = findings(AtTimes, ESCAPE, demonstrator=adds)
    assert noted.passed
    assert "the tool 'look' raised ValueError: invalid literal for int()" in noted.message


class Unasked(Sound):
    def reward(self, attempt):
        worked = any(call.status == "ok" for call in attempt.calls)
        return float(worked and attempt.answer.strip() == attempt.task.answer)


class Mute(Pair):
    def rounds(self, task, rng):
        told = yield {flawed.TELLER: task.prompt}
        told[flawed.TELLER].strip()
        return (yield from super().rounds(task, rng))


def test_an_episode_whose_work_is_done_and_a_seat_are_ended_without_an_answer_too():
    said = failed(Unasked, UNANSWERED, demonstrator=adds_with_the_tool)
    assert "attempt.answer is None there" in said[UNANSWERED]
    assert "'NoneType' object has no attribute 'strip'" in failed(Mute, UNANSWERED)[UNANSWERED]
    assert failed(Pair, UNANSWERED) == failed(Sound, UNANSWERED, demonstrator=adds_with_the_tool) == {}


def forgetful(messages, rng, tool_rate=1.0):
    "Call the tool; the return of the answer was forgotten."
    return adds_with_the_tool(messages, rng) if messages[-1]["role"] != "tool" else None


def test_a_demonstrator_that_returns_no_text_is_named_as_the_fault_and_the_reward_is_not():
    (said,) = failed(AtTimes, demonstrator=forgetful).values()
    assert said.startswith("its demonstrator returned None, in the task 'What is ")
    assert said.endswith("return the agent's whole turn, a text")


def paid_in_stages(required):
    calls = RewardStage("parsed", partial(parsed_calls, required=required), weight=0.3)
    return StagedReward(calls, RewardStage("success", flawed.Sound().reward, weight=0.7))


class PaidForNothing(Sound):
    reward = paid_in_stages(required=False)


class PaidForCalls(Sound):
    reward = paid_in_stages(required=True)


class PaidAsDeclared(PaidForNothing):
    ceiling = 0.3


def test_a_reward_for_doing_nothing_is_noted_unless_a_ceiling_declares_it():
    (noted,) = findings(PaidForNothing, "cheats fail")
    assert noted.passed
    assert noted.message.startswith("an episode without a call and without an answer is paid 0.3, ")
    assert [found.message for cls in (PaidForCalls, PaidAsDeclared) for found in findings(cls, "cheats fail")] == [
        "",
        "",
    ]


class Weighed(Sound):
    """Its tool works for a name alone, which no check knows."""

    @tool
    def look(self, text: str) -> str:
        "See the text."
        if not text.startswith("What is "):
            raise ToolError("there is no such text")
        return self.seen(text)

    def reward(self, attempt):
        return float(attempt.calls[0].status == "ok" and super().reward(attempt)) if attempt.calls else 0.0


class Forgetful(Weighed):
    def seen(self, text):
        pass


class Slipping(Weighed):
    def seen(self, text):
        return text["key"]


def looks_for_the_task(messages, rng, tool_rate=1.0):
    if messages[-1]["role"] == "tool":
        return adds(messages[:-1], rng)
    return hermes.render([ParsedCall("look", {"text": messages[-1]["content"]})])


def test_what_a_tool_does_wrong_where_only_the_demonstrator_reaches_is_told_at_its_line():
    look = looks_for_the_task
    (said,) = failed(Forgetful, demonstrator=look).values()
    assert said.startswith("the tool 'look' is annotated -> str and returned nothing")
    (said,) = failed(Slipping, "demonstrator succeeds", demonstrator=look).values()
    assert "a tool that it called raised TypeError: string indices must be integers" in said
    assert f"({__file__}, line {Slipping.seen.__code__.co_firstlineno + 1}, in seen)" in said


class Misdescribed(Sound):
    @tool
    def look(self, text: str) -> str:
        """See the text.

        Args:
            txt: what to look at.
        """
        return text


def test_a_docstring_that_describes_another_parameter_than_the_tool_takes_is_told():
    ((name, said),) = failed(Misdescribed).items()
    assert name == "tool schemas"
    assert said.startswith("the docstring of tool 'look' describes the parameter 'txt', ")
    assert said.endswith("did you mean 'text'?")


class Item:
    pass


class Worded:
    def __str__(self):
        return "two bolts"


class Handing(Sound):
    made: type = Item

    @tool
    def look(self, text: str):
        "See the text."
        return [self.made()]


class HandingWords(Handing):
    made = Worded


def test_an_object_without_a_text_of_its_own_is_refused_and_not_shown_with_its_address():
    (said,) = failed(Handing).values()
    assert said.startswith("tool 'look' returned list: <")
    assert "Item object at 0x" in said
    assert "has no text that an agent could read; expected text" in said
    env = TextEnv(HandingWords())
    env.reset(seed=0)
    assert env.step(env.call("look", text="a"))[0] == '["two bolts"]'


class Desk(Toolkit):
    """Counts, and is as it was after a snapshot."""

    count = 0
    began: ClassVar[list] = []

    def start(self, task, rng):
        self.count = 0
        self.began.append(time.sleep(0.03))

    @tool
    def more(self) -> int:
        """Count."""
        self.count += 1
        return self.count

    def snapshot(self):
        return self.count

    def restore(self, state):
        self.count = state


class Amnesia(Desk):
    def restore(self, state):
        self.count = 0


class Stuck(Desk):
    def close(self):
        raise OSError("the desk is locked")


class Archive(Toolkit):
    def start(self, task, rng):
        self.db = sqlite3.connect(":memory:")

    @tool
    async def look_up(self) -> str:
        """Look it up."""
        return str(self.db.execute("select 1").fetchone())

    def close(self):
        pass


class InArchive(Sound):
    toolkits = (Archive,)


def test_a_connection_of_another_thread_is_answered_with_what_to_do():
    said = failed(InArchive, ESCAPE)[ESCAPE]
    assert "'look_up' raised ProgrammingError: SQLite objects created in a thread" in said
    assert "check_same_thread=False) and hold a lock around each use, or open and close it in the tool" in said
    assert "raise ToolError" not in said


class AtDesk(Sound):
    toolkits = (Desk,)


class Forgets(Sound):
    toolkits = (Amnesia,)


class Locked(Sound):
    toolkits = (Stuck,)


def test_a_restore_that_loses_what_was_there_and_a_close_that_raises_are_found():
    assert "goes on differently after restore: its further messages[" in failed(Forgets, BRANCHES)[BRANCHES]
    assert failed(Locked, ESCAPE)[ESCAPE] == "toolkit Stuck did not close: OSError: the desk is locked"
    assert failed(AtDesk, BRANCHES, ESCAPE) == {}


def test_what_is_slow_is_told_before_it_is_played_again_and_again(monkeypatch):
    monkeypatch.setattr(holdups, "IN_PLACE_SECONDS", 0.02)
    Desk.began.clear()
    found = findings(AtDesk)
    ((name, said),) = ((one.name, one.message) for one in found if not one.passed)
    assert name == "others are never held up"
    assert "the start of its toolkits took" in said
    assert len(Desk.began) < 60
    assert found[-1].message == "not reached, for what 'others are never held up' says"


def test_the_command_ends_with_what_failed(monkeypatch, capsys):
    found = [
        CheckFinding("one", False, "wrong"),
        CheckFinding("two", True, "no demonstrator", True),
        CheckFinding("three", True),
        CheckFinding("four", True, "no demonstrator", True),
    ]
    monkeypatch.setattr("palaestra.envs.checks.check.check", lambda env_id, options, report: found)
    assert command(["check", "two-hop"]) == 1
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["skip", "two,"], ["ok", "three"], ["FAIL", "one"], ["1", "failed"],
    ]  # fmt: skip


class Speechless(Sound):
    look = takes("look", lambda self, text: None)


class Sleeping(Sound):
    asked = 0

    def reward(self, attempt):
        Sleeping.asked += 1
        time.sleep(0.1)
        return 0.0


class Sealed(Toolkit):
    starts: ClassVar[list] = []

    def start(self, task, rng):
        self.starts.append(1)
        raise ConnectionError("no server")

    @tool
    def more(self) -> int:
        """Count."""
        return 1


class NeverOpen(Sound):
    toolkits = (Sealed,)


def test_a_tool_that_promises_text_and_returns_nothing_is_named_without_a_demonstrator():
    assert "'look' is annotated -> str and returned nothing" in failed(Speechless, ESCAPE)[ESCAPE]


def refused(messages, rng):
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    return flawed.hermes.render([flawed.ParsedCall("look", {"text": "the drawer"})])


def confused(messages, rng):
    return refused(messages, rng) if messages[-1]["role"] == "user" else str({}["drawer"])


class Closed(Sound):
    look = takes("look", lambda self, text: f"{text} is locked")


def test_a_demonstrator_that_fails_is_shown_with_the_end_of_an_episode():
    name = "demonstrator succeeds"
    said = failed(Closed, name, demonstrator=refused)[name]
    assert "its demonstrator succeeds in 0%; expected 90%; in task train/0, the last tool message is" in said
    assert "'the drawer is locked', the last turn is 'the drawer is locked', the answer is" in said
    assert said.endswith("and the reward is {'success': 0.0}")


def test_what_a_demonstrator_raises_is_reported_once_as_its_own_with_what_it_saw():
    ((_, said),) = failed(Closed, demonstrator=confused).items()
    assert said.startswith("its demonstrator raised KeyError: 'drawer', in the task 'What is ")
    assert "after the message 'the drawer is locked' (" in said
    assert f"in {confused.__name__})" in said


def test_a_start_that_fails_and_a_reward_that_sleeps_stop_the_check_at_once(monkeypatch):
    assert list(failed(NeverOpen)) == ["an episode begins and ends"]
    assert len(Sealed.starts) == 1
    monkeypatch.setattr(holdups, "IN_PLACE_SECONDS", 0.02)
    assert list(failed(Sleeping)) == ["others are never held up"]
    assert Sleeping.asked < 6


def test_the_path_of_a_file_is_answered_with_the_form_that_is_wanted(capsys):
    assert command(["check", "some/mine.py"]) == 2
    assert "write mine:ID, with the id that it registers for ID" in " ".join(capsys.readouterr().err.split())


def test_a_game_keeps_the_id_that_it_was_registered_with(monkeypatch, capsys):
    import palaestra

    palaestra.register_game("test/Kept_v0", "flawed:Pair")
    monkeypatch.setattr("palaestra.envs.checks.check.check", lambda env_id, options, report: [])
    command(["check", "test/Kept_v0"])
    assert capsys.readouterr().out.splitlines()[0].strip() == "test/Kept_v0"
