"""A served model plays like any other agent, and its server's troubles are never its own."""

import asyncio
import json
import math
import threading
from collections import Counter
from contextlib import contextmanager

import families
import pytest
from fake_server import FakeServer, Reply, demonstrated, error, nobody, said
from hypothesis import given
from hypothesis import strategies as st

import palaestra
from palaestra import Ending, Request, Start, Status, UsageError
from palaestra.agents import Agent, EndpointPolicy, play
from palaestra.agents.policies.dialogue import to_native, to_text, to_text_only
from palaestra.endpoint import ChatCompletion, EndpointConfig, ToolCall
from palaestra.formats import FORMATS, ParsedCall, get, hermes

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Look up.", "parameters": PARAMETERS}}
ASK = {"role": "user", "content": "Where?"}
ENV = "palaestra/Calculator-v0"
RULE = palaestra.demonstrator(ENV)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    """Every policy of a test is closed, and with it its thread; `opened` makes them."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "palaestra-endpoint"] == []


@contextmanager
def opened(url, policy=None, **options):
    """A policy that asks a server, closed at the end of the block."""
    config = EndpointConfig(**({"base_url": url, "model": "demo", "backoff": 0.01, "patience": 120.0} | options))
    made = EndpointPolicy(config, **(policy or {}))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def served(behave, policy=None, **options):
    """A server that behaves so, and a policy that asks it."""
    with FakeServer(behave) as server, opened(server.url, policy, **options) as made:
        yield server, made


def played(policy, env_id=ENV, count=4, slots=4):
    arena = palaestra.arena(env_id, slots)
    try:
        return list(play(Agent(policy), arena, families.starts(count)))
    finally:
        arena.close()


def request(seed=0, turn=0, messages=(ASK,)):
    return Request(0, Start(0, seed), turn, messages, (SEARCH,), (), 64)


def until_there(policy, count=1):
    """Poll until so many answers are in."""
    found = []
    while len(found) < count:
        found += policy.poll(10.0)
    return found


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("env_id", [ENV, "palaestra/TwoHop-v0"])
def test_a_served_demonstrator_solves_its_environment(env_id, native):
    behave = demonstrated(palaestra.demonstrator(env_id), native)
    with served(behave, {"native_tools": native}) as (server, policy):
        policy.check()
        episodes = played(policy, env_id, count=12)
        assert policy.totals.answers == len(server.questions) == sum(e.attempt.turns for e in episodes)
    assert [episode.reward for episode in episodes] == [1.0] * 12
    assert {call.status for episode in episodes for call in episode.attempt.calls} == {Status.OK}
    assert {episode.rows for episode in episodes} == {()}
    for asked in server.questions:
        roles = {message["role"] for message in asked["messages"]}
        if native:
            assert asked["tools"] == list(episodes[0].tools)
            assert_ids_match(asked["messages"])
        else:
            assert "tools" not in asked
            assert roles == {"system", "user"} | ({"assistant"} & roles)
            assert json.dumps(episodes[0].tools[0]["function"]) in asked["messages"][0]["content"]


def assert_ids_match(messages):
    """Each call has its result right behind its turn, in call order; ids are never used twice."""
    seen = Counter()
    at = 0
    while at < len(messages):
        calls = messages[at].get("tool_calls", ())
        results = messages[at + 1 : at + 1 + len(calls)]
        assert [result.get("tool_call_id") for result in results] == [call["id"] for call in calls]
        assert all(result["role"] == "tool" for result in results)
        seen.update(call["id"] for call in calls)
        at += 1 + len(calls)
        assert at == len(messages) or messages[at]["role"] != "tool"
    assert not seen or max(seen.values()) == 1


def test_all_episodes_are_out_at_once():
    waiting = []
    inner = demonstrated(RULE)

    async def behave(seen):
        """Nobody is answered before six are here."""
        waiting.append(seen)
        while len(waiting) < 6:
            await asyncio.sleep(0.01)
        return inner(seen)

    with served(behave) as (server, policy):
        assert [episode.reward for episode in played(policy, count=6, slots=6)] == [1.0] * 6
        assert server.peak == 6


def test_a_dead_server_breaks_episodes_with_a_fault_that_names_it():
    with nobody() as url, opened(url, patience=0.1) as policy:
        episodes = played(policy)
    assert [episode.ending for episode in episodes] == [Ending.BROKEN] * 4
    assert [episode.reward for episode in episodes] == [None] * 4
    assert all(url in episode.fault for episode in episodes)


def test_a_wrong_key_stops_the_run(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-very-wrong-key")
    wrong = error(401, "Incorrect API key provided: sk-a-very-wrong-key")
    with served(lambda seen: wrong) as (server, policy):
        with pytest.raises(UsageError, match=r"Incorrect API key.*from OPENAI_API_KEY") as caught:
            played(policy, count=1000)
        assert len(server.seen) <= 4
        with pytest.raises(UsageError, match="Incorrect"):
            until_there(policy, policy.submit(request()) + 1)
    assert "very-wrong" not in str(caught.value) + repr(policy)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("calculator", "{expression: 6 * 7}"),
        ("calculator", "6 * 7"),
        ("calculator", '["6 * 7"]'),
        ("calculator", '{"expression": 1e999}'),
        ("calculator", '{"expression": NaN}'),
        ("calculator", "{}"),
        ("calculator", '{}}</tool_call><tool_call>{"name": "calculator", "arguments": {"expression": "1"}'),
        ("calculator", "[" * 100_000),
        ("no such tool", "{}"),
        ("", "{}"),
        ('"', "{"),
    ],
)
def test_a_malformed_call_is_the_agents_mistake(name, arguments):
    """It is told so, sees what it wrote, and goes on; nothing of ours breaks and no other call is run."""

    def behave(seen):
        told = seen.asked["messages"][-1]
        return said("42") if "Error" in str(told["content"]) else said(None, [(name, arguments)])

    with served(behave) as (server, policy):
        (episode,) = played(policy, count=1)
    assert episode.ending is Ending.ANSWERED
    assert {call.status for call in episode.attempt.calls} == {Status.BAD_CALL}
    assert len(server.questions) == 2
    assert_ids_match(server.questions[1]["messages"])


def test_a_cut_turn_is_no_answer():
    with served(lambda seen: said("The answer is", finish="length")) as (_, policy):
        (episode,) = played(policy, count=1)
    assert episode.ending is Ending.LENGTH_LIMIT
    assert episode.attempt.answer is None


def test_thinking_is_recorded_but_not_sent_back():
    def behave(seen):
        if seen.asked["messages"][-1]["role"] == "tool":
            return said("42", reasoning="done </think> 7")
        return said("Let me see.", [("calculator", '{"expression": "6 * 7"}')], reasoning_content="wondering")

    with served(behave) as (server, policy):
        (episode,) = played(policy, count=1)
    first, last = (m["content"] for m in episode.attempt.messages if m["role"] == "assistant")
    assert first.startswith("<think>\nwondering\n</think>\nLet me see.\n<tool_call>")
    assert "done" in last
    assert episode.attempt.answer == "42"
    sent = server.questions[1]["messages"][-2]
    assert (sent["content"], sent["tool_calls"][0]["function"]["name"]) == ("Let me see.", "calculator")
    assert "wondering" not in json.dumps(server.questions[1])


def test_a_cancelled_request_is_hung_up_and_never_answered():
    async def behave(seen):
        if seen.asked["messages"][0]["content"] == "forget me":
            await asyncio.sleep(3600)
        return said()

    with served(behave) as (server, policy):
        first = policy.submit(request(messages=({"role": "user", "content": "forget me"},)))
        while server.busy == 0:
            assert policy.poll(0.0) == []
        policy.cancel(first)
        policy.cancel(first)
        policy.cancel(99)
        second = policy.submit(request())
        assert [completion.ticket for completion in until_there(policy)] == [second]
        assert server.hung_up.wait(30)
        assert policy.poll(0.0) == []


def test_what_was_cancelled_is_never_handed_out_whether_it_is_not_yet_sent_or_in_already():
    with served(lambda seen: said()) as (_, policy):
        for _ in range(50):
            policy.cancel(policy.submit(request()))  # Before it is sent.
        ticket = policy.submit(request())
        while policy._outcomes.empty():
            assert not policy._background.closed
        policy.cancel(ticket)
        other = policy.submit(request())
        assert [completion.ticket for completion in until_there(policy)] == [other]


def test_closing_hangs_up_on_whatever_is_out():
    async def silence(writer):
        await asyncio.sleep(3600)

    with FakeServer(lambda seen: silence) as server:
        with opened(server.url, max_concurrent=3) as policy:
            for seed in range(8):
                policy.submit(request(seed))
            while server.busy < 3:
                assert policy.poll(0.01) == []
        assert server.hung_up.wait(30)
        policy.close()
        assert policy.poll(0.0) == []
        with pytest.raises(UsageError, match="is closed"):
            policy.submit(request())
    with served(lambda seen: error(503, "busy"), backoff=100.0) as (server, policy):
        policy.submit(request())
        while not server.seen:  # It is closed in the middle of trying again.
            assert policy.poll(0.01) == []


def test_seeds_are_sent_when_asked_and_differ_by_start_and_turn():
    with FakeServer(lambda seen: said()) as server:
        for policy in ({}, {"seed": 1}, {"seed": 1}, {"seed": 2}):
            with opened(server.url, policy) as engine:
                for seed, turn in ((0, 0), (0, 1), (1, 0)):
                    engine.submit(request(seed, turn))
                    until_there(engine)
    sent = [asked.get("seed") for asked in server.questions]
    assert sent[:3] == [None] * 3
    assert sent[3:6] == sent[6:9]
    assert len(set(sent[3:])) == 6
    assert all(0 <= seed < 2**31 for seed in sent[3:])


def test_a_turn_that_no_server_would_take_goes_as_text():
    spoilt = "<tool_call>{oops}</tool_call>"
    messages = [ASK, {"role": "assistant", "content": spoilt}, {"role": "tool", "name": "", "content": "Error: bad"}]
    assert to_native(messages, [SEARCH], hermes) == [
        ASK,
        {"role": "assistant", "content": spoilt},
        {"role": "user", "content": "Result:\nError: bad"},
    ]


def test_fewer_results_than_calls_still_answer_every_id():
    """An environment runs only so many calls of a turn, and says so in one message more."""
    turn = hermes.render([ParsedCall("search", {"query": str(n)}) for n in range(5)])
    results = [{"role": "tool", "name": "search", "content": str(n)} for n in range(3)]
    not_run = "This call was not run."
    for told, contents in (
        (results, ["0", "1", "2", not_run, not_run]),
        ([*results, *results], ["0", "1", "2", "0", "1", "Result of search:\n2"]),
    ):
        wire = to_native([ASK, {"role": "assistant", "content": turn}, *told], [SEARCH], hermes)
        assert_ids_match(wire)
        assert [message["content"] for message in wire[2:]] == contents
    assert wire[-1]["role"] == "user"


def test_messages_that_are_on_the_wire_already_stay_as_they_are():
    call = {"id": "abc", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    messages = [
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "x"},
        {"role": "assistant", "content": "<think>y</think>Home."},
        ASK,
    ]
    wire = to_native(messages, [SEARCH], hermes)
    assert wire[:3] == messages[:3]
    assert wire[3:] == [{"role": "assistant", "content": "Home."}, ASK]
    assert to_native(wire, [SEARCH], hermes) == wire


def test_without_tool_support_all_is_text_and_roles_take_turns():
    turn = hermes.render([ParsedCall("search", {"query": "a"}), ParsedCall("search", {"query": "b"})])
    results = [{"role": "tool", "name": "search", "content": reply} for reply in ("1", "2")]
    messages = [{"role": "system", "content": "Be brief."}, ASK, {"role": "assistant", "content": turn}, *results]
    wire = to_text_only(messages, [SEARCH], hermes)
    assert [message["role"] for message in wire] == ["system", "user", "assistant", "user"]
    assert wire[0]["content"].startswith("Be brief.\n\n")
    assert hermes.EXAMPLE in wire[0]["content"]
    assert json.dumps(SEARCH["function"]) in wire[0]["content"]
    assert wire[2]["content"] == turn
    assert wire[3]["content"] == "Result of search:\n1\n\nResult of search:\n2"
    assert to_text_only([ASK], [], hermes) == [ASK]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MARKS = ['{"query": "a"}', "</tool_call>", "<tool_call>", "<think>", "</think>", '"', "}", "{", "[", "x", ","]
snippets = st.lists(st.sampled_from(MARKS), max_size=8).map("".join)


@given(content=st.text(max_size=40) | snippets, arguments=st.lists(st.dictionaries(st.text(), json_values, max_size=3)))
def test_what_the_model_called_is_what_the_environment_reads(content, arguments):
    calls = tuple(ToolCall("search", json.dumps(one)) for one in arguments)
    read = hermes.parse(to_text(ChatCompletion(content, "thinking", calls), [SEARCH], hermes))
    wanted = tuple(ParsedCall("search", one) for one in arguments)
    assert read.calls[len(read.calls) - len(wanted) :] == wanted


@given(content=snippets, name=st.text(max_size=8), arguments=snippets | st.text(max_size=20))
def test_no_arguments_become_another_call(content, name, arguments):
    text = to_text(ChatCompletion("", "", (ToolCall(name, arguments),)), [SEARCH], hermes)
    read = hermes.parse(text).calls
    assert len(read) == 1
    assert not isinstance(read[0], ParsedCall) or read[0].name in (name, "tool")
    assert to_text(ChatCompletion(content, "", (ToolCall(name, arguments),)), [SEARCH], hermes)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"fence"}))
def test_every_format_carries_calls_faults_and_thinking(name):
    form = get(name)
    for content in ("", "Let me see."):
        for reasoning in ("", "hm"):
            good = ChatCompletion(content, reasoning, (ToolCall("search", '{"query": "a b"}'),))
            parsed = form.parse(to_text(good, [SEARCH], form), [SEARCH])
            assert parsed.calls == (ParsedCall("search", {"query": "a b"}),)
            assert parsed.content == content
    twice = tuple(ToolCall("search", json.dumps({"query": query})) for query in "ab")
    read = form.parse(to_text(ChatCompletion("<think>", "", twice), [SEARCH], form), [SEARCH]).calls
    assert read == tuple(ParsedCall("search", {"query": query}) for query in "ab")
    for arguments in ("{query: 1}", "", "[1]", '"x"', "</tool_call>", "NaN"):
        (read,) = form.parse(
            to_text(ChatCompletion("", "", (ToolCall("search", arguments),)), [SEARCH], form), [SEARCH]
        ).calls
        assert not isinstance(read, ParsedCall) or read.name == "search"
    answer = form.parse(to_text(ChatCompletion("Bado", "hm"), [SEARCH], form), [SEARCH])
    assert (answer.content, answer.calls) == ("Bado", ())


def test_what_no_server_takes_is_not_sent_as_a_call():
    for call in (ParsedCall("two words", {}), ParsedCall("x" * 65, {}), ParsedCall("search", {"n": math.inf})):

        class Form:
            @staticmethod
            def parse(text, tools=(), call=call):
                return type("Parsed", (), {"content": "", "calls": (call,), "is_answer": False})

        wire = to_native([ASK, {"role": "assistant", "content": "t"}, {"role": "tool", "content": "r"}], [], Form)
        assert wire == [ASK, {"role": "assistant", "content": "t"}, {"role": "user", "content": "Result:\nr"}]


def test_a_server_that_answers_nonsense_breaks_one_episode_not_the_run():
    inner = demonstrated(RULE)

    def behave(seen):
        first = next(m["content"] for m in seen.asked["messages"] if m["role"] == "user")
        poisoned.setdefault(first, len(poisoned))
        return Reply(b'{"choices": [7]}') if poisoned[first] == 3 else inner(seen)

    poisoned = {}
    with served(behave) as (_, policy):
        episodes = played(policy, count=8)
    assert Counter(episode.ending for episode in episodes) == {Ending.ANSWERED: 7, Ending.BROKEN: 1}
