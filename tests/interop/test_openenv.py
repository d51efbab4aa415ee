"""OpenEnv both ways: our server with its real client, and `foreign/OpenEnv-v0` with servers, ours and a stranger's."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import lookup_world
import pytest
from commands import run

import palaestra
from palaestra.agents.agent import Agent
from palaestra.agents.play import play
from palaestra.agents.policies.scripted import ScriptedPolicy
from palaestra.episode import Ending, Start
from palaestra.errors import UsageError

START_SECONDS = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, is_running):
    until = time.monotonic() + START_SECONDS
    while is_running() and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    raise AssertionError("the server did not start")


@contextlib.contextmanager
def served(env_id):
    port = free_port()
    command = [sys.executable, "-m", "palaestra.interop.openenv_server", env_id, "--port", str(port)]
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))})
    try:
        yield wait_for(port, lambda: process.poll() is None), process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def lookups():
    with served(f"lookup_served:{lookup_world.ENV_ID}") as (address, _):
        yield address


@pytest.fixture(scope="module")
def sums():
    with served("palaestra/Calculator-v0") as (address, _):
        yield address


def turn(texts):
    answer, arguments = lookup_world.turn(texts)
    call = f'<tool_call>{{"name": "look_up", "arguments": {arguments}}}</tool_call>'
    return answer if arguments is None else call


def played(address, starts, slots=8):
    arena = palaestra.arena("foreign/OpenEnv-v0", slots, address=address, hears="text")
    try:
        rule = lambda messages, rng: turn([message["content"] for message in messages])  # noqa: E731
        return list(play(Agent(ScriptedPolicy(rule)), arena, iter(starts)))
    finally:
        arena.close()


def test_the_client_of_openenv_plays_and_a_broken_episode_has_no_reward(lookups):
    from openenv.core.generic_client import GenericEnvClient

    outcomes = set()
    with GenericEnvClient(lookups).sync() as client:
        for task in range(12):
            opening = client.reset(seed=1, task=task).observation
            assert opening["tools"][0]["function"]["name"] == "look_up"
            texts, done = [opening["text"]], False
            while not done:
                result = client.step({"text": turn(texts)})
                texts, done = [*texts, result.observation["text"]], result.done
            gone = lookup_world.is_gone(lookup_world.number_of(opening["text"]))
            assert result.reward == (None if gone else 1.0)
            outcomes.add((result.observation["ending"], result.observation["success"]))
    assert outcomes == {("answered", 1.0), ("broken", None)}


def test_its_episodes_are_played_here_and_an_end_without_reward_is_broken(lookups):
    episodes = played(lookups, [Start(task, 0) for task in range(24)])
    assert len(episodes) == 24
    for episode in episodes:
        gone = lookup_world.is_gone(lookup_world.number_of(episode.attempt.messages[0]["content"]))
        assert (episode.ending, episode.reward) == ((Ending.BROKEN, None) if gone else (Ending.ANSWERED, 1.0))
    assert {episode.ending for episode in episodes} == {Ending.ANSWERED, Ending.BROKEN}


def test_a_server_that_dies_breaks_its_episodes():
    with served("palaestra/Calculator-v0") as (address, process):
        arena = palaestra.arena("foreign/OpenEnv-v0", 2, address=address, hears="text")

        def rule(messages, rng):
            process.kill()
            process.wait()
            return "1"

        episodes = list(play(Agent(ScriptedPolicy(rule)), arena, iter([Start(0, 0), Start(1, 0)])))
        arena.close()
    assert [(episode.ending, episode.reward) for episode in episodes] == [(Ending.BROKEN, None)] * 2


def test_it_is_checked_evaluated_and_trained_on(sums, model, train_a_step, capsys):
    given = ["--env-options", f"address={sums}", "hears=text"]
    status, out, err = run(capsys, "check", "foreign/OpenEnv-v0", *given)
    assert status == 0, out + err
    limits = ["--max-turn-tokens", "8", "--max-episode-tokens", "700", "--tasks", "4"]
    status, out, err = run(capsys, "eval", "foreign/OpenEnv-v0", "--model", model, "--device", "cpu", *limits, *given)
    assert status == 0, out + err
    records = train_a_step("foreign/OpenEnv-v0", address=sums, hears="text")
    assert records
    assert all(record.episode.rows and record.episode.ending is not Ending.BROKEN for record in records)


def test_a_strangers_server_is_asked_for_its_only_field_of_text():
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Message(Action):
        message: str
        volume: int = 1

    class Echo(Observation):
        echoed: str = ""

    class EchoEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        state = State(episode_id="", step_count=0)

        def reset(self, seed=None, episode_id=None, **options):
            return Echo(echoed=f"say {seed}")

        def step(self, action, timeout_s=None, **options):
            return Echo(echoed=action.message, done=True, reward=float(action.message == "say 2"))

    port = free_port()
    app = create_fastapi_app(EchoEnvironment, Message, Echo, max_concurrent_envs=8)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        address = wait_for(port, thread.is_alive)
        arena = palaestra.arena("foreign/OpenEnv-v0", 2, address=address)
        repeat = Agent(ScriptedPolicy(lambda messages, rng: messages[-1]["content"]))
        episodes = {episode.start.task: episode for episode in play(repeat, arena, iter([Start(0, 0), Start(1, 0)]))}
        arena.close()
    finally:
        server.should_exit = True
        thread.join()
    assert {task: episode.parts["success"] for task, episode in episodes.items()} == {0: 0.0, 1: 1.0}


def test_the_address_is_required():
    with pytest.raises(UsageError, match="needs the option address"):
        palaestra.arena("foreign/OpenEnv-v0", 1)
