"""The proof that faults stop no run and blame no agent: a thousand episodes, a fifth of them struck."""

import threading
import time

import gymnasium
import pytest
import stormy_world as storm

import palaestra
from palaestra import Ending, Start
from palaestra.agents import Agent, ScriptedPolicy, play

pytestmark = pytest.mark.prove
ENV_ID = "test/Weather-v0"
EPISODES = 1000
SLOTS = 64
DEADLINE = 900.0


@pytest.fixture(autouse=True)
def weather():
    palaestra.register(ENV_ID, "stormy_world:Weather")
    storm.gate.clear()
    yield
    storm.gate.set()
    gymnasium.registry.pop(ENV_ID)


def played(share):
    """Play all episodes with this share of faults: the episodes, what was injected, seconds."""
    storm.share = share
    storm.injected.clear()
    arena = palaestra.arena(ENV_ID, SLOTS)
    watchdog = threading.Timer(DEADLINE, lambda: [print(stall) for stall in arena.stalls(0.0)])
    watchdog.start()
    episodes = []
    begun = time.monotonic()
    starts = [Start(index, index) for index in range(EPISODES)]
    for episode in play(Agent(ScriptedPolicy(storm.demonstrate)), arena, starts):
        episodes.append(episode)
        assert time.monotonic() - begun < DEADLINE, "the run is stuck"
    seconds = time.monotonic() - begun
    watchdog.cancel()
    arena.close()
    return episodes, dict(storm.injected), seconds


def test_a_fifth_of_faults_stops_no_run_and_is_never_scored_as_the_agents(caplog):
    before = set(threading.enumerate())
    calm, injected, calm_seconds = played(0.0)
    assert [episode.reward for episode in calm] == [1.0] * EPISODES
    assert not injected
    struck, injected, seconds = played(0.2)
    assert sorted(episode.start.task for episode in struck) == list(range(EPISODES))
    assert set(injected) == set(storm.KINDS)
    broken = [episode for episode in struck if episode.ending is Ending.BROKEN]
    whole = [episode for episode in struck if episode.ending is not Ending.BROKEN]
    print(
        f"\n{sum(injected.values())} faults {injected}: {len(broken)} episodes BROKEN after a second try, "
        f"{EPISODES / calm_seconds:.0f} episodes a second without faults, {EPISODES / seconds:.0f} with "
        f"({1 - calm_seconds / seconds:.0%} lost)"
    )
    assert {(episode.ending, episode.reward) for episode in whole} == {(Ending.ANSWERED, 1.0)}
    assert {(episode.reward, bool(episode.fault)) for episode in broken} == {(None, True)}
    # Each attempt is struck by itself, so an episode is BROKEN where two fatal faults follow each other: 1 in 80.
    assert len(broken) <= EPISODES * 0.05
    # A fault costs its slot the deadline and another try; everything else is the slots' alone.
    waits = sum(count for kind, count in injected.items() if "never" in kind or "hang" in kind) * storm.TIMEOUT
    assert seconds < 3 * (calm_seconds * 1.2 + waits / SLOTS) + 60
    storm.gate.set()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        left = [thread.name for thread in threading.enumerate() if thread not in before]
        if not left:
            break
        time.sleep(0.05)
    assert not left
