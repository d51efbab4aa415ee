"""Tools of MCP servers: theirs are offered as they are; a server's error is an observation, its death is BROKEN."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_server import FakeServer, Reply

from palaestra.envs import Task, TextEnv, ToolEnv
from palaestra.envs.tools.mcp import tools_from_mcp
from palaestra.envs.tools.mcp_session import McpServer
from palaestra.errors import UsageError

PLAIN = [sys.executable, "-S", str(Path(__file__).parent / "plain_mcp_server.py")]


class Table(ToolEnv):
    max_turns = 50
    max_result_chars = 100_000

    def __init__(self, *made):
        super().__init__()
        self.toolkits = made

    def task(self, rng):
        return Task(prompt=f"Case {rng.integers(10**6)}?", answer="yes")

    def reward(self, attempt):
        return 1.0


@contextmanager
def table(*command, **options):
    """An environment with the tools of a server, and what plays a call there: the call that came of it."""
    env = TextEnv(Table(tools_from_mcp([*command], **options)))
    env.reset(seed=0)

    def call(name, **arguments):
        info = env.step(env.call(name, **arguments))[4]
        call.info = info
        return (info["attempt"] or env.attempt).calls[-1]

    call.env = env
    try:
        yield call
    finally:
        env.close()


def test_a_server_of_the_older_protocol_plays_and_each_episode_has_its_own():
    with table(*PLAIN, prefix="x_", result_chars=1000) as call:
        schemas = {one["function"]["name"]: one["function"] for one in call.env.schemas}
        assert schemas["x_echo"]["parameters"]["properties"] == {"text": {"type": "string", "maxLength": 5}}
        assert (call("x_echo", text="hello").text, call("x_count").text, call("x_count").text) == ("hello", "2", "3")
        for wrong in ({}, {"text": 5}, {"text": "longer"}):
            found = call("x_echo", **wrong)
            assert (found.status, "wrong arguments for x_echo" in found.text) == ("bad_call", True)
        assert (call("x_fail").status, call("x_fail").text) == ("tool_error", "Error: no such thing")
        assert call("x_picture").text == "[image image/png, 300 bytes]\na cat"
        assert 900 < len(call("x_flood").text) <= 1000
        call.env.reset(seed=1)
        assert call("x_count").text == "1", "the episode before it left something behind"


def test_a_slow_call_is_an_observation_and_a_dead_server_breaks_the_episode_with_its_last_words():
    with table(*PLAIN, call_seconds=1.5) as call:
        found = call("hang")
        assert (found.status, "timed out" in found.text) == ("tool_error", True)
        call.env.reset(seed=1)
        found = call("die")
        assert (found.status, call.info["ending"]) == ("broken", "broken")
        assert "ended with status 3" in found.text
        assert "the disk is full" in found.text


def test_of_a_servers_tools_those_that_are_allowed_are_offered():
    with table(*PLAIN, allow=["echo"]) as call:
        assert [one["function"]["name"] for one in call.env.schemas] == ["echo"]
        assert "no tool is named 'die'" in call("die").text
        assert len(pickle.loads(pickle.dumps(call.env.author)).toolkits) == 1, "vectorized environments are pickled"


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        (["/no/such/program"], {}, "No such file"),
        ([sys.executable, "-S", "-c", "import sys; sys.exit('no licence')"], {}, "no licence"),
        (PLAIN, {"allow": ["ecko"]}, "is 'echo' meant"),
        ([], {"url": "http://127.0.0.1:9/mcp"}, "does not start"),
        ([], {}, "is a command or a url"),
        ([], {"url": "ftp://x/mcp"}, "expected one like"),
        (PLAIN, {"token_env": "NO_SUCH_TOKEN", "url": "x"}, "is a command or a url"),
        (PLAIN, {"start_seconds": 0}, "start_seconds is 0"),
        (PLAIN, {"setup": ("echo", {"text": "x"})}, "a function of the task"),
    ],
)
def test_settings_that_never_work_are_told_when_the_environment_opens(command, options, says):
    with pytest.raises(UsageError, match=says), table(*command, **options):
        pass


MUTE = "import sys, time; open({path!r}, 'a').write('x'); print('still loading', file=sys.stderr, flush=True); {then}"
UNLISTED = """
for line in sys.stdin:
    message = __import__('json').loads(line)
    if message.get('method') == 'initialize':
        about = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'serverInfo': {'name': 'x', 'version': '1'}}
        print(__import__('json').dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': about}), flush=True)
    elif message.get('method') != 'tools/list' and 'id' in message:
        error = {'code': -32601, 'message': 'no such method'}
        print(__import__('json').dumps({'jsonrpc': '2.0', 'id': message['id'], 'error': error}), flush=True)
"""


def test_a_server_that_never_answers_is_told_once_with_its_last_words(tmp_path, caplog):
    def asked_thrice(then, what):
        path = tmp_path / str(len(then))
        server = tools_from_mcp([sys.executable, "-S", "-c", MUTE.format(path=str(path), then=then)], start_seconds=3)
        for _ in range(3):
            with pytest.raises(UsageError, match=rf"does not {what}: no answer within 3 s; .*still loading"):
                TextEnv(Table(server)).reset(seed=0)
        assert path.read_text() == "x", "it was started again, though it had just failed"

    mute = ["time.sleep(600)", "print('hello', flush=True); sys.stdin.read()", UNLISTED]
    with ThreadPoolExecutor() as beside:
        list(beside.map(asked_thrice, mute, ["start", "start", "list its tools"]))
    assert not caplog.records, "a line that is no message needs no traceback"


def test_a_result_is_not_checked_by_the_servers_schema():
    with table(*PLAIN) as call:
        assert call("data").text == '{"a": "' + "a" * 40 + '!"}'


def test_a_schema_that_points_to_another_machine_is_not_fetched():
    from palaestra.envs.tools.mcp_schema import GivenSchema

    with FakeServer(lambda seen: Reply({"type": "string"})) as server:
        far = {"type": "object", "properties": {"a": {"$ref": f"{server.url}/schema"}}}
        assert GivenSchema("far", far).read({"a": 1}) == {"a": 1}
        assert server.seen == []


@contextmanager
def serving(server):
    """An SDK's server over HTTP, on a thread."""
    import uvicorn

    running = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_config=None))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not running.started and time.monotonic() < until:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        thread.join(60)


