"""A turn without a call is said to the user: the reply is recorded, replayed and branched, in every way to play."""

import asyncio
import importlib
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from checked import failed
from driven import call, heard
from machine_worlds import done, led
from test_replay import recorded

import palaestra
from palaestra import Attempt, Broken, Ending, EnvironmentDefect, Start, Task
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs import Game, ProceduralTasks, ScriptedUser, TextEnv, ToolEnv, Toolkit, conversation, tool
from palaestra.envs.arena.driving import settle
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.core.machine import Machine
from palaestra.envs.records.by_hand import open_by_hand
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.record import from_line, to_line

sys.path.append(str(Path(__file__).parents[1] / "agents"))
families = importlib.import_module("families")
asked: list[str] = []
"""What users were asked, really and not in a replay."""
THOUGHT = "<think>\nI wonder.\n</think>\n\nWhich one?"


class Shelf(Toolkit):
    def start(self, task, rng):
        self.sold = []

    @tool
    def sell(self, thing: str) -> str:
        """Sell a thing."""
        self.sold.append(thing)
        return "sold"

    def final(self):
        return {"sold": self.sold}

    def snapshot(self):
        return self.sold

    def restore(self, state):
        self.sold = state


class Stall(ToolEnv):
    """A buyer who wants a thing, and says which when she is asked."""

    max_turns = 5
    toolkits = (Shelf,)

    def task_set(self, split):
        return ProceduralTasks(self.task, "stall", split)

    def task(self, rng):
        return Task(f"Hello, I am customer {rng.integers(10**6)}.", answer=str(rng.choice(["pen", "cup", "map"])))

    def user(self, attempt):
        asked.append(attempt.answer)
        self.patience = getattr(self, "patience", 2) - 1
        if any(one.name == "sell" for one in attempt.calls) or self.patience < 0:
            return None
        return f"The {attempt.task.answer}, please." if "?" in attempt.answer else "Well?"

    def reward(self, attempt):
        return float(attempt.final["sold"] == [attempt.task.answer])


class Distant(Stall):
    """She takes her time."""

    async def user(self, attempt):
        await asyncio.sleep(0)
        return Stall.user(self, attempt)


class Fair(Game):
    """Two sellers, each of whom may ask the visitor before replying to the round."""

    seats = ("ann_0", "bob_0")

    def task(self, rng):
        return Task(f"Visitor {rng.integers(10**6)} comes by.")

    def rounds(self, task, rng):
        first = yield dict.fromkeys(self.seats, task.prompt)
        second = yield {"ann_0": f"bob said {first['bob_0']}"}
        return {"ann_0": float(second["ann_0"] == "bye"), "bob_0": float(first["bob_0"] == "a pen")}

    async def user(self, attempt):
        asked.append(attempt.answer)
        return f"{attempt.seat}? A pen." if attempt.answer.endswith("?") else None


ENVS = {cls.__name__: f"test/{cls.__name__}-v0" for cls in (Stall, Distant)}
FAIR = "test/Fair_v0"


@pytest.fixture(autouse=True)
def _registered(worlds):
    asked.clear()
    for name, env_id in ENVS.items():
        palaestra.register(env_id, f"{__name__}:{name}", demonstrator=f"{__name__}:serve")
    palaestra.register_game(FAIR, f"{__name__}:Fair")


def serve(messages, rng, tool_rate=1.0):
    """Ask, sell what she says, and say goodbye."""
    last = messages[-1]
    if last["role"] == "user" and "please" not in last["content"]:
        return THOUGHT
    return "Goodbye." if last["role"] == "tool" else call("sell", thing=last["content"].split()[1].strip(","))


@pytest.mark.parametrize("kind", [Stall, Distant])
def test_a_turn_without_a_call_is_said_to_the_user_who_replies_or_ends_the_episode(kind):
    env = TextEnv(kind())
    env.reset(seed=1)
    thing = env.attempt.task.answer
    text, reward, terminated, truncated, info = env.step(THOUGHT)
    assert (text, reward, terminated or truncated) == (f"The {thing}, please.", 0.0, False)
    assert info["messages"] == ({"role": "user", "content": text},)
    assert asked == ["Which one?"], "she was told what the agent thinks"
    assert env.step(env.call("sell", thing=thing))[0] == "sold"
    _, reward, terminated, _, info = env.step("<think>Done?</think>Here you are.")
    assert (reward, terminated, info["attempt"].answer) == (1.0, True, "Here you are.")
    assert conversation(info["attempt"]) == [
        ("user", info["attempt"].task.prompt),
        ("assistant", "Which one?"),
        ("user", text),
        ("assistant", "Here you are."),
    ]


