"""ToolEnv: one step at a time, whatever the agent says."""

import json
import logging
import pickle
import re
import tracemalloc

import gymnasium
import pytest
from driven import refused
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics

import palaestra
from palaestra import Ending, EnvironmentDefect, Start, Status, Task, UsageError
from palaestra.envs import TextEnv, TextSpace, ToolEnv
from palaestra.envs.arena.driving import settle


def make(env_id="test/Kitchen-v0", **kwargs):
    return gymnasium.make(env_id, **kwargs).unwrapped


def fresh(env_id="test/Kitchen-v0"):
    env = make(env_id)
    return env, env.reset(seed=1, options={"task": 0})[1]


def begun(env, start):
    """An episode of that Start, its first event."""
    return settle(env.machine, env.machine.open({None: start}))[None]


def calls(env, *items):
    return "".join(env.call(name, **arguments) for name, arguments in items)


def contents(info):
    return [message["content"] for message in info["messages"]]


NEEDS_CHROMIUM = "palaestra/MiniWoB-v0"
"""tests/chromium/test_miniwob.py checks it."""


@pytest.mark.parametrize(
    "env_id", [*sorted({*palaestra.registered()} - {NEEDS_CHROMIUM}), "test/Kitchen-v0", "test/Inline-v0"]
)
def test_f54_gymnasium_contract(env_id):
    check_env(gymnasium.make(env_id).unwrapped)
    env = RecordEpisodeStatistics(gymnasium.make(env_id))
    _, info = env.reset(seed=1)
    assert {type(info[key]) for key in ("tools", "system", "ending")} == {str}
    turns = min(3, env.unwrapped.machine.spec.author.max_turns)
    has_user = env.unwrapped.machine.spec.has_user
    for turn, action in enumerate((*[env.unwrapped.call("nobody")] * (turns - 1), "I give up."), 1):
        _, _, terminated, truncated, info = env.step(action)
        assert (info["turn"], terminated or truncated) == (turn, turn == turns and not has_user)
    while has_user and not (terminated or truncated):  # Who is given up on may object.
        turns += 1
        *_, terminated, truncated, info = env.step("I give up.")
    assert info["episode"]["l"] == turns
    assert json.loads(gymnasium.spec(env_id).to_json())["id"] == env_id
    env.close()


def test_opening_messages_are_system_prompt_prefix():
    env = make()
    prefix = ({"role": "assistant", "content": "earlier"},)
    event = begun(env, Start(task=0, seed=1, prefix=prefix))
    assert [message["role"] for message in event.messages] == ["system", "user", "assistant"]
    assert [tool["function"]["name"] for tool in event.tools][-1] == "note"
    refused("one seat", begun, env, Start(task=0, seed=1, seat="white"))
    refused("task 99999999999", begun, env, Start(task=99999999999, seed=1))


def test_f16_a_turn_without_a_call_is_the_answer():
    env, _ = fresh()
    _, reward, terminated, truncated, info = env.step("<think>hm</think>\n yes ")
    assert (terminated, truncated, info["ending"]) == (True, False, "answered")
    assert (reward, info["parts"]) == (1.0 - 0.25, {"success": 1.0, "brevity": -0.5})
    assert (info["attempt"].answer, info["attempt"].messages[-1]["content"]) == ("yes", "<think>hm</think>\n yes ")
    refused("has ended", env.step, "again")
    env.reset()
    refused("expected str", env.step, 3)


def test_a_turn_is_answered_in_the_order_of_its_calls_faults_and_those_beyond_the_cap_too():
    env, _ = fresh()
    *_, info = env.step("<tool_call>{</tool_call>" + calls(
        env, ("nap", {"seconds": 0.1, "name": "a"}), ("wait", {"seconds": 0.05, "name": "b"}), ("note", {"line": "x"}),
        *[("add", {"a": 1})] * 3))  # fmt: skip
    fault, *said = contents(info)
    assert "malformed call at character 12" in fault
    assert said == ["a", "b", "1 kept", "Error: only 4 calls are run in a turn; the rest were not"]
    assert [message["name"] for message in info["messages"]][1:4] == ["nap", "wait", "note"]
    assert (info["turn"], info["ending"]) == (1, "")


@pytest.mark.parametrize(
    ("name", "arguments", "said", "status"),
    [("ad", {}, "the tools are: add", Status.BAD_CALL), ("add", {}, "a: Field required", Status.BAD_CALL),
     ("refuse", {}, "Error: no", Status.TOOL_ERROR), ("crash", {}, "Error: ZeroDivisionError: ", Status.TOOL_ERROR),
     ("leave", {}, "Error: SystemExit: 3", Status.TOOL_ERROR), ("add", {"a": "4"}, "5", Status.OK)],
)  # fmt: skip
def test_three_roads_for_failures(name, arguments, said, status, caplog):
    env, _ = fresh()
    with caplog.at_level(logging.CRITICAL, "palaestra.envs"):
        info = env.step(env.call(name, **arguments))[-1]
    assert contents(info)[0].startswith(said) or said in contents(info)[0]
    assert "Traceback" not in contents(info)[0]
    assert env.step("no")[-1]["attempt"].calls[0].status == status


def test_f17_long_results_keep_head_tail_and_true_size_and_no_surrogates():
    env, _ = fresh()
    (text,) = contents(env.step(env.call("shout", size=1000))[-1])
    assert len(text) <= 200
    assert text.startswith("aaa")
    assert text.endswith("zzz")
    left_out = int(re.search(r"\[\.\.\. (\d+) characters left out", text)[1])
    assert left_out + len(re.sub(r"\n\[\.\.\..*\]\n", "", text)) == 1001
    (text,) = contents(env.step(env.call("shout", size=20))[-1])
    assert text == "a" * 10 + "?" + "z" * 10


