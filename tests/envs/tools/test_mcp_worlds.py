"""An MCP environment is judged by the state that its server leaves, and its author chooses what agents see of it."""

import sys
from pathlib import Path

import pytest
from fake_server import FakeServer, Reply

from palaestra.envs import Task, TextEnv, ToolEnv
from palaestra.envs.tools import mcp_session
from palaestra.envs.tools.mcp import tools_from_mcp
from palaestra.envs.tools.mcp_results import MAX_FINAL_CHARS, final_value
from palaestra.errors import Broken, UsageError

HERE = Path(__file__).parent
ORDERS = [sys.executable, str(HERE / "orders_mcp_server.py")]


def orders_of(task):
    return {"orders": task.data["orders"]}


def arguments_of(task):
    return ("--warehouse", task.data["warehouse"])


def variables_of(task):
    return {"REGION": task.data["region"]}


class Orders(ToolEnv):
    toolkits = (
        tools_from_mcp(
            ORDERS,
            setup=("load", orders_of),
            final="dump",
            hide=("status",),
            prefix="shop_",
            rename={"cancel": "revoke"},
            describe={"list_orders": "List the open orders."},
            variables={"REGION": "none"},
            task_variables=variables_of,
            task_arguments=arguments_of,
        ),
    )

    def task_set(self, split):
        data = {"orders": ["a", "b"], "warehouse": "Oslo", "region": "north"}
        refused = Task(prompt="Cancel nothing.", data={**data, "orders": ["refused"]})
        return [Task(prompt="Cancel a.", answer="a", data=data), refused]

    def reward(self, attempt):
        return float(attempt.final["dump"]["orders"].get(attempt.task.answer) == "cancelled")


@pytest.fixture
def env():
    opened = TextEnv(Orders())
    yield opened
    opened.close()


def test_hidden_calls_set_up_a_task_and_return_the_final_state_that_the_reward_sees(env):
    env.reset(options={"task": 0})
    names = {schema["function"]["name"]: schema["function"]["description"] for schema in env.schemas}
    assert names == {
        "shop_list_orders": "List the open orders.",
        "revoke": "Cancel an order. Call shop_list_orders first, and `status` at the end.",
    }
    assert "a, b" in env.step(env.call("shop_list_orders"))[0]
    for hidden in ("load", "dump", "shop_dump", "status", "cancel"):
        assert f"no tool is named '{hidden}'" in env.step(env.call(hidden))[0]
    env.step(env.call("revoke", order="a"))
    reward, *_, info = env.step("done")[1:]
    assert reward == 1.0
    left = {"orders": {"a": "cancelled", "b": "open"}, "region": "north", "arguments": ["--warehouse", "Oslo"]}
    assert info["attempt"].final == {"dump": left}
    assert [call.name for call in info["attempt"].calls if call.status == "ok"] == ["shop_list_orders", "revoke"]
    env.reset(options={"task": 0})
    assert env.step("done")[1] == 0.0, "an episode that does nothing is judged by the state that it was given"


def test_a_server_that_refuses_to_set_up_a_task_breaks_the_episode_with_its_words(env):
    with pytest.raises(Broken, match=r"refuses the hidden call load.*which sets up the task: the database is locked"):
        env.reset(options={"task": 1})


@pytest.mark.parametrize(
    ("structured", "text", "value"),
    [
        ({"result": [1, 2]}, "", [1, 2]),
        ({"orders": {}, "n": 1}, "other", {"orders": {}, "n": 1}),
        ({"result": '{"a": 1}'}, "", {"a": 1}),
        (None, '{"a": 1}', {"a": 1}),
        (None, "closed at noon", "closed at noon"),
        (None, "[" * 100_000, "[" * 100_000),
    ],
)
def test_a_final_state_is_data_where_the_server_writes_data(structured, text, value):
    class Block:
        type = "text"

    class Result:
        structured_content, content = structured, [Block]

    Block.text = text
    assert final_value(Result) == value
    Block.text, Result.structured_content = "x" * (MAX_FINAL_CHARS + 1), None
    with pytest.raises(Broken, match="1,000,001 characters; at most"):
        final_value(Result)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shared": True, "final": "dump"}, "one connection serves all episodes"),
        ({"url": "http://127.0.0.1:9/mcp", "task_variables": variables_of}, "started by others"),
        ({"command": ORDERS, "final": "dumb"}, "has no tool 'dumb'; is 'dump' meant"),
        ({"command": ORDERS, "rename": {"cancle": "revoke"}}, "has no tool 'cancle'; is 'cancel' meant"),
        ({"command": ORDERS, "rename": {"cancel": "status"}}, "two tools would have this name"),
    ],
)
def test_worlds_that_cannot_be_are_refused_when_the_environment_opens(options, says):
    with pytest.raises(UsageError, match=says):
        TextEnv(type("Wrong", (Orders,), {"toolkits": (tools_from_mcp(**options),)})()).reset()


OTHER_VERSION = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        about = {"protocolVersion": "2023-01-01", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": about}), flush=True)
    elif "id" in message:
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"""


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("from mcp.server.fastmcp import FastMCP", r"start: it is a program for version 1 of MCP's SDK.*'mcp<2'"),
        (OTHER_VERSION, r"start: it speaks version 2023-01-01 of the protocol.*update the server"),
        ("import os\n{}['key']", r"start: it ended with status 1; KeyError: 'key'$"),
    ],
)
def test_a_server_of_another_generation_or_with_an_exception_is_told_in_one_sentence(program, says):
    with pytest.raises(UsageError, match=says):
        tools_from_mcp([sys.executable, "-c", program]).tools  # noqa: B018


def test_an_address_that_does_not_speak_the_present_transport_is_told_as_such():
    with (
        FakeServer(lambda seen: Reply({}, status=405)) as server,
        pytest.raises(UsageError, match=r"the older transport, whose addresses end in /sse, is not supported"),
    ):
        tools_from_mcp(url=f"{server.url}/sse").tools  # noqa: B018


def test_a_server_that_is_silent_is_reported_with_its_last_words_before_its_time_is_over(monkeypatch, caplog):
    monkeypatch.setattr(mcp_session, "SILENT_SECONDS", 2.0)
    program = "import sys, time; print('loading the model', file=sys.stderr, flush=True); time.sleep(600)"
    with pytest.raises(UsageError, match="no answer within 3 s"):
        tools_from_mcp([sys.executable, "-S", "-c", program], start_seconds=3).tools  # noqa: B018
    (record,) = caplog.records
    assert "has not answered for 2 s: loading the model; waiting up to 3 s" in record.getMessage()