def test_replies_take_turns_and_without_a_last_word_the_turn_limit_is_reached():
    env = TextEnv(type("Endless", (Stall,), {"user": lambda self, attempt: "Go on."})())
    env.reset(seed=1)
    for turn in range(1, 6):
        text, _, terminated, truncated, info = env.step("Hm.")
        assert (text, info["turn"], terminated, truncated) == ("Go on.", turn, False, turn == 5)
    assert (info["ending"], info["attempt"].answer) == ("turn_limit", None)
    assert info["attempt"].messages[-1] == {"role": "user", "content": "Go on."}


def test_many_episodes_wait_for_their_users_at_once_and_are_the_same_as_alone(arena):
    together = arena(ENVS["Distant"], 16)
    assert not together.ordered
    episodes = list(play(Agent(ScriptedPolicy(serve)), together, (Start(number, number) for number in range(16))))
    assert {episode.reward for episode in episodes} == {1.0}
    alone = arena(ENVS["Stall"], 1)
    assert alone.ordered, "a user who only computes needs no thread"
    singly = play(Agent(ScriptedPolicy(serve)), alone, (Start(number, number) for number in range(16)))
    by_task = {episode.start.task: episode.attempt for episode in episodes}
    assert by_task == {episode.start.task: episode.attempt for episode in singly}


def test_a_user_who_is_late_or_gone_breaks_the_episode_and_one_who_speaks_nonsense_is_a_defect():
    machine = Machine(spec_of(Distant()))
    settle(machine, machine.open({None: Start(0, 1)}))
    pending = machine.act(None, "Hello?")
    assert [str(work.label) for work in pending.works] == ["user"]
    assert pending.works[0].conditions.seconds == 60.0
    (event,) = machine.resume(done(pending, late=["user"])).values()
    assert (event.ending, event.reward) == (Ending.BROKEN, None)
    assert "gave no result in 60 s" in event.fault
    for error in (Broken("the line is dead"), TimeoutError("30 s")):

        async def gone(self, attempt, error=error):
            raise error

        env = TextEnv(type("Gone", (Stall,), {"user": gone})())
        env.reset(seed=1)
        info = env.step("Hello?")[4]
        assert (info["ending"], str(error) in info["fault"]) == ("broken", True)
    for nonsense in ("", 7, ["text"]):
        env = TextEnv(type("Odd", (Stall,), {"user": lambda self, attempt, said=nonsense: said})())
        env.reset(seed=1)
        with pytest.raises(EnvironmentDefect, match="expected the user's text, or None"):
            env.step("Hello?")
    with pytest.raises(EnvironmentDefect, match="user is 'bob'"):
        type("Named", (Stall,), {"user": "bob"})


def test_an_episode_stopped_while_the_user_is_asked_ends_after_the_reply():
    machine = Machine(spec_of(Distant()))
    settle(machine, machine.open({None: Start(0, 1)}))
    pending = machine.act(None, "Which?")
    assert machine.stop(Ending.LENGTH_LIMIT) == {}
    (event,) = led(machine, machine.resume(done(pending))).values()
    assert (event.ending, event.attempt.answer) == (Ending.LENGTH_LIMIT, None)
    assert event.attempt.messages[-1]["role"] == "user"


@pytest.mark.parametrize("kind", [Stall, Distant])
def test_branches_take_the_user_with_them(kind):
    env = TextEnv(kind())
    env.reset(seed=1)
    env.step("Well now.")
    here = env.snapshot()
    (twin,) = env.fork(1)
    ends = [other.step("Hm.")[4]["ending"] for other in (env, twin) if other.step("Hm.")[2] is False]
    env.restore(here)
    assert [*ends, env.step("Hm.")[4]["ending"]] == ["answered", "answered", ""]
    twin.close()


@pytest.mark.parametrize(
    ("env_id", "turns", "stop"),
    [
        (ENVS["Stall"], [THOUGHT, call("sell", thing="cup"), "Bye."], None),
        (ENVS["Distant"], [THOUGHT, call("sell", thing="cup"), "Bye."], None),
        (ENVS["Distant"], ["Hm.", "Hm.", "Hm."], None),
        (ENVS["Distant"], [THOUGHT], Ending.LENGTH_LIMIT),
        (ENVS["Distant"], [THOUGHT], Ending.BROKEN),
        (FAIR, [("ann_0", "Ask?"), ("bob_0", "Ask?"), ("bob_0", "a pen"), ("ann_0", "hi"), ("ann_0", "bye")], None),
        (FAIR, [("ann_0", "hi"), ("bob_0", "a pen"), ("ann_0", "More?"), ("ann_0", "bye")], None),
    ],
)
def test_a_replay_asks_no_user_again_and_comes_out_identical(env_id, turns, stop):
    records = recorded(env_id, turns, ending=stop)
    assert asked
    if env_id == FAIR:
        assert {record.episode.reward for record in records} == {1.0}
    asked.clear()
    assert ReplayMachines().replay(records) is None
    assert asked == []


