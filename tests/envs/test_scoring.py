"""Rewards that ask a judge: waited for under a deadline, beside the other episodes; what fails there is never a 0."""

import asyncio
import threading
import time
from contextlib import closing

import pytest

from palaestra import Broken, Ending, EnvironmentDefect, Episode, Start, Task, UsageError
from palaestra.envs import RewardPart, TextEnv, ToolEnv, Toolkit, ToolVectorEnv, tool
from palaestra.envs.records.rescore import find_scorer, rescore
from palaestra.formats import ParsedCall, hermes
from palaestra.record import Record

released = threading.Event()
running: list[str] = []
closed: list[str] = []


class Desk(Toolkit):
    """Its sandbox is free while a judge thinks."""

    def close(self):
        closed.append("desk")

    @tool
    def write(self, line: str) -> str:
        """Write."""
        return line


class Essay(ToolEnv):
    """A judge reads the answer, and does what it says."""

    max_turns = 3
    toolkits = (Desk,)
    parts = {"success": RewardPart(), "style": RewardPart(weight=0.5)}  # noqa: RUF012

    def task(self, rng):
        return Task(f"Write {rng.integers(10**6)}.", answer="fine")

    async def reward(self, attempt):
        running.append(attempt.answer or "")
        assert closed
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


class Hasty(Essay):
    """Waits for half a second alone."""

    deadlines = {"reward": 0.5}  # noqa: RUF012


@pytest.fixture(autouse=True)
def fresh():
    released.clear()
    running.clear()
    closed.clear()
    yield
    released.set()


def opened(kind=Essay):
    env = TextEnv(kind())
    env.reset(seed=1)
    return env


def begun(slots, kind=Essay, **options):
    """A vector environment in each of whose slots an episode has begun."""
    arena = ToolVectorEnv(kind(), slots, **options)
    for slot in range(slots):
        arena.begin(slot, Start(slot, slot))
    assert len(arena.recv(slots)) == slots
    return closing(arena)


def ended(arena, count):
    """So many events, by slot; and what was raised in their place."""
    events, errors = [], []
    while len(events) + len(errors) < count:
        try:
            events += arena.recv(1)
        except KeyError as error:
            errors.append(str(error))
    return {event.slot: (event.ending, event.reward) for event in events}, errors


def test_a_step_waits_for_the_judge_of_whatever_ended_the_episode():
    env = opened()
    env.step(env.call("write", line="a"))
    _, reward, terminated, truncated, info = env.step("fine")
    assert (reward, terminated, truncated) == (1.25, True, False)
    assert info["parts"] == {"success": 1.0, "style": 0.5}
    env = opened()
    assert env.finish(Ending.LENGTH_LIMIT, "and so")[1] == 0.25
    assert env.attempt.answer is None
    opened().finish(Ending.BROKEN)
    assert (running, closed) == (["fine", ""], ["desk"] * 3)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [("hang", "longer than deadlines['reward'] = 0.5 s"), ("block", "longer than deadlines['reward']"),
     ("gone", "server is gone"), ("slow peer", "read timed out"), ("cancelled", "cancelled")],
)  # fmt: skip
def test_a_judge_that_fails_breaks_the_episode_and_is_never_a_zero(answer, fault):
    env = opened(Hasty if "longer" in fault else Essay)
    _, _, terminated, truncated, info = env.step(answer)
    assert (terminated, truncated, info["ending"], info["attempt"].answer) == (False, True, "broken", answer)
    assert fault in info["fault"]
    assert closed == ["desk"], "a late judge does not keep what its episode had"
    released.set()
    assert opened().step("fine")[1] == 1.25, "the next episode is judged again"


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


def test_a_judge_does_not_hold_up_the_other_slots():
    with begun(3, ordered=False) as arena:
        arena.send({0: "held", 1: "fine", 2: hermes.render([ParsedCall("write", {"line": "a"})])})
        assert [(event.slot, event.ending) for event in arena.recv(2)] == [(1, Ending.ANSWERED), (2, None)]
        arena.finish(2, Ending.LENGTH_LIMIT, "cut")
        assert ended(arena, 1) == ({2: (Ending.LENGTH_LIMIT, 0.25)}, [])
        with pytest.raises(UsageError, match="busy"):
            arena.send({0: "again"})
        assert arena.recv(1, timeout=0.05) == []
        released.set()
        assert ended(arena, 1) == ({0: (Ending.ANSWERED, 0.25)}, [])


def test_judges_of_all_slots_work_at_once_and_order_is_no_default_where_one_waits():
    with closing(ToolVectorEnv(Essay(), 8)) as arena:
        assert not arena.ordered
        arena.reset(seed=1)
        _, rewards, terminated, _, _ = arena.step(["meet"] * 8)
        assert running == ["meet"] * 8
        assert rewards.tolist() == [0.25] * 8
        assert terminated.all()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_judge_that_fails_or_errs_concerns_its_slot_alone(ordered):
    with begun(5, Hasty, ordered=ordered) as arena:
        arena.send(dict(enumerate(["hang", "fine", "gone", "other", "mistake"])))
        found, errors = ended(arena, 5)
        assert found == {0: (Ending.BROKEN, None), 1: (Ending.ANSWERED, 1.25), 2: (Ending.BROKEN, None),
                         3: (Ending.ANSWERED, 0.25)}  # fmt: skip
        assert errors == ["'rubric'"]
        arena.begin(4, Start(3, 3))
        assert arena.recv(1)[0].slot == 4


def test_a_slot_whose_judge_works_can_be_dropped_and_used_again():
    with begun(2, ordered=False) as arena:
        arena.send({0: "held", 1: "held"})
        assert arena.recv(1, timeout=0.05) == []
        arena.begin(0, Start(5, 5))
        (event,) = arena.recv(1)
        assert (event.slot, event.ending, event.start.task) == (0, None, 5)
        arena.send({0: "fine"})
        assert [event.reward for event in arena.recv(1)] == [1.25]
    assert not released.is_set(), "closing does not wait for a judge either"


async def half(attempt):
    return 0.5


async def gone(attempt):
    raise Broken("nobody answers")


def test_rescoring_waits_for_judges_and_one_that_fails_is_no_zero():
    env = opened()
    info = env.step("fine")[-1]
    record = Record("essay", Episode(Start(0, 1), info["attempt"], (), Ending.ANSWERED, 1.25, info["parts"]))
    assert rescore(record, find_scorer(f"{__name__}:half")).episode.parts == {"success": 0.5}
    new = rescore(record, find_scorer(f"{__name__}:gone")).episode
    assert (new.ending, new.reward, new.parts) == (Ending.BROKEN, None, {})
    assert "nobody answers" in new.fault


def test_what_holds_the_loop_is_told_a_remedy_that_a_judge_can_take(caplog):
    holds = threading.Event()

    class Holding(Essay):
        async def reward(self, attempt):
            holds.wait(60)
            return 1.0

    with begun(1, Holding) as opened:
        opened.send({0: "fine"})
        until = time.monotonic() + 60
        while "held the event loop" not in caplog.text and time.monotonic() < until:
            opened.recv(1, 0.05)
        holds.set()
        (said,) = (one.getMessage() for one in caplog.records if "held the event loop" in one.message)
        assert "hand it to asyncio.to_thread" in said
        assert "@tool" not in said