@pytest.mark.parametrize("shared", [False, True])
def test_a_served_environment_is_played_through_our_own_tools(shared):
    """Both directions at once, over HTTP: an agent here plays an episode of another environment there."""
    from palaestra.envs.arena.served_mcp import served

    with served("palaestra/TwoHop-v0", {}) as server, serving(server) as url, table(url=url, shared=shared) as call:
        assert call("search", query="Moka born").status == ("tool_error")
        assert "What is the river" in call("reset", seed=1).text
        assert call("search", query="Moka born").text == "Tila"
        assert call("search", question="Moka").status == "bad_call"
        assert "no tool is named" not in call("submit", answer="Answer: Momu").text
        assert "reward 1 (success 1)" in (call.info["attempt"] or call.env.attempt).calls[-1].text
        assert "call reset for another" in call("submit", answer="Answer: Momu").text
        assert "expected a whole number" in call("reset", task=10**12).text
        call("reset", task=3, seed=2)
        call.env.reset(seed=2)
        again = call("search", query="Moka born")
        assert ("no episode runs" in again.text) != shared, "whoever has a session has an episode"


def test_a_game_is_served_by_seat_and_turns_that_are_out_end_it():
    from palaestra.envs.arena.openers import playables
    from palaestra.envs.arena.served_mcp import ServedEpisode

    with pytest.raises(UsageError, match="seat=NAME"):
        ServedEpisode(playables("palaestra/solver_critic_v0", {})())
    one = ServedEpisode(playables("palaestra/solver_critic_v0", {"seat": "solver_0"})())
    assert not one.call("reset", {"seed": 1}).failed
    assert one.call("submit", {"answer": "7"}).ended is None, "the critic is to answer, and then the solver again"
    ends = [one.call("submit", {"answer": "7"}) for _ in range(4)]
    assert ends[-1].failed
    assert any(told.ended is not None for told in ends)
    one.close()


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(path, seconds=20):
    pids = [int(pid) for pid in path.read_text().split()]
    until = time.monotonic() + seconds
    while any(map(running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return len(pids) >= 2 and not any(map(running, pids))


@pytest.mark.prove
def test_a_server_that_ignores_every_wish_to_end_ends_with_its_episode_and_so_does_its_child(tmp_path):
    with table(*PLAIN, str(tmp_path / "pids")) as call:
        assert call("echo", text="x").text == "x"
    assert gone(tmp_path / "pids")


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_server_when_we_are_killed(number, tmp_path):
    program = f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        import test_mcp
        with test_mcp.table(*test_mcp.PLAIN, {str(tmp_path / "pids")!r}) as call:
            call("echo", text="x")
            print("ready", flush=True)
            time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"ready\n"
        assert any(running(int(pid)) for pid in (tmp_path / "pids").read_text().split())
        os.kill(process.pid, number)
    assert gone(tmp_path / "pids")


@pytest.mark.prove
def test_the_command_serves_over_pipes_to_our_own_tools():
    command = [sys.executable, "-m", "palaestra", "serve", "mcp", "two-hop"]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    with table(*command, variables={"PYTHONPATH": path}, call_seconds=60) as call:
        assert "What is the river" in call("reset", seed=1).text
        assert "reward 1" in call("submit", answer="Answer: Momu").text


def test_an_address_with_a_key_in_it_is_refused():
    with pytest.raises(UsageError, match="would be shown in logs"):
        McpServer(url="http://user:key@127.0.0.1/mcp")
