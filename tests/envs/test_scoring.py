"""Rewards that ask a judge: waited for under a deadline, beside the other episodes; what fails there is never a 0."""

import asyncio
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import gymnasium
import pytest
from worlds import Brief

import palaestra
from palaestra import Attempt, Broken, Ending, EnvironmentDefect, Episode, Start, Task, UsageError
from palaestra.envs import RewardPart, ToolEnv, Toolkit, ToolVectorEnv, tool
from palaestra.envs.records.by_hand import ByHand
from palaestra.envs.records.replay import replay
from palaestra.envs.records.rescore import find_scorer, rescore
from palaestra.record import Record

released = threading.Event()
running: list[str] = []
closed: list[str] = []


class Desk(Toolkit):
    """Must be open while its judge works, and closed behind it."""

    def start(self, task, rng):
        self.open = True

    def close(self):
        self.open = False
        closed.append("desk" if threading.current_thread() is threading.main_thread() else "aside")

    @tool
    def write(self, line: str) -> str:
        """Write."""
        return line


class Essay(ToolEnv):
    """A judge reads the answer, and does what it says."""

    max_turns = 3
    toolkits = (Desk,)
    reward_timeout = Brief(lambda env: env._answer in ("hang", "block"))
    parts = {"success": RewardPart(), "style": RewardPart(weight=0.5)}  # noqa: RUF012

    def task(self, rng):
        return Task(f"Write {rng.integers(10**6)}.", answer="fine")

    async def reward(self, attempt):
        running.append(attempt.answer or "")
        if self._kits:
            assert self._kits[0].open
        await asyncio.sleep(0)
        match attempt.answer:
            case "hang":
                await asyncio.sleep(60)
            case "held":
                while not released.is_set():
                    await asyncio.sleep(0.01)
            case "meet":
                while len(running) < 8:
                    await asyncio.sleep(0.005)
            case "block":
                released.wait(60)
            case "gone":
                raise Broken("the judge's server is gone")
            case "slow peer":
                raise TimeoutError("read timed out")
            case "cancelled":
                raise asyncio.CancelledError
            case "mistake":
                raise KeyError("rubric")
            case "leave":
                raise SystemExit(3)
            case "nan":
                return float("nan")
            case "undeclared":
                return {"success": 1.0, "wit": 1.0}
        return {"success": float(attempt.answer == "fine"), "style": 0.5}


class Patient(Essay):
    """Waits as long as a test needs."""

    reward_timeout = 60.0


@pytest.fixture(autouse=True)
def essays(monkeypatch):
    monkeypatch.setitem(sys.modules, "essays", SimpleNamespace(Essay=Essay, Patient=Patient, half=half, hang=hang))
    palaestra.register("test/Essay-v0", "essays:Essay")
    palaestra.register("test/Patient-v0", "essays:Patient")
    released.clear()
    running.clear()
    closed.clear()
    yield
    released.set()
    for name in ("Essay", "Patient"):
        gymnasium.registry.pop(f"test/{name}-v0")


async def half(attempt):
    return 0.5


async def hang(attempt):
    raise Broken("nobody answers")


def opened():
    env = Essay()
    env.reset(seed=1)
    return env


def test_a_step_waits_for_the_judge():
    env = opened()
    env.step(env.call("write", line="a"))
    _, reward, terminated, truncated, info = env.step("fine")
    assert (reward, terminated, truncated) == (1.25, True, False)
    assert info["parts"] == {"success": 1.0, "style": 0.5}
    assert closed == ["desk"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [("hang", "longer than reward_timeout = 0.3 s"), ("block", "longer than reward_timeout"),
     ("gone", "server is gone"), ("slow peer", "read timed out"), ("cancelled", "cancelled")],
)  # fmt: skip
def test_a_judge_that_fails_breaks_the_episode_and_is_never_a_zero(answer, fault):
    event = opened().take(answer)
    assert (event.ending, event.reward, event.parts) == (Ending.BROKEN, None, {})
    assert fault in event.fault
    assert event.attempt.answer == answer
    released.set()
    env = opened()
    assert env.step("fine")[1] == 1.25, "the next episode is judged again"


