"""A served model is asked within bounds: whatever the server does, there is an answer, a fault or a clear refusal."""

import asyncio
import gzip
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from fake_server import FakeServer, Reply, error, nobody, replying, said
from hypothesis import given
from hypothesis import strategies as st

from palaestra.endpoint import Endpoint, EndpointConfig, client, http, pace
from palaestra.endpoint.pace import AtOnce
from palaestra.errors import Broken, ConfigError, MissingExtra, UsageError

QUESTION = [{"role": "user", "content": "What is 6 * 7?"}]
KEY = "sk-4f9aTopSecret-77/=+"


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def using(server, work, **options):
    """Run `work(endpoint)` against a server, on a loop of its own, and close the endpoint."""
    url = server if isinstance(server, str) else server.url
    config = EndpointConfig(**({"base_url": url, "model": "m", "backoff": 0.01, "patience": 120.0} | options))

    async def whole():
        endpoint = Endpoint(config)
        try:
            return await work(endpoint)
        finally:
            await endpoint.aclose()
            await asyncio.sleep(0.01)

    return asyncio.run(whole())


def ask(server, times=1, max_tokens=64, **options):
    """Ask the question some times, one after the other; the last answer."""

    async def work(endpoint):
        for _ in range(times):
            answer = await endpoint.complete(QUESTION, max_tokens=max_tokens)
        return answer

    return using(server, work, **options)


def asked(replies, **options):
    """The answers to as many questions."""

    async def work(endpoint):
        return [await endpoint.complete(QUESTION, max_tokens=64) for _ in replies]

    with replying(*replies) as server:
        return using(server, work, **options)


def fails(kind, match, *replies, **options):
    """The question behind the last of these replies fails so; what is said of it, and the server."""
    with replying(*replies) as server, pytest.raises(kind, match=match) as caught:
        ask(server, times=len(replies), **options)
    return str(caught.value), server


def test_an_answer_comes_with_what_it_cost():
    usage = {"prompt_tokens": 20, "completion_tokens": 5}
    with replying(said("42", usage=usage)) as server:

        async def work(endpoint):
            answer = await endpoint.complete(QUESTION, max_tokens=64, temperature=0.5, seed=7)
            return answer, await endpoint.complete(QUESTION), endpoint.totals

        answer, _, totals = using(server, work, price_in=100_000, price_out=1_000_000)
    assert (answer.content, answer.cut, answer.calls, answer.reasoning) == ("42", False, (), "")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cost) == (20, 5, 7.0)
    assert (totals.answers, totals.tries, totals.prompt_tokens, totals.cost) == (2, 2, 40, 14.0)
    assert server.seen[0].path == "/v1/chat/completions"
    expected = {"model": "m", "messages": QUESTION}
    assert server.questions == [expected | {"max_tokens": 64, "temperature": 0.5, "seed": 7}, expected]
    assert "authorization" not in server.seen[0].headers


UNREADABLE = [
    b"I am a teapot", b"", b"[1, 2]", b'{"choices": "\xff\xfe"}', b'{"choices": ' + b"[" * 100_000,
    b'{"choices": ' + b"9" * 10_000 + b"}", b"{}", b'{"choices": null}', b'{"choices": []}', b'{"choices": [3]}',
    b'{"choices": [{"message": null}]}', b'{"choices": [{"message": {"content": 3}}]}',
    b'{"choices": [{"message": {"content": "", "tool_calls": {"name": "x"}}}]}',
    b'{"choices": [{"message": {"content": "", "tool_calls": [null]}}]}',
    b'{"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}',
    b'{"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": 1}}]}}]}',
    b'{"error": {"message": "upstream is gone"}}', b'{"error": "upstream is gone"}',
]  # fmt: skip


def test_an_unreadable_answer_is_a_fault_that_names_the_server():
    """And is asked for three times only, since each may be billed."""
    for body in UNREADABLE:
        told, server = fails(Broken, r"/v1 gave no answer in 3 tries.*it answered", Reply(body))
        assert server.url in told and len(told) < 600, body[:80]
        assert len(server.seen) == client.COSTLY_TRIES, body[:80]


