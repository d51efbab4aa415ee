"""A harness is an environment: each way in which somebody's agent loop can go on or fail, and what comes of it."""

import asyncio
import json
import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gymnasium
import harness_worlds
import pytest

import palaestra
from palaestra import Ending, EnvironmentDefect, Episode, Start, UsageError
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs import Harness, Model, ToolVectorEnv, tool
from palaestra.envs.harness.wire import Refused, read, turn_request
from palaestra.envs.harness.world import World
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.envs.suite.two_hop import demonstrate
from palaestra.record import Record, from_line, to_line


@pytest.fixture(autouse=True)
def thread_hold():
    harness_worlds.hold.clear()
    yield
    harness_worlds.hold.set()


def episodes(author, count=1, said="yes", slots=None, **how):
    """Play episodes of a harness with an agent that always says the same, or what a function of the messages says."""
    rule = said if callable(said) else lambda messages, rng: said
    arena = ToolVectorEnv(author, slots or count)
    with closing(arena):
        return list(play(Agent(ScriptedPolicy(rule)), arena, [Start(n, n) for n in range(count)], **how))


@pytest.mark.parametrize(
    ("name", "ending", "fault", "turns"),
    [
        ("Plain", Ending.ANSWERED, "", 1),
        ("Threads", Ending.ANSWERED, "", 1),
        ("Nothing", Ending.TURN_LIMIT, "", 1),
        ("Silent", Ending.BROKEN, "made with the base_url", 0),
        ("FallsAtOnce", Ending.BROKEN, "ValueError: no route", 0),
        ("FallsLater", Ending.TURN_LIMIT, "", 1),
        ("Unplugged", Ending.BROKEN, "the database is gone", 1),
        ("Hangs", Ending.BROKEN, "neither asked nor returned in 3 s", 1),
        ("HangsInAThread", Ending.BROKEN, "neither asked nor returned in 0.4 s", 0),
        ("Floods", Ending.TURN_LIMIT, "", 6),
        ("HangsUp", Ending.ANSWERED, "", 1),
        ("Choices", Ending.ANSWERED, "", 3),
        ("Streams", Ending.ANSWERED, "", 1),
    ],
)
def test_however_a_harness_ends_its_episode_does(name, ending, fault, turns, monkeypatch):
    for event in (harness_worlds.HangsUp.asked, harness_worlds.HangsUp.deserted, harness_worlds.HangsUp.go):
        event.clear()
    ask, desert = World.ask, World.desert
    monkeypatch.setattr(World, "ask", lambda *given: (ask(*given), harness_worlds.HangsUp.asked.set())[0])
    monkeypatch.setattr(World, "desert", lambda *given: (desert(*given), harness_worlds.HangsUp.deserted.set()))

    def say(messages, rng):
        assert name != "HangsUp" or harness_worlds.HangsUp.go.wait(30)
        return "yes"

    (episode,) = episodes(getattr(harness_worlds, name)(), said=say)
    assert (episode.ending, episode.attempt.turns) == (ending, turns)
    assert fault in episode.fault
    raised = "ValueError: no such tool (harness_worlds.py, line " if name == "FallsLater" else ""
    assert episode.attempt.raised.startswith(raised) and bool(raised) == bool(episode.attempt.raised)
    assert (episode.reward is None) == (ending is Ending.BROKEN)
    if ending is Ending.ANSWERED:
        assert episode.attempt.answer == ("y/y/y" if name == "Choices" else "yes")
        assert episode.reward == (name != "Choices")
    if name == "Hangs":
        wait_until(lambda: len(harness_worlds.Hangs.cancelled) == 2, "both tries are cancelled")


def wait_until(holds, what, seconds=30):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def test_who_asks_after_the_end_hears_that_the_episode_is_over():
    arena = ToolVectorEnv(harness_worlds.GoesOn(), 1)
    with closing(arena):
        arena.begin(0, Start(0, 0))
        arena.recv(1)
        arena.send({0: "yes"})
        (event,) = arena.recv(1)
        assert event.ending is Ending.ANSWERED
        wait_until(lambda: harness_worlds.GoesOn.met, "it hears")
    assert harness_worlds.GoesOn.met == [(410, "episode_over")]


def test_a_cut_turn_ends_the_episode_and_its_harness():
    class Waits(harness_worlds.Hangs):
        deadlines = {"run": 60.0}  # noqa: RUF012

    arena = ToolVectorEnv(Waits(), 1)
    with closing(arena):
        arena.begin(0, Start(0, 0))
        (event,) = arena.recv(1)
        arena.finish(0, Ending.LENGTH_LIMIT, "ye")
        (event,) = arena.recv(1)
    assert (event.ending, event.attempt.turns, event.attempt.answer) == (Ending.LENGTH_LIMIT, 1, None)
    assert [m["content"] for m in event.attempt.messages] == [event.attempt.task.prompt, "ye"]


