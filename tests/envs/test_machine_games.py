"""The machine with several seats: shared toolkits, rounds that see the world, who stops it and what breaks it."""

import asyncio

import pytest
from machine_worlds import MADE, SELL, TROUBLE, Barter, Market, Notes, Warehouse, aside, call, done, led, opened

from palaestra import Broken, Ending, EnvironmentDefect, Start
from palaestra.envs import Toolkit, tool
from palaestra.envs.arena.driving import settle
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.core.machine import Machine
from palaestra.envs.running.runner import wait_for
from palaestra.envs.running.work import Pending


@pytest.fixture(autouse=True)
def untroubled():
    TROUBLE.clear()
    MADE.clear()


def test_seats_share_toolkits_or_have_their_own_and_rounds_hear_of_the_world():
    machine, events = opened(Market)
    assert {seat: [one["function"]["name"] for one in event.tools] for seat, event in events.items()} == {
        "ann_0": ["sell", "note"], "bob_0": ["note"]
    }  # fmt: skip
    refused = led(machine, machine.act("bob_0", SELL))["bob_0"].messages[0]["content"]
    assert "no tool is named 'sell'" in refused
    for seat in machine.seats:
        led(machine, machine.act(seat, call("note", line=seat)))
    assert led(machine, machine.act("bob_0", "ready")) == {}
    led(machine, machine.act("ann_0", SELL))
    seen = []
    events = led(machine, machine.act("ann_0", "next"), seen=seen)
    assert seen == [("world", "Warehouse.final", "Notes.final", "Notes.final")]
    assert [event.messages[-1]["content"] for event in events.values()] == ["Sold so far: ['pen']"] * 2
    led(machine, machine.act("bob_0", "ready"))
    led(machine, machine.act("ann_0", SELL))
    events = led(machine, machine.act("ann_0", call("sell", thing="last")))
    assert events["ann_0"].attempt.answer == "all 3", "Done ends a seat's turn, and rounds decide"
    assert {seat: (event.ending, event.reward) for seat, event in events.items()} == {
        "ann_0": (Ending.ANSWERED, 0.0), "bob_0": (Ending.ANSWERED, 1.0)
    }  # fmt: skip
    assert events["bob_0"].attempt.final == {
        "sold": ["pen", "pen", "last"],
        "notes": {"ann_0": ["ann_0"], "bob_0": ["bob_0"]},
    }
    assert [len(world["sold"]) for world in events["ann_0"].attempt.worlds] == [1, 3]


def test_who_cannot_go_on_forfeits_and_the_first_one_is_to_blame():
    machine, _ = opened(Barter)
    events = led(machine, machine.stop(Ending.LENGTH_LIMIT, "ann_0", "I was about"))
    assert {seat: (event.ending, event.reward, event.fault) for seat, event in events.items()} == {
        "ann_0": (Ending.LENGTH_LIMIT, 0.0, ""),
        "bob_0": (Ending.TURN_LIMIT, 1.0, "ann_0 could not go on: length_limit"),
    }
    machine, _ = opened(Market)
    pending = machine.act("ann_0", SELL)
    assert machine.stop(Ending.LENGTH_LIMIT, "bob_0") == machine.stop(Ending.LENGTH_LIMIT, "ann_0") == {}
    reply = machine.resume(done(pending))
    assert (reply.about.role, machine.stop(Ending.TURN_LIMIT, "bob_0")) == ("final", {}), "its end is under way"
    events = led(machine, reply)
    assert {seat: event.ending for seat, event in events.items()} == {
        "ann_0": Ending.TURN_LIMIT, "bob_0": Ending.LENGTH_LIMIT
    }  # fmt: skip
    assert events["ann_0"].attempt.final["sold"] == ["pen"], "taken after the calls"