def test_what_is_unusual_but_clear_is_read():
    parts = [{"type": "text", "text": "4"}, {"type": "image"}, {"type": "text", "text": "2"}]
    for message, content in (
        ({"content": None}, ""), ({}, ""), ({"content": parts}, "42"), ({"content": "a\ud800b"}, "a?b"),
        ({"content": None, "refusal": "I will not."}, "I will not."),
    ):  # fmt: skip
        with replying(Reply({"choices": [{"message": message}]})) as server:
            assert ask(server).content == content
    calls = [("search", '{"query": "x"}'), ("search", "{broken"), ("", None), ("sum", {"a": 1})]
    with replying(said(None, calls, reasoning_content="hm")) as server:
        answer = ask(server)
    assert answer.reasoning == "hm"
    assert [(call.name, call.arguments) for call in answer.calls] == [*calls[:2], ("", "{}"), ("sum", '{"a": 1}')]


def test_an_answer_that_is_not_whole_is_known_and_hidden_thinking_is_no_part_of_it():
    ends = [("stop", 5), ("length", 5), ("content_filter", 5), ("stop", 64), ("stop", 5000), (["stop"], 5), (None, 5)]
    hidden = {"completion_tokens": 400, "completion_tokens_details": {"reasoning_tokens": 390}}
    replies = [said("w", finish=finish, usage={"prompt_tokens": 9, "completion_tokens": n}) for finish, n in ends]
    replies.append(said("words", usage={"prompt_tokens": 9} | hidden))
    answers = asked(replies)
    # A server may say "stop" of an answer as long as was allowed.
    assert [answer.cut for answer in answers] == [False, True, True, True, True, False, False, False]
    assert answers[-1].usage.completion_tokens == 400


LIES = [0, -5, 10**12, 10**30, 1.5, True, "12", None, [], float("nan")]


def test_lengths_that_cannot_be_true_or_are_missing_are_estimated_and_marked():
    lies = [
        {"prompt_tokens": lie, "completion_tokens": lie, "completion_tokens_details": {"reasoning_tokens": lie}}
        for lie in LIES
    ]
    replies = [said("word " * 100, usage=usage) for usage in [*lies, None, [], "many", {}, {"prompt_tokens": 20}]]
    for answer in asked(replies, price_in=1.0, price_out=1.0):
        usage = answer.usage
        assert usage.estimated and 10 <= usage.prompt_tokens <= 60
        assert usage.completion_tokens == 125 and 0 < usage.cost < 0.001


async def trickle(writer):
    """An answer whose bytes come one by one, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def slow_head(writer):
    """Headers that never end."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: x\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silence(writer):
    await asyncio.sleep(3600)


def test_no_way_to_stall_beats_the_deadline():
    def stalled(stall):
        _, server = fails(Broken, r"no whole answer within 0\.5 s", stall, timeout=0.5)
        assert server.hung_up.wait(30)

    with ThreadPoolExecutor() as beside:
        list(beside.map(stalled, (trickle, slow_head, silence)))


async def half(writer):
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [')
    await writer.drain()
    writer.transport.abort()


async def nothing(writer):
    writer.transport.abort()


async def no_http(writer):
    writer.write(b"220 mail.example.org ESMTP\r\n\r\n")
    await writer.drain()


@pytest.mark.parametrize("fault", [half, nothing, no_http, error(429, "slow down"), error(503, "busy"), error(529, "")])
def test_what_passes_is_tried_again(fault, caplog):
    with replying(fault, fault, said("42")) as server:
        assert ask(server).content == "42"
        assert len(server.seen) == 3
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "palaestra.endpoint"]
    assert f"{server.url}: " in warning


def test_a_lasting_429_ends_in_a_fault_that_says_so():
    slow = error(429, "slow \x1b[2J down")
    _, server = fails(Broken, r"it answered 429: slow \\x1b\[2J down", slow, patience=0.2)
    assert len(server.seen) > 1