def test_episodes_that_are_dropped_at_any_moment_leave_no_harness_behind():
    begun, ended = [], []

    class Stays(harness_worlds.Plain):
        async def run(self, task, model):
            begun.append(task.id)
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(task.id)

    arena = ToolVectorEnv(Stays(), 4)
    with closing(arena):
        for number in range(200):
            arena.begin(number % 4, Start(number, number))
            if number % 7 == 0:
                time.sleep(0.002)
        wait_until(lambda: len(begun) >= 4, "the last ones run")
    wait_until(lambda: len(begun) == len(ended), "none is left")


def test_a_helper_in_between_has_a_dialogue_and_tools_of_its_own():
    (episode,) = episodes(harness_worlds.Team(), said=lambda messages, rng: f"after {len(messages)}")
    dialogues = episode.dialogues
    told = [[m["content"] for m in messages] for messages, _ in dialogues]
    prompt = episode.attempt.task.prompt
    assert told == [
        ["help 0", "after 1"],
        ["help 1", "after 1"],
        [prompt, "after 1", "after 1", "after 3", "after 1", "after 5"],
    ]
    assert [tools[0]["function"]["name"] for _, tools in dialogues] == ["look", "look", "delegate"]
    assert [opening.begin for opening in episode.attempt.dialogues] == [4, 0, 2], "in the order they were opened"
    assert episode.tools[0]["function"]["name"] == "delegate"


def command(tmp_path, code, **more):
    """A harness that is a program."""
    program = tmp_path / "agent.py"
    program.write_text(code)
    (tmp_path / "ask.py").write_text(ASK)
    return type("Program", (harness_worlds.Plain,), {"command": (sys.executable, str(program)), **more})()


ASK = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
def ask(content):
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return json.load(opener.open(request))["choices"][0]["message"]["content"]
"""


def test_a_command_is_a_harness(tmp_path):
    (episode,) = episodes(command(tmp_path, "from ask import *\nprint('thinking')\nprint(ask(task['prompt']))"))
    assert (episode.ending, episode.reward) == (Ending.ANSWERED, 1.0)
    (episode,) = episodes(command(tmp_path, "import sys\nprint('gone', file=sys.stderr)\nsys.exit(3)"))
    assert episode.ending is Ending.BROKEN
    assert "it ended with status 3" in episode.fault
    assert "gone" in episode.fault


def test_a_command_that_hangs_is_killed_with_all_it_started(tmp_path):
    code = f"""