def test_a_late_judge_still_lets_go_of_the_toolkits_and_nobody_waits_for_them():
    opened().take("hang")
    until = time.monotonic() + 60
    while not closed and time.monotonic() < until:
        time.sleep(0.01)
    assert closed == ["aside"]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [("mistake", KeyError, "rubric"), ("leave", SystemExit, "3"), ("nan", EnvironmentDefect, "finite"),
     ("undeclared", EnvironmentDefect, "'wit'")],
)  # fmt: skip
def test_a_mistake_in_the_reward_is_the_authors(answer, error, said):
    env = opened()
    with pytest.raises(error, match=said):
        env.step(answer)
    assert closed == ["desk"]
    env.reset(seed=2)


def test_a_cut_off_episode_is_judged_too():
    event = opened().finish(Ending.LENGTH_LIMIT, "and so")
    assert (event.reward, event.attempt.answer) == (0.25, None)
    assert opened().finish(Ending.BROKEN).reward is None
    assert running == [""]


def test_a_judge_does_not_hold_up_the_other_slots():
    with closing(gymnasium.make_vec("test/Patient-v0", num_envs=3, ordered=False)) as arena:
        assert isinstance(arena, ToolVectorEnv)
        for slot in range(3):
            arena.begin(slot, Start(slot, slot))
        arena.recv(3)
        arena.send({0: "held", 1: "fine", 2: arena.envs[2].call("write", line="a")})
        first = arena.recv(2)
        assert [(event.slot, event.ending) for event in first] == [(1, Ending.ANSWERED), (2, None)]
        arena.send({2: "fine"})
        (second,) = arena.recv(1)
        assert (second.slot, second.reward) == (2, 1.25)
        with pytest.raises(UsageError, match="busy"):
            arena.send({0: "again"})
        assert arena.recv(1, timeout=0.05) == []
        released.set()
        (third,) = arena.recv(1)
        assert (third.slot, third.ending, third.reward) == (0, Ending.ANSWERED, 0.25)


def test_judges_of_all_slots_work_at_once():
    with closing(gymnasium.make_vec("test/Patient-v0", num_envs=8)) as arena:
        arena.reset(seed=1)
        _, rewards, terminated, _, _ = arena.step(["meet"] * 8)
        assert running == ["meet"] * 8
        assert rewards.tolist() == [0.25] * 8
        assert terminated.all()


def test_an_environment_whose_reward_waits_is_not_ordered_by_itself():
    with closing(gymnasium.make_vec("test/Patient-v0", num_envs=2)) as arena:
        assert not arena.ordered
    with closing(gymnasium.make_vec("palaestra/Calculator-v0", num_envs=2)) as arena:
        assert arena.ordered


@pytest.mark.parametrize("ordered", [False, True])
def test_a_broken_judge_breaks_its_slot_alone(ordered):
    with closing(gymnasium.make_vec("test/Essay-v0", num_envs=4, ordered=ordered)) as arena:
        for _ in range(2):
            arena.reset(seed=1)
            _, rewards, terminated, truncated, infos = arena.step(["hang", "fine", "gone", "other"])
            assert infos["ending"].tolist() == ["broken", "answered", "broken", "answered"]
            assert rewards.tolist() == [0.0, 1.25, 0.0, 0.25]
            assert terminated.tolist() == [False, True, False, True]
            assert truncated.tolist() == [True, False, True, False]


def test_a_slot_whose_judge_works_can_be_dropped_and_used_again():
    with closing(gymnasium.make_vec("test/Patient-v0", num_envs=2, ordered=False)) as arena:
        for slot in range(2):
            arena.begin(slot, Start(slot, slot))
        arena.recv(2)
        arena.send({0: "held", 1: "held"})
        assert arena.recv(1, timeout=0.05) == []
        arena.begin(0, Start(5, 5))
        (event,) = arena.recv(1)
        assert (event.slot, event.ending, event.start.task) == (0, None, 5)
        arena.send({0: "fine"})
        assert [event.reward for event in arena.recv(1)] == [1.25]
    assert not released.is_set(), "closing does not wait for a judge either"