def test_a_request_to_wait_is_honoured_within_a_cap(monkeypatch):
    now = 1_700_000_000.25
    monkeypatch.setattr(http, "time", SimpleNamespace(time=lambda: now))
    assert http.seconds_of("7") == 7.0
    assert http.seconds_of("1e12") == http.seconds_of("inf") == http.RETRY_AFTER_CAP
    assert http.seconds_of("-3") == 0.0
    assert http.seconds_of(None) is http.seconds_of("soon") is http.seconds_of("nan") is http.seconds_of("") is None
    assert http.seconds_of(formatdate(now + 30, usegmt=True)) == 29.75, "a date has whole seconds"
    assert http.seconds_of(formatdate(now - 30, usegmt=True)) == 0.0
    assert http.seconds_of(formatdate(now + 10**6, usegmt=True)) == http.RETRY_AFTER_CAP


def test_retries_wait_longer_each_time_but_never_past_the_patience(monkeypatch):
    slept, now = [], [1000.0]

    async def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    busy = [error(429, "slow")] * 8 + [Reply(error(429, "slow").body, 429, {"Retry-After": "40"}), said("42")]
    with replying(*busy) as server:

        async def work(endpoint):
            monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: now[0]))
            monkeypatch.setattr(http.asyncio, "sleep", sleep)
            monkeypatch.setattr(AtOnce, "refused", lambda places, wait: None)  # It waits by the loop's own clock.
            try:
                return await endpoint.complete(QUESTION)
            finally:
                monkeypatch.undo()

        assert using(server, work, backoff=0.5, patience=120.0).content == "42"
    assert len(slept) == 9
    assert all(0.25 * 2**n <= seconds <= 0.5 * 2**n for n, seconds in enumerate(slept[:6]))
    assert 40.0 <= slept[8] <= 42.0
    assert 60.0 < sum(slept) < 120.0


def test_a_dead_server_is_a_fault_and_the_next_question_does_not_wait_as_long():
    async def work(endpoint):
        tries = []
        for _ in range(2):
            with pytest.raises(Broken, match=r"refused|failed") as caught:
                await endpoint.complete(QUESTION)
            assert url in str(caught.value)
            tries.append(endpoint.totals.tries)
        return tries, endpoint.totals.unanswered

    with nobody() as url:
        (first, second), unanswered = using(url, work, patience=0.2)
        assert first > 1
        assert second == first + 1
        assert unanswered == 2
        with pytest.raises(UsageError, match=r"cannot be reached.*is the server running"):
            using(url, lambda endpoint: endpoint.check())


@pytest.mark.parametrize("before", [0, 2])
def test_what_no_question_survives_stops_the_run_at_any_time(before):
    for status, said_there, more in (
        (401, "Incorrect API key provided", {}), (402, "Insufficient credits", {}),
        (429, "You exceeded your current quota", {"code": "insufficient_quota"}),
    ):  # fmt: skip
        told, server = fails(UsageError, said_there, *[said()] * before, error(status, said_there, **more))
        assert server.url in told
        assert len(server.seen) == before + 1


REFUSALS = [
    error(400, "no such parameter"), error(403, "flagged"), error(404, "no such model"),
    Reply(b"<html><title>Not Found</title></html>", 404), Reply({"detail": "Not Found"}, 404),
    Reply({"error": {"message": "no such model", "code": 404}}),
    Reply(b"", 301, {"Location": "https://elsewhere.example/v1"}),
]  # fmt: skip


def test_a_refusal_stops_the_run_until_the_server_has_answered_something():
    for refusal in REFUSALS:
        fails(UsageError, "/v1 re", refusal)
        _, server = fails(Broken, "/v1 re", said(), refusal)
        assert len(server.seen) == 2


def test_a_page_where_a_server_should_be_says_so():
    page = Reply(b"<!DOCTYPE html><html><body>Welcome</body></html>")
    fails(UsageError, r"HTML page.*expected a base URL", page)
    fails(Broken, "HTML page", said(), page)


def test_a_dialogue_that_outgrew_the_model_is_cut():
    long = error(400, "This model's maximum context length is 4096 tokens. However, you requested 5000.")
    assert [(answer.content, answer.cut) for answer in asked([said("fine"), long])] == [("fine", False), ("", True)]
    fails(UsageError, "maximum context", long)  # The first question does not fit: that is no agent's fault.