from ask import *
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path)!r} + "/pids", "a").write(f"{{os.getpid()}} {{child.pid}} ")
ask(task["prompt"])
time.sleep(600)
"""
    arena = ToolVectorEnv(command(tmp_path, code), 1)
    with closing(arena):
        arena.begin(0, Start(0, 0))
        arena.recv(1)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 2
        assert all(map(runs, pids))
        arena.finish(0, Ending.LENGTH_LIMIT)
        wait_until(lambda: not any(map(runs, pids)), "none of its processes is left")


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def misfits(author, count, slots):
    """Play harnesses of which a fifth misbehaves."""
    author.closed.clear()
    played = episodes(author, count, slots=slots)
    assert sorted(episode.start.task for episode in played) == list(range(count)), "no slot is lost"
    for episode in played:
        number = episode.start.task
        way = number // 5 % 4 if number % 5 == 0 else None
        expected = {None: "answered", 0: "turn_limit", 1: "broken", 2: "turn_limit", 3: "answered"}[way]
        assert episode.ending == expected, (number, episode.fault)
    tries = count + sum(number % 20 == 5 for number in range(count))  # A broken episode is tried twice.
    wait_until(lambda: len(author.closed) == tries, "every harness has ended")


def test_of_64_harnesses_a_fifth_misbehaves_and_no_slot_is_lost():
    before = len(os.listdir("/proc/self/fd"))
    misfits(harness_worlds.Misfits(), 64, 16)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 8, "no connection is left")


@pytest.mark.prove
def test_of_a_thousand_harnesses_a_fifth_misbehaves_and_none_is_stuck():
    patient = type("Patient", (harness_worlds.Misfits,), {"deadlines": {"run": 8.0}})
    began = time.monotonic()
    misfits(patient(), 1000, 128)
    assert time.monotonic() - began < 60


BODY = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "owner", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"functions": [{"name": "x"}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"stream_options": 3}, "stream_options"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_followed_is_refused_by_its_parameter(more, param):
    with pytest.raises(Refused) as refused:
        turn_request(read(json.dumps(BODY | more).encode()))
    assert (refused.value.status, refused.value.body["param"]) == (400, param)


def test_the_api_answers_for_its_models_and_for_wrong_paths():
    met = []

    class Looks(harness_worlds.Plain):
        async def play(self, task, client):
            for how in ({"route": "/models", "method": "GET"}, {"route": "/completions"}):
                status, body = await client.raw({}, **how)
                met.append((status, json.loads(body)))
            status, body = await client.raw(b"{nonsense")
            met.append((status, json.loads(body)))
            stranger = harness_worlds.Client(Model(client.model.base_url.replace("/v1", "x/v1"), ""))
            met.append(await stranger.raw(BODY))
            stranger.close()
            return await super().play(task, client)

    (episode,) = episodes(Looks())
    assert episode.reward == 1.0
    assert [status for status, _ in met] == [200, 404, 400, 404]
    assert met[0][1]["data"][0]["id"] == "palaestra"
    assert "/v1/chat/completions" in met[1][1]["error"]["message"]


def test_wishes_are_limits_and_a_temperature_that_evaluation_obeys():
    class Wishes(harness_worlds.Plain):
        async def play(self, task, client):
            return (await client.ask([{"role": "user", "content": "x"}], max_tokens=7, temperature=0.25))["content"]

    class Listens(ScriptedPolicy):
        def turn(self, request):
            heard.append((request.max_tokens, request.temperature))
            return super().turn(request)

    for obey, sampled, expected in ((True, 1.0, 0.25), (False, 1.0, 1.0), (True, 0.0, 0.0)):
        heard = []
        arena = ToolVectorEnv(Wishes(), 1)
        with closing(arena):
            agent = Agent(Listens(lambda messages, rng: "yes"))
            list(play(agent, arena, [Start(0, 0)], temperature=sampled, obey_temperature=obey))
        assert heard == [(7, expected)]


def test_what_a_framework_trims_or_spells_anew_is_the_same_dialogue_and_a_changed_letter_is_not():
    class Respells(harness_worlds.Plain):
        change = ""

        async def play(self, task, client):
            messages = [{"role": "user", "content": task.prompt}]
            said = await client.ask(messages, tools=[harness_worlds.schema("look")])
            (call,) = said["tool_calls"]
            call["function"]["arguments"] = '{ "b":  2,\n"a": 1 }'
            content = [{"type": "text", "text": f"  {said['content']}\n"}]
            messages[0]["content"] += self.change
            messages += [{"role": "assistant", "content": content, "tool_calls": [call]}]
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "seen"}]
            return (await client.ask(messages, tools=[harness_worlds.schema("look")]))["content"]

    def say(messages, rng):
        asked = 'I look\n<tool_call>{"name": "look", "arguments": {"a": 1, "b": 2}}</tool_call>'
        return "yes" if messages[-1]["role"] == "tool" else f"<think>hm</think>{asked}"

    (episode,) = episodes(Respells(), said=say)
    assert len(episode.dialogues) == 1
    assert [m.get("name") for m in episode.attempt.messages if m["role"] == "tool"] == ["look"]
    assert [(call.name, call.arguments, call.text) for call in episode.attempt.calls] == [
        ("look", {"a": 1, "b": 2}, "seen")
    ]
    Respells.change = " "
    (episode,) = episodes(Respells(), said=say)
    assert len(episode.dialogues) == 2
    (context,) = [m for m in episode.attempt.messages if m.get("weight") == 0]
    assert context["content"].startswith("<think>hm</think>I look"), "its own turn stands as it wrote it"


@pytest.mark.parametrize("stream", [False, True])
def test_the_responses_api_is_the_same_dialogue_and_the_same_calls(stream):
    schema = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}

    class Responds(harness_worlds.Plain):
        async def play(self, task, client):
            items = [{"role": "user", "content": task.prompt}]
            for _ in range(2):
                body = {"input": items, "instructions": "Be brief.", "tools": [schema], "stream": stream}
                status, answer = await client.raw(body, route="/responses")
                assert status == 200, answer
                if stream:
                    told = [event.split("data: ", 1)[1] for event in answer.decode().split("\n\n")[:-1]]
                    told = [json.loads(event) for event in told]
                    assert [event["sequence_number"] for event in told] == list(range(len(told)))
                    whole = told[-1]["response"]
                    assert [event["item"] for event in told if event["type"].endswith("item.done")] == whole["output"]
                    parts = "".join(event["delta"] for event in told if event["type"].endswith(".delta"))
                    assert parts == ("I{}" if len(whole["output"]) == 2 else "yes")
                    assert whole["usage"]["total_tokens"] > 0
                output = (whole if stream else json.loads(answer))["output"]
                items += output
                calls = [item for item in output if item["type"] == "function_call"]
                items += [{"type": "function_call_output", "call_id": c["call_id"], "output": "seen"} for c in calls]
            status, answer = await client.raw({"input": "x", "previous_response_id": "y"}, route="/responses")
            assert (status, json.loads(answer)["error"]["param"]) == (400, "previous_response_id")
            return output[-1]["content"][0]["text"]

    def say(messages, rng):
        return (
            "yes" if messages[-1]["role"] == "tool" else 'I\n<tool_call>{"name": "look", "arguments": {}}</tool_call>'
        )

    (episode,) = episodes(Responds(), said=say)
    assert (episode.reward, len(episode.dialogues), episode.attempt.turns) == (1.0, 1, 2)
    assert [(call.name, call.text) for call in episode.attempt.calls] == [("look", "seen")]
    assert episode.tools == (harness_worlds.schema("look"),)


def test_a_harness_is_stepped_by_hand_like_any_environment():
    palaestra.register("test/Hops-v0", "harness_worlds:Hops")
    env = gymnasium.make("test/Hops-v0").unwrapped
    observation, info = env.reset(seed=3, options={"task": 0})
    assert observation.endswith(env.problem.prompt)
    assert json.loads(info["tools"])[0]["function"]["name"] == "search"
    person = next(name for name in env.problem.data["facts"] if name.endswith("born"))
    observation, *_ = env.step(env.call("search", query=person))
    assert observation == env.problem.data["facts"][person]
    _, reward, terminated, *_ = env.step(f"Answer: {env.problem.answer}")
    assert (reward, terminated) == (1.0, True)
    env.reset()
    env.close()


def test_a_recorded_episode_is_replayed_by_running_its_harness_again():
    def say(messages, rng):
        return demonstrate(messages, rng) if "city" in str(messages) else f"after {len(messages)}"

    ids = {"Hops": {}, "Hops rewriting": {"rewrites": True}, "Team": {}, "Floods": {}, "Silent": {}, "FallsLater": {}}
    for name, options in ids.items():
        env_id = f"test/{name.replace(' ', '')}-v0"
        palaestra.register(env_id, f"harness_worlds:{name.split()[0]}")
        with closing(palaestra.arena(env_id, 3, **options)) as arena:
            played = list(play(Agent(ScriptedPolicy(say)), arena, [Start(n, n) for n in range(3)]))
        for episode in played:
            record = from_line(to_line(Record(env_id, episode, options)))
            assert ReplayMachines().replay([record]) is None
        changed = replace(record.episode.attempt, turns=9, answer="no")
        if record.episode.ending is not Ending.BROKEN:
            differs = ReplayMachines().replay([replace(record, episode=replace(record.episode, attempt=changed))])
            assert differs.where == "answer"


def test_an_episode_cut_in_a_harness_is_replayed_up_to_the_cut():
    palaestra.register("test/Team-v0", "harness_worlds:Team")
    with closing(palaestra.arena("test/Team-v0", 1)) as arena:
        arena.begin(0, Start(0, 0))
        for number in range(3):
            arena.recv(1)
            arena.send({0: f"turn {number}"})
        arena.recv(1)
        arena.finish(0, Ending.LENGTH_LIMIT, "tur")
        (event,) = arena.recv(1)
    assert event.attempt.messages[-1] == {"role": "assistant", "content": "tur"}
    episode = Episode(event.start, event.attempt, (), event.ending, event.reward, event.parts)
    assert ReplayMachines().replay([Record("test/Team-v0", episode)]) is None


def test_what_a_harness_cannot_have_is_said_where_it_is_declared_or_begun():
    with pytest.raises(EnvironmentDefect, match="offers tools in its own requests"):
        type("Armed", (Harness,), {"look": tool(_look)})
    arena = ToolVectorEnv(harness_worlds.Plain(), 1)
    with closing(arena), pytest.raises(UsageError, match="a start with a prefix"):
        arena.begin(0, replace(Start(0, 0), prefix=({"role": "user", "content": "again"},)))


def _look(self) -> str:
    """Look."""
    return ""


def test_a_run_that_blocks_holds_up_no_request_of_others():
    class Blocks(harness_worlds.Plain):
        deadlines = {"run": 3.0}  # noqa: RUF012

        async def run(self, task, model):
            if task.id.endswith("/0"):
                time.sleep(1.5)
                return await super().run(task, model)
            return await asyncio.to_thread(asyncio.run, super().run(task, model))

    played = episodes(Blocks(), 4)
    assert [episode.ending for episode in played] == [Ending.ANSWERED] * 4
