"""A judge is asked until it answers in its form, for so long and so often; what it does not judge is dropped."""

import asyncio
import json
import time

import pytest
from fake_server import Reply, nobody, replying, said
from hypothesis import given
from hypothesis import strategies as st

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.judge import JudgeClient, quoted
from palaestra.endpoint.reply import ChatCompletion
from palaestra.errors import Broken, ConfigError, UsageError

QUESTION = [{"role": "user", "content": "Is it right?"}]


def served(*servers, read=int, **options):
    """A judge of a number, on these servers."""
    config = {"model": "judge", "patience": 0.2, "backoff": 0.01, "api_key_env": ""}
    urls = [server if isinstance(server, str) else server.url for server in servers]
    return JudgeClient([Endpoint(EndpointConfig(url, **config)) for url in urls], read, **options)


def verdict(judge, times=1):
    async def all_of_them():
        return [await judge.ask(QUESTION) for _ in range(times)]

    try:
        return asyncio.run(all_of_them())
    finally:
        judge.close()


def test_f38_an_answer_that_cannot_be_read_is_asked_for_again_and_told_why():
    with replying(said("quite right"), said(""), said("2")) as server:
        judge = served(server)
        assert verdict(judge) == [2]
    assert (judge.counts.read, judge.counts.unreadable, judge.counts.dropped) == (1, 2, 0)
    first, second, third = server.questions
    assert first["messages"] == QUESTION and {one["temperature"] for one in server.questions} == {0.0}
    assert second["messages"][:2] == [*QUESTION, {"role": "assistant", "content": "quite right"}]
    assert "invalid literal" in second["messages"][2]["content"] and len(third["messages"]) == 3


def test_f38_what_is_never_answered_readably_is_broken_and_counted():
    with replying(said("high")) as server:
        judge = served(server, tries=3)
        with pytest.raises(Broken, match=r"no readable answer in 3 tries.*'high'"):
            verdict(judge)
    assert (judge.counts.dropped, judge.counts.unreadable, len(server.questions)) == (1, 3, 3)
    with replying(said("2", finish="length")) as server, pytest.raises(Broken, match="cut off at 1200 tokens"):
        verdict(served(server))


def test_f29_a_dead_server_costs_no_verdict_and_is_left_alone_for_a_while():
    with replying(said("1")) as server, nobody() as dead:
        judge = served(dead, server)
        assert verdict(judge, times=3) == [1, 1, 1]
    assert judge.counts.failed == 1
    with nobody() as dead, pytest.raises(Broken, match="no connection"):
        verdict(served(dead, dead))
    with (
        replying(Reply(b"<html>hello</html>")) as server,
        pytest.raises(UsageError, match="HTML"),
    ):  # No question will ever be answered there.
        verdict(served(server))


class Slow:
    """A model in this process."""

    def __init__(self, seconds):
        self.seconds, self.asked, self.most = seconds, 0, 0

    async def complete(self, messages, *, max_tokens, temperature):
        self.asked += 1
        self.most = max(self.most, self.asked)
        await asyncio.sleep(self.seconds)
        self.asked -= 1
        return ChatCompletion("3")

    async def check(self):
        pass

    async def aclose(self):
        pass


def test_a_judge_that_is_too_slow_is_given_up_at_its_deadline():
    judge, began = JudgeClient([Slow(60.0)], int, deadline=0.2), time.monotonic()
    with pytest.raises(Broken, match=r"within 0\.2 s"):
        verdict(judge)
    assert time.monotonic() - began < 30 and judge.counts.dropped == 1


def test_questions_go_to_the_server_with_the_fewest():
    servers = [Slow(1.0), Slow(1.0)]
    judge = JudgeClient(servers, int)

    async def many():
        return await asyncio.gather(*(judge.ask(QUESTION) for _ in range(12)))

    assert asyncio.run(many()) == [3] * 12
    judge.close()
    assert [one.most for one in servers] == [6, 6]


@given(st.text(max_size=20) | st.text('<>`"\\/\n\u2028{}a', max_size=20))
def test_quoted_text_is_one_line_that_closes_nothing_and_loses_nothing(text):
    line = quoted(text)
    assert line.isprintable() and not set("<>`") & set(line)
    assert json.loads(line) == text


def test_a_judge_without_servers_or_tries_is_refused():
    for servers, options in (([], {}), ([Slow(0)], {"tries": 0}), ([Slow(0)], {"deadline": 0})):
        with pytest.raises(ConfigError, match="expected at least one server"):
            JudgeClient(servers, int, **options)
