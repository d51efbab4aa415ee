"""The episode machine driven by hand: its steps, what is late, what is dropped, what is declared."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from driven import call, refused
from machine_worlds import (
    MADE,
    SELL,
    TROUBLE,
    JudgedShop,
    Server,
    Shop,
    Stock,
    Till,
    Warehouse,
    aside,
    done,
    led,
    machine_of,
    stands,
)

from palaestra import Broken, Ending, EnvironmentDefect, Start, UsageError
from palaestra.envs.arena import driving
from palaestra.envs.core import branches


@pytest.fixture(autouse=True)
def untroubled():
    TROUBLE.clear()
    MADE.clear()


@pytest.mark.parametrize("kit", [Stock, Warehouse, Server])
@pytest.mark.parametrize("eager", [True, False])
def test_each_step_gives_events_or_what_is_to_be_done_before_the_next(kit, eager):
    machine, seen = machine_of(JudgedShop, kit), []
    machine.eager = eager
    assert (machine.is_open, machine.pending_events) == (False, {})
    (event,) = led(machine, machine.open({None: Start(0, 1)}), seen=seen).values()
    assert (event.ending, [tool["function"]["name"] for tool in event.tools]) == (None, ["look", "sell"])
    assert led(machine, machine.act(None, call("look") + SELL), seen=seen)[None].messages[1]["content"] == "sold"
    (event,) = led(machine, machine.act(None, "sold"), seen=seen).values()
    assert (event.ending, event.reward, event.attempt.final) == (Ending.ANSWERED, 1.0, {"sold": ["pen"]})
    name, looks = kit.__name__, () if eager else ("look",)
    waits = [("start", f"{name}.start"), ("calls", *looks, "sell"), ("final", f"{name}.final")]
    ends = [("end", "reward", f"{name}.close")]
    assert seen == ([("end", "reward")] if kit is Stock and eager else waits + ends)
    assert (MADE[0].log, machine.is_open) == (["start", "close"], False)
    led(machine, machine.open({None: Start(0, 2)}))
    assert MADE[0].log[2:] == ["start"], "it is used again"


def test_works_have_the_deadlines_that_the_author_or_an_instance_of_a_toolkit_declares():
    class Slow(Server):
        def __init__(self):
            super().__init__()
            found = self.tools["sell"]
            self.tools = {"sell": replace(found, conditions=replace(found.conditions, seconds=99.0))}

    machine, found = machine_of(JudgedShop, Slow), {}
    for role in ("start", "calls", "final", "end"):
        for work in stands(machine, role).works:
            found[work.label] = (work.conditions.mode, work.conditions.seconds)
    assert found == {
        "Slow.start": ("async", 1.0), "sell": ("async", 99.0), "Slow.final": ("async", 4.0),
        "reward": ("async", 2.0), "Slow.close": ("async", 3.0),
    }  # fmt: skip


@pytest.mark.parametrize("late", ["start", "sell", "final", "reward", "close"])
def test_what_is_late_breaks_the_episode_and_a_closing_changes_nothing(late):
    machine = machine_of(JudgedShop, Warehouse)
    label = late if late in ("sell", "reward") else f"Warehouse.{late}"
    reply = machine.open({None: Start(0, 1)})
    for turn in (SELL, "sold", None):
        (event,) = led(machine, reply, {label}).values()
        if event.ending is not None:
            break
        reply = machine.act(None, turn)
    if late == "close":
        assert (event.ending, event.reward) == (Ending.ANSWERED, 1.0)
    else:
        assert (event.ending, event.reward, event.parts) == (Ending.BROKEN, None, {})
        assert {"start": "did not start: Warehouse.start gave no result in 1 s", "sell": "sell(thing='pen') gave",
                "reward": "deadlines['reward'] = 2 s"}.get(late, label) in event.fault.replace("()", "")  # fmt: skip
    assert MADE[0].log.count("close") == (late == "reward"), "closed beside the verdict, or not yet"
    aside(machine)
    assert MADE[0].log.count("close") == (late != "close")
    assert led(machine, machine.open({None: Start(0, 2)}))[None].ending is None
    assert len(MADE) == (1 if late == "reward" else 2), "what may still be in use is not used again"


@pytest.mark.parametrize("kits", [(Warehouse,), (Server, Till)])
@pytest.mark.parametrize("role", ["start", "calls", "final", "end"])
def test_what_was_dropped_closes_and_changes_nothing_later(role, kits):
    machine = machine_of(JudgedShop, *kits)
    old = stands(machine, role)
    refused(r"middle of a turn|no episode", branches.take, machine)
    assert machine.discard() is None
    led(machine, machine.open({None: Start(0, 2)}))
    there = machine.state.attempt(None)
    aside(machine)
    assert machine.resume(done(old)) == {}
    for thread in [one for one in threading.enumerate() if one.name == "palaestra-close"]:
        thread.join(60)
    assert (machine.state.attempt(None), machine.state.seats[None].busy) == (there, False)
    for kit in MADE[: len(kits)]:
        assert kit.log[-1] == "close", "also what started when nobody waited for it any more"
    machine.discard()
    aside(machine)
    assert [kit.log.count("start") <= kit.log.count("close") for kit in MADE] == [True] * len(MADE)


def test_what_only_computes_is_not_closed_again_where_its_judge_is_dropped():
    machine = machine_of(JudgedShop, Stock)
    stands(machine, "end")
    machine.discard()
    aside(machine)
    assert MADE[0].log == ["start", "close"]


@pytest.mark.parametrize("kit", [Stock, Warehouse])
def test_a_start_that_fails_is_broken_unless_every_episode_would_meet_it(kit):
    machine = machine_of(Shop, kit)
    TROUBLE["start"] = OSError("no room")
    (event,) = led(machine, machine.open({None: Start(0, 1)})).values()
    assert (event.ending, event.reward) == (Ending.BROKEN, None)
    assert "a toolkit did not start: OSError: no room" in event.fault
    assert MADE[0].log == ["start", "close"]
    TROUBLE["start"] = UsageError("no such option")
    with pytest.raises(UsageError, match="no such option"):
        led(machine, machine.open({None: Start(0, 1)}))
    aside(machine)
    assert (machine.is_open, MADE[0].log) == (False, ["start", "close"] * 2)


@pytest.mark.parametrize("kit", [Stock, Warehouse, Server])
@pytest.mark.parametrize(
    ("found", "error", "said"),
    [(["pen"], EnvironmentDefect, r"final\(\) returned \['pen'\]; expected a dict"),
     ({1: 2}, EnvironmentDefect, "expected a dict by name"), ({"x": object()}, EnvironmentDefect, r"final\(\)\['x'\]"),
     (KeyError("gone"), KeyError, "gone"), (Broken("no server"), None, "no server")],
)  # fmt: skip
def test_a_final_state_that_cannot_be_taken_is_the_authors_mistake_and_broken_alone_is_ours(kit, found, error, said):
    machine = machine_of(Shop, kit)
    led(machine, machine.open({None: Start(0, 1)}))
    TROUBLE["final"] = found
    if error is None:
        (event,) = led(machine, machine.act(None, "sold")).values()
        assert (event.ending, said in event.fault) == (Ending.BROKEN, True)
    else:
        with pytest.raises(error, match=said):
            led(machine, machine.act(None, "sold"))
        machine.discard()
    aside(machine)
    assert MADE[0].log == ["start", "close"]


def test_final_states_are_one_mapping_that_nobody_else_holds():
    class Counter(Stock):
        declared = "count"
        sell = None

        def final(self):
            return {self.declared: 3}

    class Counted(Shop):
        async def final(self):
            return {"looks": (1, {"a": 2})}

    machine = machine_of(Counted, Stock, Counter)
    led(machine, machine.open({None: Start(0, 1)}))
    led(machine, machine.act(None, SELL))
    (event,) = led(machine, machine.act(None, "sold")).values()
    MADE[0].sold.append("later")
    assert event.attempt.final == {"looks": (1, {"a": 2}), "sold": ["pen"], "count": 3}
    Counter.declared = "sold"
    led(machine, machine.open({None: Start(0, 1)}))
    with pytest.raises(EnvironmentDefect, match="two toolkits declare 'sold'"):
        led(machine, machine.act(None, "sold"))


@pytest.mark.parametrize("kit", [Stock, Warehouse])
@pytest.mark.parametrize("reward", [KeyError("rubric"), SystemExit(3), 2.0])
def test_a_reward_that_fails_is_raised_once_toolkits_are_closed(kit, reward):
    for author in (Shop, JudgedShop):
        machine = machine_of(author, kit)
        led(machine, machine.open({None: Start(0, 1)}))
        TROUBLE["reward"] = reward
        with pytest.raises(EnvironmentDefect if reward == 2.0 else type(reward)):
            led(machine, machine.act(None, "sold"))
        assert (MADE[-1].log, machine.is_open) == (["start", "close"], False)
        refused("has ended", machine.stop, Ending.LENGTH_LIMIT)


def test_a_start_on_the_loop_that_comes_through_when_nobody_waits_is_closed(monkeypatch):
    machine = machine_of(Shop, Server)
    old = stands(machine, "start")
    machine.discard()
    aside(machine)
    threads = []
    monkeypatch.setattr("threading.Thread.start", lambda thread: threads.append(thread))
    done(old)
    assert MADE[0].log == ["close", "start"]
    threads[0].run()
    assert MADE[0].log == ["close", "start", "close"]


def test_an_interrupt_while_somebody_waits_drops_the_episode(monkeypatch):
    machine, closings = machine_of(Shop, Warehouse), []
    led(machine, machine.open({None: Start(0, 1)}))

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(driving, "wait_for", interrupted)
    runner = SimpleNamespace(start=lambda pendings, inbox: closings.extend(pendings))
    monkeypatch.setattr(driving, "shared_runner", lambda: runner)
    with pytest.raises(KeyboardInterrupt):
        driving.settle(machine, machine.act(None, SELL))
    for use in (lambda: machine.act(None, "sold"), lambda: machine.stop(Ending.LENGTH_LIMIT)):
        refused("before an episode has begun", use)
    done(closings[0])
    assert MADE[0].log == ["start", "close"]


@pytest.mark.parametrize("ways", ["put", "fork"])
@pytest.mark.parametrize("room", [0, 1, 3])
def test_what_a_restore_or_a_fork_had_opened_before_it_failed_is_closed(ways, room):
    machine = machine_of(Shop, Stock, Till)
    led(machine, machine.open({None: Start(0, 1)}))
    snapshot = branches.take(machine)
    TROUBLE["room"] = min(room, 1) if ways == "put" else room
    with pytest.raises(Broken, match="full"):
        branches.put(machine, snapshot) if ways == "put" else branches.fork(machine, 2)
    assert machine.is_open is (ways == "fork")
    machine.discard()
    aside(machine)
    assert len(MADE) == (4 if ways == "put" else 4 if room < 2 else 6)
    assert [kit.log[-1] for kit in MADE] == ["close"] * len(MADE)
