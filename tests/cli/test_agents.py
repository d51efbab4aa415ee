"""Commands open whoever plays in one way: a script, a person, a served model, a model from disk."""

import contextlib
import io
import sys
import threading
from dataclasses import dataclass
from typing import Annotated

import pytest
import tyro
from commands import words
from fake_server import FakeServer, demonstrated, error, nobody

import palaestra
from palaestra import UsageError
from palaestra.agents import EndpointPolicy, HumanPolicy, TokenLimits
from palaestra.cli.agents import AgentOptions, agent_cost, open_agent, token_limits
from palaestra.registry import arena, demonstrator
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.run.saved_config import written_config

ENV = "palaestra/Calculator-v0"


@pytest.fixture(autouse=True)
def no_key_and_no_thread_is_left(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "palaestra-endpoint"] == []


@dataclass(frozen=True)
class Options:
    """As a command has them: the agent's options among its own."""

    env_id: Annotated[str, tyro.conf.Positional]
    agent: Annotated[AgentOptions, tyro.conf.arg(name="")]
    tasks: int = 4


def options(*arguments):
    return tyro.cli(Options, args=[ENV, *arguments])


def evaluated(*arguments):
    """What `palaestra eval` does with them; its report, and what it has cost."""
    from palaestra.trainers.evaluation.evaluate import evaluate

    chosen = options(*arguments)
    with open_agent(chosen.agent, chosen.env_id, slots=2, seed=0) as agent:
        held_out = arena(chosen.env_id, 2, split="eval")
        try:
            report, episodes = evaluate(agent, held_out, tasks=chosen.tasks, limits=TokenLimits())
        finally:
            held_out.close()
    return report, episodes, agent_cost(agent)


def test_options_lie_flat_among_those_of_a_command():
    chosen = options(
        "-m", "demo", "-b", "http://localhost:8000/v1", "-c", "8", "--no-native-tools", "--price-in", "2.5"
    )
    assert chosen.agent.model == "demo"
    assert chosen.agent.base_url == "http://localhost:8000/v1"
    assert chosen.agent.max_concurrent == 8
    assert chosen.agent.native_tools is False
    assert chosen.agent.price_in == 2.5
    long = options("--model", "demo", "--base-url", "http://localhost:8000/v1", "--max-concurrent", "8")
    assert (long.agent.model, long.agent.base_url, long.agent.max_concurrent) == ("demo", chosen.agent.base_url, 8)


def test_eval_measures_a_served_model_and_knows_what_it_cost():
    with FakeServer(demonstrated(demonstrator(ENV))) as server:
        report, episodes, cost = evaluated("-m", "demo", "-b", server.url, "--price-in", "1000000", "--send-seed")
        assert all("seed" in asked for asked in server.questions)
    assert report.success == 1.0
    assert cost["answers"] == sum(episode.attempt.turns for episode in episodes) == 8
    assert cost["cost"] == cost["prompt_tokens"] > 0


def test_a_person_reads_and_writes_the_environments_format(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO("/call calculator expression=1+1\n\n2\n"))
    monkeypatch.setattr(sys, "stderr", shown)
    report, episodes, cost = evaluated("-m", "human", "--tasks", "1")
    assert [call.text for call in episodes[0].attempt.calls] == ["2"]
    assert (report.broken, cost) == (0, None)
    assert "tool (calculator): 2" in shown.getvalue()


def test_a_server_that_is_not_there_is_told_before_anything_is_played():
    with nobody() as url, pytest.raises(UsageError, match=r"cannot be reached"):
        evaluated("-m", "demo", "-b", url)
    with FakeServer(lambda seen: error(401, "no")) as server, pytest.raises(UsageError, match="refused with 401"):
        evaluated("-m", "demo", "-b", server.url)


def test_the_engine_is_closed_when_a_command_fails():
    with FakeServer(demonstrated(demonstrator(ENV))) as server:
        chosen = options("-m", "demo", "-b", server.url)
        with contextlib.suppress(RuntimeError), open_agent(chosen.agent, ENV, slots=1, seed=0) as agent:
            assert isinstance(agent.engine, EndpointPolicy)
            raise RuntimeError
        with pytest.raises(UsageError, match="is closed"):
            agent.engine.check()
    assert agent_cost(agent)["answers"] == 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--price-in", "1"], "--price-in is for a server"),
        (["--no-native-tools"], "--native-tools is for a server"),
        (["-m", "human", "--api-key-env", "X"], "--api-key-env is for a server"),
        (["-b", "http://localhost/v1"], "name one of its models"),
        (["-b", "http://localhost/v1", "-m", "human"], "name one of its models"),
        (["-b", "http://localhost/v1", "-m", "x", "--device", "cpu"], "--device is for a model that is loaded here"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(arguments, match, capsys):
    with pytest.raises((UsageError, SystemExit)) as caught:
        options(*arguments)
    assert match in words(f"{caught.value} {capsys.readouterr().err}")


def test_the_format_is_the_environments_own(monkeypatch):
    from palaestra.envs.suite.calculator import Calculator

    monkeypatch.setattr(Calculator, "format", "mistral")
    with open_agent(AgentOptions(model="human"), f"palaestra:{ENV}", slots=1, seed=0) as agent:
        assert isinstance(agent.engine, HumanPolicy)
        assert agent.engine._form is palaestra.formats.get("mistral")


def test_a_runs_model_is_given_the_tokens_that_it_was_trained_with(tmp_path):
    model = tmp_path / "run" / "checkpoints" / "step-000005" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"max_position_embeddings": 9}')
    assert token_limits(str(model), None, None) == (4096, 23_040)
    (tmp_path / "run" / "config.json").write_text(written_config(tiny_config(ENV)))
    assert token_limits(str(model), None, None) == (72, 256)
    assert token_limits(str(model), 10, None) == (10, 256)
    (tmp_path / "run" / "config.json").write_text("nonsense")
    assert token_limits(str(model), None, 99) == (4096, 99)
    assert token_limits("Qwen/absent", None, None) == (4096, 23_040)