def test_the_newer_name_of_the_token_limit_is_learned():
    message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."

    def behave(seen):
        if "max_tokens" in seen.asked:
            return error(400, message, param="max_tokens", code="unsupported_parameter")
        return said("42")

    with FakeServer(behave) as server:
        assert ask(server, times=2).content == "42"
    assert [question.get("max_completion_tokens") for question in server.questions] == [None, 64, 64]


def test_a_large_body_is_not_read_to_its_end():
    sent = []

    async def flood(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            writer.write(b"100000\r\n" + b"x" * 2**20 + b"\r\n")
            sent.append(2**20)
            await writer.drain()

    fails(Broken, "max_body_bytes, 4194304", flood, max_body_bytes=4 * 2**20)
    assert sum(sent) < 3 * 50 * 2**20


def test_a_compressed_body_is_refused_and_no_cookie_kept():
    bomb = gzip.compress(b'{"choices": "' + b"x" * 10**7)
    reply = Reply(bomb, headers={"Content-Encoding": "gzip", "Set-Cookie": "track=me"})
    _, server = fails(Broken, "compressed", reply)
    assert {seen.headers["accept-encoding"] for seen in server.seen} == {"identity"}
    assert "cookie" not in server.seen[1].headers


def test_a_redirect_takes_the_key_nowhere(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with replying(said()) as thief:
        away = Reply(b"", 307, {"Location": f"{thief.url}/chat/completions?key={KEY}"})
        told, _ = fails(UsageError, "redirects to", away)
        assert thief.seen == []
    assert KEY not in told
    assert "key=***" in told


def test_a_server_without_tls_is_told_from_a_dead_one_and_a_handshake_that_ends_or_hangs_is_a_fault():
    for greeting, kind, match, options in (
        (None, UsageError, "no secure connection", {}),
        (nothing, Broken, "no connection", {}),
        (silence, Broken, r"no connection within 0\.2 s", {"connect_timeout": 0.2}),
    ):
        with replying(said()) as server:
            server.greet_tls = greeting or server.greet_tls
            with pytest.raises(kind, match=match):
                ask(server.url.replace("http:", "https:"), patience=0.0, **options)


@pytest.mark.parametrize(
    "reply",
    [
        error(401, f"wrong key {KEY}"),
        error(500, f"{'x' * 290}{KEY}"),
        error(400, f"Bearer {KEY} is not good", param=KEY, code=KEY),
        Reply(f"<html><p>{KEY}</p></html>".encode()),
        Reply(f"<html><p>{KEY}</p></html>".encode(), 404),
        Reply(f"{'x' * 190}{KEY}".encode()),
        Reply(f"{'x' * 290}{KEY}".encode(), 404),
        Reply({"choices": KEY}),
        Reply(b'{"error": "' + KEY.replace("s", "\\u0073", 1).encode() + b'"}', 403),
        said(f"the key is {KEY}", [(KEY, KEY)], reasoning_content=KEY),
        *(
            Reply(b'{"choices": [{"message": {"' + part + b'": "' + KEY.replace("s", "\\u0073", 1).encode() + b'"}}]}')
            for part in (b"content", b"reasoning_content")
        ),
    ],
)
def test_the_key_is_sent_and_never_shown(reply, monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")
    caplog.set_level(logging.DEBUG)
    shown = []
    with replying(reply) as server:

        async def work(endpoint):
            shown.extend([repr(endpoint), repr(endpoint.config), repr(endpoint._secret)])
            try:
                shown.append(repr(await endpoint.complete(QUESTION)))
            except (Broken, UsageError) as problem:
                link = problem
                while link is not None:
                    shown.append(repr(link))
                    link = link.__cause__
            shown.append(repr(vars(endpoint)))

        using(server, work, patience=0.05)
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    text = "\n".join(shown) + caplog.text
    assert KEY not in text
    assert KEY[:8] not in text


def test_what_is_wrong_with_a_key_is_told_without_it_and_a_placeholder_is_no_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with replying(said("six boxes")) as server:
        assert ask(server).content == "six boxes"
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("MY_KEY", "sk-two words\u00e9")
    for name, match in (("MY_KEY", "holds blanks"), ("NO_KEY", "NO_KEY is not set"), ("hf_abcdef", "is not set")):
        with pytest.raises(UsageError, match=match) as caught:
            Endpoint(EndpointConfig("http://localhost/v1", "m", api_key_env=name))
        assert "sk-two" not in str(caught.value)
        assert "hf_abcdef" not in str(caught.value)
    with pytest.raises(ConfigError, match="not the name of an environment variable") as caught:
        EndpointConfig("http://localhost/v1", "m", api_key_env=KEY)
    assert KEY not in str(caught.value)
    fails(UsageError, "no key was", error(401, "who are you?"))


IMPOSSIBLE = [
    {"base_url": "localhost:8000"}, {"base_url": "ftp://me:hunter2@host/v1"}, {"base_url": "http:///v1"},
    {"base_url": "http://[::1/v1"}, {"base_url": "http://host:99999/v1"}, {"base_url": "http://host/v1\n"},
    {"base_url": "https://host/v1?key=abc"}, {"base_url": "https://me:hunter2@host/v1"}, {"model": ""},
    {"timeout": 0.0}, {"timeout": float("nan")}, {"patience": -1.0}, {"max_concurrent": 0},
    {"requests_per_minute": 0.5}, {"price_in": float("inf")},
]  # fmt: skip


def test_an_impossible_configuration_is_refused():
    for options in IMPOSSIBLE:
        with pytest.raises(ConfigError, match=r"expected|needs") as caught:
            pytest.fail(f"{EndpointConfig(**({'base_url': 'http://localhost/v1', 'model': 'm'} | options))}")
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/v1/chat/completions", "/v1/chat/completions/"])
def test_a_base_url_is_taken_as_people_write_it(end):
    with replying(said()) as server:
        ask(server.url.removesuffix("/v1") + end)
        assert server.seen[0].path == "/v1/chat/completions"


def test_questions_are_out_at_once_and_never_more_than_allowed():
    waiting = []

    async def behave(seen):
        """Nobody is answered before four are here."""
        waiting.append(seen)
        while len(waiting) < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        return said()

    async def work(endpoint):
        await asyncio.gather(*(endpoint.complete(QUESTION) for _ in range(12)))
        return endpoint.totals.answers

    with FakeServer(behave) as server:
        assert using(server, work, max_concurrent=4) == 12
        assert server.peak == 4


def test_a_connection_is_used_again_and_one_that_the_server_has_closed_is_replaced():
    def closing(seen):
        reply = said(str(len(server.seen)))
        reply.headers = {"Connection": "close"} if len(server.seen) == 3 else {}
        return reply

    async def work(endpoint):
        opened = set()
        for number in range(1, 6):
            assert (await endpoint.complete(QUESTION)).content == str(number)
            opened |= set(server._open)
        await asyncio.gather(*(endpoint.complete(QUESTION) for _ in range(4)))
        for task in list(server._open):  # The server ends idle connections, and says nothing.
            server._loop.call_soon_threadsafe(task.cancel)
        while server._open:
            await asyncio.sleep(0.01)
        assert (await endpoint.complete(QUESTION)).content == "10"
        return len(opened), endpoint.totals

    with FakeServer(closing) as server:
        connections, totals = using(server, work)
    assert connections == 2
    assert totals.tries == totals.answers == 10, "no request was lost on a dead connection"


def test_requests_at_once_adapt_to_a_server_that_refuses_some_for_their_rate():
    allowed = 5

    async def behave(seen):
        if server.busy > allowed:
            return Reply(error(429, "slow").body, 429, {"Retry-After": "0.01"})
        await asyncio.sleep(0.005)
        return said()

    async def work(endpoint):
        nonlocal allowed
        await asyncio.gather(*(endpoint.complete(QUESTION) for _ in range(200)))
        few, refused = endpoint.totals.at_once, endpoint.totals.refused_for_rate
        allowed = 1000
        await asyncio.gather(*(endpoint.complete(QUESTION) for _ in range(600)))
        return endpoint.totals, few, refused

    with FakeServer(behave) as server:
        totals, few, refused = using(server, work, max_concurrent=32)
    assert totals.answers == 800 and totals.unanswered == 0
    assert 1 <= few <= 8
    assert 0 < refused < 200
    assert totals.at_once == 32 and totals.refused_for_rate == refused


def test_while_a_server_asks_to_wait_nothing_is_sent_and_a_repetition_goes_first():
    async def work():
        loop, places, order = asyncio.get_running_loop(), AtOnce(2), []

        async def asked(name, first):
            await places.take(first)
            order.append(name)
            places.give()

        await places.take(False)
        await places.take(False)
        began = loop.time()
        places.refused(0.1)
        places.give()
        places.give()
        await asyncio.gather(asked("new", False), asked("again", True))
        return loop.time() - began, order, places.limit

    seconds, order, limit = asyncio.run(work())
    assert seconds >= 0.1 and order == ["again", "new"] and limit == pytest.approx(1.4)


def test_a_place_is_free_again_when_whoever_waits_for_it_is_cancelled():
    async def work():
        places = AtOnce(1)
        await places.take(False)
        waiting = [asyncio.ensure_future(places.take(False)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        places.give()  # The second has the place, and does not know it yet.
        waiting[1].cancel()
        await asyncio.wait_for(waiting[2], 10.0)

    asyncio.run(work())


def test_a_free_question_finds_a_wrong_key_or_a_page_before_anything_is_played():
    for reply, why in ((error(401, "no"), "401"), (Reply(b"<html>Welcome</html>"), "a page.*expected a base URL")):
        with replying(reply) as server, pytest.raises(UsageError, match=why):
            using(server, lambda endpoint: endpoint.check())
    for reply in (Reply({"data": []}), error(404, "no list here"), error(500, "busy")):
        with replying(reply) as server:
            using(server, lambda endpoint: endpoint.check())
            assert [(seen.method, seen.path) for seen in server.seen] == [("GET", "/v1/models")]


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"palaestra\[endpoint\]"):
        Endpoint(EndpointConfig("http://localhost/v1", "m"))


def test_a_proxy_is_not_asked_for_this_machine_and_an_unusable_one_is_a_usage_error(monkeypatch):
    for variable in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
        with replying(said("direct")) as server:
            assert ask(server).content == "direct"
    monkeypatch.setenv("ALL_PROXY", "gopher://host:1")
    with pytest.raises(UsageError, match="proxy or certificate settings"):
        ask("http://palaestra.invalid/v1")


@given(
    amounts=st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(1, 12)), min_size=1, max_size=40),
    limit=st.integers(1, 20),
)
def test_no_minute_holds_more_than_its_limit(amounts, limit):
    """The clock moves by sleeping alone, so the property is exact."""
    now, booked = [0.0], []

    async def sleep(seconds):
        assert seconds > 0
        now[0] += seconds

    async def work():
        line = pace.Pace(limit, clock=lambda: now[0])
        for gap, amount in amounts:
            now[0] += gap
            await line.take(amount)
            booked.append((now[0], min(amount, limit)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace.asyncio, "sleep", sleep)
        asyncio.run(work())
    for begin, _ in booked:
        assert sum(amount for at, amount in booked if begin <= at < begin + 60.0) <= limit


def test_a_booking_may_turn_out_smaller():
    async def work():
        line = pace.Pace(10, window=3600.0)
        entry = await line.take(10)
        entry[1] = 1
        await asyncio.wait_for(line.take(9), 30)

    asyncio.run(work())


def test_a_question_that_cannot_be_encoded_cleanly_is_still_utf_8():
    with replying(said()) as server:
        using(server, lambda endpoint: endpoint.complete([{"role": "user", "content": "a\ud800b\x00"}]))
        assert json.loads(server.seen[0].data)["messages"][0]["content"] == "a?b\x00"