def test_an_episode_whose_user_failed_is_replayed_up_to_there(monkeypatch):
    async def gone(self, attempt):
        raise Broken("the line is dead")

    monkeypatch.setattr(Distant, "user", gone)
    records = recorded(ENVS["Distant"], [call("sell", thing="cup"), "Hello?"])
    assert records[0].episode.ending is Ending.BROKEN
    assert ReplayMachines().replay(records) is None


@pytest.mark.parametrize("kind", [Stall, Distant])
def test_by_hand_a_turn_is_taken_back_with_the_reply_to_it_and_a_record_is_taken_up(kind):
    hand = open_by_hand(ENVS[kind.__name__], {})
    hand.open(1, 3)
    hand.say("Hm.")
    assert hand.event.messages[-1]["content"] == "Well?"
    hand.say("Which?")
    hand.undo()
    assert hand.event.messages[-1]["content"] == "Well?"
    record = from_line(to_line(hand.records()[0]))
    assert ReplayMachines().replay([record]) is None
    asked.clear()
    hand.load([record])
    assert (asked, hand.event.messages[-1]["content"]) == ([], "Well?")
    hand.close()


@pytest.mark.parametrize(("family", "rows"), [("qwen3", 3), ("qwen2.5", 1)])
def test_rows_are_exact_where_a_template_strips_thinking_at_the_users_turn(arena, family, rows):
    """For training, for imitation, and for the audit."""
    from palaestra.agents.conversation import written_rows
    from palaestra.trainers.audit.tokens import text_findings

    chat = families.chat(family)
    slots = arena(type("Chatty", (Stall,), {"user": lambda self, attempt: "So?" if attempt.turns < 3 else None}), 1)
    agent = Agent(ScriptedPolicy(lambda messages, rng: THOUGHT), chat)
    (episode,) = play(agent, slots, [Start(0, 1)])
    assert (len(episode.rows), episode.ending) == (rows, Ending.ANSWERED)
    assert list(text_findings(episode, chat)) == []
    for row in episode.rows:
        spoken = chat.tokenizer.decode(row.ids[row.sampled].tolist())
        assert ("So?" in spoken, spoken.count("Which one?")) == (False, 3 // rows)
    again = written_rows(chat, episode.attempt.messages, episode.tools)
    for row, other in zip(episode.rows, again, strict=True):
        np.testing.assert_array_equal(row.ids, other.ids)
        np.testing.assert_array_equal(row.sampled, other.sampled)


def test_check_passes_an_environment_with_a_user_and_its_cheats_talk_to_the_end():
    assert failed(Stall, demonstrator=serve) == {}


class Generous(Stall):
    """Pays whoever goes on talking."""

    def user(self, attempt):
        return "Really?"

    def reward(self, attempt):
        return float(attempt.turns == self.max_turns)


def test_check_finds_a_reward_for_asking_for_ever():
    assert "cheats fail" in failed(Generous)


def test_a_scripted_user_says_one_thing_after_another_and_hangs_up():
    per_task = ScriptedUser(lambda task: [f"I am {task.prompt}."])
    attempt = Attempt(Task("Ada"), ({"role": "user", "content": "Ada"},), "Who?", (), 1)
    later = Attempt(Task("Ada"), (*attempt.messages, {"role": "user", "content": "I am Ada."}), "Why?", (), 2)
    assert [per_task(attempt), per_task(later)] == ["I am Ada.", None]
    env = TextEnv(type("Fixed", (Stall,), {"user": ScriptedUser(["One.", "Two."])})())
    env.reset(seed=0)
    assert [env.step("And?")[0] for _ in range(3)] == ["One.", "Two.", ""]


def test_a_slow_users_slot_does_not_hold_up_the_others(arena):
    gate = threading.Event()

    class Slow(Stall):
        async def user(self, attempt):
            if attempt.task.prompt == slots._author.task(0).prompt:
                await asyncio.to_thread(gate.wait, 60)
            return "Yes?"

    slots = arena(Slow, 3)
    for slot in range(3):
        slots.begin(slot, Start(slot, slot))
    heard(slots, 3)
    slots.send(dict.fromkeys(range(3), "Hello."))
    assert heard(slots, 2).keys() == {1, 2}
    gate.set()
    assert heard(slots, 1).keys() == {0}