def test_f16_turns_run_out():
    env, _ = fresh("test/Inline-v0")
    for truncated in (False, False, True):
        observation, reward, *over, info = env.step(env.call("add", a=1))
        assert (observation, reward, over) == ("2", 0.0, [False, truncated])
    assert (info["ending"], info["attempt"].answer) == ("turn_limit", None)


def test_a_cut_off_sentence_is_never_the_answer(worlds):
    env, _ = fresh()
    _, _, terminated, truncated, info = env.finish(Ending.LENGTH_LIMIT, "yes")
    assert (terminated, truncated, info["attempt"].answer, info["parts"]["success"]) == (False, True, None, 0.0)
    assert info["attempt"].messages[-1] == {"role": "assistant", "content": "yes"}
    assert worlds.opened == ["start", "close"]
    with pytest.raises(UsageError):
        env.finish(Ending.LENGTH_LIMIT)
    begun(env, Start(0, 0))
    refused("ANSWERED", env.finish, Ending.ANSWERED, "yes")
    assert env.finish(Ending.BROKEN)[-1]["ending"] == "broken"


@pytest.mark.parametrize("name", ["unplugged", "hang", "doze"])
def test_broken_and_deadlines_end_without_reward(name):
    env, _ = fresh()
    _, reward, terminated, truncated, info = env.step(env.call(name))
    assert (reward, terminated, truncated, info["ending"]) == (0.0, False, True, "broken")
    assert info["parts"] == {"success": 0.0, "brevity": 0.0}
    env.reset(seed=0)
    assert contents(env.step(env.call("note", line="x"))[-1]) == ["1 kept"]
    assert env.step("yes")[2]


@pytest.mark.parametrize(
    ("value", "said"),
    [({"succes": 1.0}, "not declared"), ({"brevity": 0.0}, "without 'success'"), (2.0, "declared range"),
     (float("nan"), "finite number"), ("1", "expected a number"), (None, "expected a number")],
)  # fmt: skip
def test_rewards_are_checked(worlds, monkeypatch, value, said):
    monkeypatch.setattr(worlds.Kitchen, "reward", lambda self, attempt: value)
    env, _ = fresh()
    refused(said, env.step, "x", error=EnvironmentDefect)


def test_a_fixed_list_is_checked_and_named_once_and_left_as_it_was():
    written = [Task("a"), Task("b", id="named")]

    class Fixed(ToolEnv):
        def task_set(self, split):
            return written

        def reward(self, attempt):
            return True

    env = TextEnv(Fixed("eval"))
    env.reset(options={"task": 1})
    first = env.problem
    env.reset(options={"task": 1})
    assert first is env.problem is env.tasks[1]
    assert env.step("x")[1] == 1.0
    assert {env.reset(seed=seed)[0] for seed in range(8)} == {"a", "b"}
    assert [task.id for task in env.tasks] == ["eval/0", "named"]
    assert [task.id for task in written] == ["", "named"]
    written.append("no Task")
    with pytest.raises(EnvironmentDefect, match="a task is 'no Task'"):
        TextEnv(Fixed()).reset(options={"task": 0})


def test_the_task_decides_the_problem_and_the_seed_only_the_noise():
    env = make()
    first, second = (begun(env, Start(task=5, seed=seed)).messages for seed in (1, 2))
    assert first == second
    draws = []
    for seed in (1, 2, 1):
        begun(env, Start(task=5, seed=seed))
        draws.append(int(env.machine.state.play.rng.integers(10**9)))
    assert draws[0] == draws[2] != draws[1]


def test_an_info_is_a_copy_and_a_transcript_is_not_obeyed_by_a_terminal(capsys):
    env = make(render_mode="ansi")
    _, info = env.reset(seed=0)
    info["messages"][0]["content"] = "forged"
    assert env.step("\x1b[2Jyes")[-1]["attempt"].messages[0]["content"] == "Be brief."
    assert "assistant: \\x1b[2Jyes" in env.render()
    human = make(render_mode="human")
    human.reset(seed=0)
    human.step(human.call("add", a=1))
    assert "tool (add): 2" in capsys.readouterr().out


def test_the_space_holds_all_strings_and_an_idle_environment_is_small():
    space = TextSpace()
    assert [one in space for one in ("\ud800", space.sample(), 3)] == [True, True, False]
    [make("test/Inline-v0") for _ in range(3)]
    tracemalloc.start()
    kept = [make("test/Inline-v0", disable_env_checker=True) for _ in range(100)]
    size = tracemalloc.get_traced_memory()[0] / len(kept)
    tracemalloc.stop()
    assert size < 9000  # With Gymnasium's spec and its wrapper, a third of it.


@pytest.mark.parametrize("env_id", ["palaestra/TwoHop-v0", "palaestra/CodeMath-v0", "test/Inline-v0"])
def test_a_pickled_environment_goes_on_as_the_one_it_was_made_from(env_id):
    env = make(env_id)
    assert pickle.loads(pickle.dumps(env)).reset(seed=3)[0] == env.reset(seed=3)[0]
    twin = pickle.loads(pickle.dumps(env))
    assert twin.attempt == env.attempt
    assert twin.step("a guess")[:4] == env.step("a guess")[:4]
    assert (twin.np_random.integers(10**9), twin.spec.id) == (env.np_random.integers(10**9), env_id)