@pytest.mark.parametrize("role", ["start", "world"])
def test_a_game_that_is_stopped_while_toolkits_are_at_work_asks_nobody_any_more(role):
    machine = Machine(spec_of(Market()))
    reply = machine.open({seat: Start(0, 1, seat=seat) for seat in machine.seats})
    if role == "world":
        led(machine, reply)
        machine.act("ann_0", "next")
        reply = machine.act("bob_0", "next")
    assert (reply.about.role, machine.stop(Ending.TURN_LIMIT, "ann_0", fault="it left")) == (role, {})
    events = led(machine, reply)
    assert [(event.ending, event.fault) for event in events.values()] == [
        (Ending.TURN_LIMIT, ""), (Ending.TURN_LIMIT, "it left")
    ]  # fmt: skip
    assert MADE[0].log == ["start", "close"]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_game_that_breaks_while_calls_of_others_run_lets_go_of_its_toolkits(stopped):
    machine, _ = opened(type("Both", (Market,), {"seat_tools": dict.fromkeys(Market.seats, ("sell",))}))
    runs, breaks = machine.act("bob_0", SELL), machine.act("ann_0", SELL)
    if stopped:
        assert machine.stop(Ending.LENGTH_LIMIT, "ann_0") == {}
    TROUBLE["sell"] = Broken("no power")
    events = led(machine, breaks)
    assert [event.ending for event in events.values()] == [Ending.BROKEN] * 2
    assert "no power" in events["bob_0"].fault
    TROUBLE.clear()
    led(machine, machine.open({seat: Start(0, 2, seat=seat) for seat in machine.seats}))
    assert machine.resume(done(runs)) == {}
    assert [kit.sold for kit in MADE] == [["pen", "pen"], []], "the late call met the old toolkit"
    aside(machine)
    assert MADE[0].log == ["start", "close"]


@pytest.mark.parametrize("said", [Broken("the judge is gone"), KeyError("rule")])
def test_rounds_that_fail_are_the_authors_mistake_unless_they_are_broken(said):
    machine, _ = opened(Market)
    TROUBLE["rounds"] = said
    machine.act("ann_0", "next")
    if isinstance(said, Broken):
        events = led(machine, machine.act("bob_0", "next"))
        assert [event.ending for event in events.values()] == [Ending.BROKEN] * 2
    else:
        with pytest.raises(KeyError):
            led(machine, machine.act("bob_0", "next"))
        machine.discard()
        aside(machine)
    assert MADE[0].log == ["start", "close"]


def test_rounds_that_fail_as_they_are_dropped_keep_no_toolkit_open(caplog):
    machine, _ = opened(Market)
    machine.act("ann_0", "next")
    led(machine, machine.act("bob_0", "next"))
    TROUBLE["goodbye"] = OSError("no log")
    machine.discard()
    aside(machine)
    assert MADE[0].log == ["start", "close"]
    assert "Market.rounds did not end: OSError: no log" in caplog.text


def test_names_that_two_toolkits_of_seats_declare_collide():
    class Others(Notes):
        note = None

    for kits in ((Notes, Others), (Others, type("Shared", (Others,), {"per_seat": False, "note": None}))):
        author = type("Market", (Market,), {"toolkits": (Warehouse, *kits), "seat_tools": {}})
        machine, _ = opened(author)
        machine.act("ann_0", "next")
        with pytest.raises(EnvironmentDefect, match="two toolkits declare 'notes'"):
            led(machine, machine.act("bob_0", "next"))


class Blackboard(Toolkit):
    """All seats share it."""

    def start(self, task, rng):
        self.lines = [self.seat]

    @tool
    async def write(self, line: str) -> str:
        """Write a line, while others write theirs."""
        before = self.seat
        await asyncio.sleep(0.01)
        self.lines = [*self.lines, (self.seat, line)]
        return f"{before} and {self.seat}"

    def final(self):
        return {"lines": self.lines, "asked by": self.seat}


class Own(Blackboard):
    """Each seat has its own."""

    per_seat = True


@pytest.mark.parametrize("kit", [Blackboard, Own])
def test_a_tool_of_a_toolkit_knows_which_seat_calls_though_all_call_at_once(kit):
    def rounds(self, task, rng):
        said = yield dict.fromkeys(self.seats, task.prompt)
        assert set(said) == set(self.seats)

    seat_tools = dict.fromkeys(Market.seats, ("write",))
    body = {"toolkits": (kit,), "rounds": rounds, "seat_tools": seat_tools, "reward": lambda self, attempt: 1.0}
    machine = Machine(spec_of(type("Writing", (Market,), body)()))
    settle(machine, machine.open({seat: Start(0, 0, seat=seat) for seat in machine.seats}))
    write = call("write", line="mine")
    waiting = [machine.act(seat, write) for seat in machine.seats]
    wait_for(Pending([work for pending in waiting for work in pending.works]))
    for pending, seat in zip(waiting, machine.seats, strict=True):
        (message,) = machine.resume(pending)[seat].messages
        assert message["content"] == f"{seat} and {seat}"
    machine.act("ann_0", "next")
    final = settle(machine, machine.act("bob_0", "next"))["ann_0"].attempt.final
    if kit is Own:
        assert final["lines"] == {seat: [seat, (seat, "mine")] for seat in machine.seats}
        assert final["asked by"] == {seat: seat for seat in machine.seats}
    else:
        assert final["lines"][0] is final["asked by"] is None
        assert sorted(final["lines"][1:]) == [(seat, "mine") for seat in machine.seats]
