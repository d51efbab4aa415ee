"""`check` finds what an episode leaves behind for the next one, by name, and what keeps all others waiting."""

import gc
import logging
import re
import threading

import flawed
import pytest
from checked import failed, findings

from palaestra.envs.checks import holdups
from palaestra.envs.running import holdups as holding
from palaestra.envs.running.holdups import blocking_line

HELD_UP = "others are never held up"
LEFT = {
    flawed.MadeInInit: "self.seen has changed, and lives on: it was made in __init__, which runs once",
    flawed.InToolkit: "Counter.calls has changed, and lives on: set it in Counter.start",
    flawed.OnClass: "OnClass.seen has changed, and lives on: it belongs to the class",
    flawed.OnModule: "flawed.numbers has changed, and lives on: it is a global",
    flawed.Moody: "Moody.own has changed",
    flawed.ByItsTool: "copy it first: Task.data['seen'] is [] and [1]",
    flawed.ByItsReward: "copy it first: Task.data is {} and {'judged': 0}",
}


@pytest.fixture(autouse=True)
def _let_go():
    flawed.free.clear()
    gc.collect()
    yield
    flawed.free.set()
    for thread in threading.enumerate():
        if thread.name == "palaestra-watched":
            thread.join(60)


@pytest.mark.parametrize("cls", LEFT)
def test_what_an_episode_leaves_behind_is_found_by_name_without_a_demonstrator(cls):
    said = failed(cls, "determinism")["determinism"]
    assert LEFT[cls] in said
    assert ("is played differently after another episode" in said) is not ("copy it first" in said)
    if cls is flawed.Moody:
        assert re.search(r"the answer\['parts'\]\['success'\] is 0\.\d+ and 0\.\d+;", said)


def test_what_changes_nothing_is_no_failure_and_a_shared_cache_is_said():
    for cls in (flawed.Forgetting, flawed.OnDemand, flawed.StartsBesideOthers):
        (found,) = findings(cls, "determinism")
        assert (found.passed, found.message) == (True, "")
    (noted,) = findings(flawed.Caching, "determinism")
    assert noted.passed
    assert "self.seen, which __init__ made, is changed by an episode and shared by all" in noted.message


# What keeps others waiting.


@pytest.mark.parametrize(
    ("cls", "said"),
    [(flawed.Fetching, "the async tool 'fetch' blocked the event loop"),
     (flawed.BlockingJudge, "the async reward blocked the event loop"),
     (flawed.SlowReward, "the plain reward took"),
     (flawed.SlowToStart, "the start of its toolkits took")],
)  # fmt: skip
def test_what_keeps_the_others_waiting_is_found(cls, said, monkeypatch):
    monkeypatch.setattr(holdups, "IN_PLACE_SECONDS", 0.05)
    assert said in failed(cls, HELD_UP)[HELD_UP]


def test_a_plain_tool_that_waits_is_found_with_the_arguments_of_the_demonstrator():
    said = failed(flawed.Napping, HELD_UP, demonstrator=flawed.asks)[HELD_UP]
    assert re.search(r"the plain tool 'ask' took 0\.4 s for \{'text': '\d+'\}, and every other episode waits", said)
    assert "@tool(blocking=True)" in said


def test_what_waits_beside_the_others_is_no_finding(monkeypatch):
    monkeypatch.setattr(holdups, "_TRIES", 50)  # One that takes long waits, on the busiest machine.
    for cls in (flawed.Awaiting, flawed.NappingBeside, flawed.StartsBesideOthers):
        assert failed(cls, HELD_UP) == {}


def test_a_plain_tool_that_is_slow_in_use_is_told_once(caplog):
    holding._slow.clear()
    with caplog.at_level(logging.WARNING, logger="palaestra.envs"):
        for _ in range(4):
            holding.note_slow("add", "Napping", 0.4)
    (told,) = caplog.messages
    assert told.startswith(
        "the plain tool 'add' of Napping took 0.4 s, and every other episode waits for it; write @tool("
    )


def test_the_line_that_blocks_is_named_and_nothing_else_is():
    line = flawed.Fetching.wait.__code__.co_firstlineno + 1
    assert f"{flawed.__file__}, line {line}" in failed(flawed.Fetching, HELD_UP)[HELD_UP]

    async def elsewhere():
        flawed.free.wait(30)

    async def forever():
        import asyncio

        await asyncio.Event().wait()

    assert blocking_line(elsewhere(), "another.py", 0.5) == ""
    assert blocking_line(elsewhere(), __file__, 30.0) != ""
    assert blocking_line(forever(), __file__, 0.2) == ""
