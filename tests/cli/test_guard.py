"""A guard reads what an agent is about to do: too low a score asks, or stops."""

import io
from contextlib import closing

import pytest
from fake_server import FakeServer, Reply, demonstrated, nobody, said

from palaestra import Ending, Start
from palaestra.agents import Agent, EndpointPolicy, play
from palaestra.cli import main
from palaestra.endpoint import EndpointConfig
from palaestra.errors import UsageError
from palaestra.judging.guard import Guard
from palaestra.registry import arena, demonstrator

ENV = "palaestra/Calculator-v0"


def strict(seen):
    """A reward model that wants the tool to be used."""
    if seen.method == "GET":
        return Reply({"data": []})
    text = seen.asked["messages"][1]["content"]
    return said(f"<critique>Use the tool.</critique><score>{0.9 if 'tool_call' in text else 0.1}</score>")


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_a_turn_with_too_low_a_score_is_held_back_until_it_is_sent_all_the_same(monkeypatch, capsys):
    def played(*lines):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with FakeServer(strict) as server:
            status = main(["play", ENV, "--seed", "1", "--guard-url", server.url])
        return status, capsys.readouterr().out

    status, out = played("It is 7.", "/reward")
    assert status == 0 and "held back: score 0.1, below 0.3. Use the tool." in out and "if the episode were cut" in out
    status, out = played("/send", "It is 7.", "/send", '/call calculator expression="1"')
    assert "no turn is held back" in out and "[answered" in out
    status, out = played('/call calculator expression="1 + 1"')
    assert "held back" not in out and "2" in out
    with nobody() as gone:
        assert main(["play", ENV, "--guard-url", gone]) == 2


@pytest.mark.parametrize(("verdict", "endings"), [("strict", {Ending.LENGTH_LIMIT}), ("none", {Ending.BROKEN})])
def test_an_agent_behind_an_endpoint_is_stopped_before_its_turn_is_carried_out(verdict, endings, caplog):
    rule, guard_says = demonstrator(ENV), strict if verdict == "strict" else lambda seen: said("no idea")
    with (
        FakeServer(demonstrated(lambda messages, rng: rule(messages, rng, 0.0))) as model,
        FakeServer(guard_says) as judge,
        closing(arena(ENV, 2)) as there,
        closing(EndpointPolicy(EndpointConfig(model.url, "m"), guard=Guard(judge.url))) as policy,
    ):
        episodes = list(play(Agent(policy), there, (Start(0, seed) for seed in range(2))))
        assert {one.ending for one in episodes} == endings
        assert sum("held back" in line for line in caplog.messages) == (2 if verdict == "strict" else 0)
        assert all(one.attempt.answer is None for one in episodes)


def test_a_bound_that_holds_nothing_or_everything_back_is_refused():
    for below in (0.0, 1.5):
        with pytest.raises(UsageError, match="from 0 to 1"):
            Guard("http://127.0.0.1:1/v1", below)