def test_finish_is_judged_beside_the_others():
    with closing(gymnasium.make_vec("test/Patient-v0", num_envs=2, ordered=False)) as arena:
        for slot in range(2):
            arena.begin(slot, Start(slot, slot))
        arena.recv(2)
        arena.finish(0, Ending.LENGTH_LIMIT, "cut")
        arena.send({1: "fine"})
        events = []
        while len(events) < 2:
            events += arena.recv(1)
        assert {event.slot: (event.ending, event.reward) for event in events} == {
            0: (Ending.LENGTH_LIMIT, 0.25),
            1: (Ending.ANSWERED, 1.25),
        }


def test_a_mistake_in_the_reward_frees_its_slot_and_keeps_the_others():
    with closing(gymnasium.make_vec("test/Patient-v0", num_envs=2, ordered=False)) as arena:
        for slot in range(2):
            arena.begin(slot, Start(slot, slot))
        arena.recv(2)
        arena.send({0: "mistake", 1: "fine"})
        events, errors = [], []
        while len(events) + len(errors) < 2:
            try:
                events += arena.recv(1)
            except KeyError as error:
                errors.append(error)
        assert [(event.slot, event.reward) for event in events] == [(1, 1.25)]
        assert str(errors[0]) == "'rubric'"
        arena.begin(0, Start(3, 3))
        assert arena.recv(1)[0].slot == 0


# Over records.


def played(answer):
    env = opened()
    event = env.take(answer)
    return Record(
        "test/Essay-v0",
        Episode(event.start, event.attempt, (), event.ending, event.reward, event.parts, event.fault, event.tools),
    )


def test_a_replay_asks_the_judge_again():
    record = played("fine")
    asked = len(running)
    assert replay(Essay(), record.episode) is None
    assert len(running) == asked + 1


def test_a_replay_whose_judge_is_gone_says_so(monkeypatch):
    record = played("fine")

    async def gone(self, attempt):
        raise Broken("the judge's server is gone")

    monkeypatch.setattr(Essay, "reward", gone)
    found = replay(Essay(), record.episode)
    assert found is not None
    assert "server is gone" in str(found)


def test_rescoring_waits_for_judges():
    record = played("fine")
    assert rescore(record, find_scorer("test/Essay-v0")).episode.reward == 1.25
    assert rescore(record, find_scorer("essays:half")).episode.parts == {"success": 0.5}


def test_an_episode_whose_new_judge_fails_is_broken_and_no_zero():
    new = rescore(played("fine"), find_scorer("essays:hang")).episode
    assert (new.ending, new.reward, new.parts) == (Ending.BROKEN, None, {})
    assert "nobody answers" in new.fault


def test_by_hand_the_judge_is_asked_about_what_there_is():
    hand = ByHand(Essay(), "test/Essay-v0", {})
    hand.open(1)
    assert hand.reward() == (0.25, {"success": 0.0, "style": 0.5})
    hand.say("fine")
    assert hand.reward()[0] == 1.25


def test_a_judge_that_is_never_asked_is_not_complained_about():
    from palaestra.envs.core.verdict import Verdict

    attempt = Attempt(Task("?"), (), "fine", (), 1)
    Verdict(Essay().reward(attempt), 1.0)
    assert running == []


def test_what_holds_the_loop_is_told_a_remedy_that_a_judge_can_take(caplog):
    holds = threading.Event()

    class Holding(Essay):
        async def reward(self, attempt):
            holds.wait(60)
            return 1.0

    with closing(ToolVectorEnv(Holding, 1)) as opened:
        opened.begin(0, Start(0, 0))
        opened.recv(1)
        opened.send({0: "fine"})
        until = time.monotonic() + 60
        while "held the event loop" not in caplog.text and time.monotonic() < until:
            opened.recv(1, 0.05)
        holds.set()
        (said,) = (one.getMessage() for one in caplog.records if "held the event loop" in one.message)
        assert "hand it to asyncio.to_thread" in said
        assert "@tool" not in said
