"""Rewards that ask a judge: waited for under a deadline, beside the other episodes; what fails there is never a 0."""

import asyncio
import threading

import pytest
from driven import begun, call

from palaestra import Broken, Ending, Episode, Start, Task, UsageError
from palaestra.envs import RewardPart, TextEnv, ToolEnv, Toolkit, tool
from palaestra.envs.records.rescore import find_scorer, rescore
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


def test_a_judge_does_not_hold_up_the_other_slots(arena):
    essays = begun(arena(Essay, 3, ordered=False))
    essays.send({0: "held", 1: "fine", 2: call("write", line="a")})
    assert [(event.slot, event.ending) for event in essays.recv(2)] == [(1, Ending.ANSWERED), (2, None)]
    essays.finish(2, Ending.LENGTH_LIMIT, "cut")
    assert ended(essays, 1) == ({2: (Ending.LENGTH_LIMIT, 0.25)}, [])
    with pytest.raises(UsageError, match="busy"):
        essays.send({0: "again"})
    assert essays.recv(1, timeout=0.05) == []
    released.set()
    assert ended(essays, 1) == ({0: (Ending.ANSWERED, 0.25)}, [])


def test_judges_of_all_slots_work_at_once_and_order_is_no_default_where_one_waits(arena):
    essays = arena(Essay, 8)
    assert not essays.ordered
    essays.reset(seed=1)
    _, rewards, terminated, _, _ = essays.step(["meet"] * 8)
    assert running == ["meet"] * 8
    assert (rewards.tolist(), terminated.all()) == ([0.25] * 8, True)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_judge_that_fails_or_errs_concerns_its_slot_alone(arena, ordered):
    essays = begun(arena(Hasty, 5, ordered=ordered))
    essays.send(dict(enumerate(["hang", "fine", "gone", "other", "mistake"])))
    found, errors = ended(essays, 5)
    assert found == {0: (Ending.BROKEN, None), 1: (Ending.ANSWERED, 1.25), 2: (Ending.BROKEN, None),
                     3: (Ending.ANSWERED, 0.25)}  # fmt: skip
    assert errors == ["'rubric'"]
    essays.begin(4, Start(3, 3))
    assert essays.recv(1)[0].slot == 4


def test_a_slot_whose_judge_works_can_be_dropped_and_used_again(arena):
    essays = begun(arena(Essay, 2, ordered=False))
    essays.send({0: "held", 1: "held"})
    assert essays.recv(1, timeout=0.05) == []
    essays.begin(0, Start(5, 5))
    (event,) = essays.recv(1)
    assert (event.slot, event.ending, event.start.task) == (0, None, 5)
    essays.send({0: "fine"})
    assert [event.reward for event in essays.recv(1)] == [1.25]
    essays.close()
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
