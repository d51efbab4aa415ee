"""`format` is an option of every environment and game, whatever its constructor takes."""

import gymnasium
import pettingzoo
import pytest
import worlds

import palaestra
from palaestra import formats
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs.arena.opening import open_machine
from palaestra.envs.checks.check import check
from palaestra.envs.suite.solver_critic import SolverCritic
from palaestra.envs.suite.two_hop import TwoHop
from palaestra.episode import Start
from palaestra.errors import ConfigError
from palaestra.registry import chosen_format

ENVS = ["palaestra/Arithmetic-v0", "palaestra/Calculator-v0", "palaestra/TwoHop-v0"]
GAME = "palaestra/solver_critic_v0"
DIALECTS = ["llama3", "qwen3_coder", "mistral", "auto"]


class Tagged(worlds.Plain):
    """Its author chose a format."""

    format = "tags"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("env_id", [*ENVS, GAME])
def test_a_demonstrators_calls_are_said_as_the_environment_reads_them(arena, env_id, dialect):
    opened = arena(env_id, 4, format=dialect)
    agent = Agent(ScriptedPolicy(palaestra.demonstrator(env_id), format=dialect))
    seats = getattr(opened, "seats", ()) or (None,)
    starts = [Start(task, task, seat=seat) for task in range(2) for seat in seats]
    for episode in play(agent, opened, starts):
        assert episode.parts["success"] == 1.0
        assert episode.attempt.calls
        turn = next(m["content"] for m in episode.attempt.messages if m["role"] == "assistant")
        assert ("<tool_call>{" in turn) is (dialect == "auto")


def test_partners_of_one_seat_speak_the_games_format(arena):
    opened = arena(GAME, 1, seat="critic_0", format="llama3")
    agent = Agent(ScriptedPolicy(palaestra.demonstrator(GAME), format="llama3"))
    # The solver was right at once, so its call was read.
    assert [dict(e.parts) for e in play(agent, opened, [Start(3, 0)])] == [{"success": 1.0, "first": 1.0}]


@pytest.mark.parametrize("dialect", ["llama3", "glm", "deepseek"])
def test_a_hint_shows_the_format_that_is_read(dialect):
    env = gymnasium.make(ENVS[0], format=dialect).unwrapped
    env.reset(seed=0)
    broken = {"llama3": '<|python_tag|>{"name"', "glm": "<tool_call>python", "deepseek": "<｜tool▁call▁begin｜>x"}
    assert formats.get(dialect).EXAMPLE in env.step(broken[dialect])[0]
    assert env.call("python", code="1").startswith(formats.get(dialect).EXAMPLE[:5])
    env.close()


def test_every_way_in_takes_it_and_refuses_a_name_that_is_none():
    opening = (
        lambda name: gymnasium.make(ENVS[2], format=name).unwrapped.author,
        lambda name: pettingzoo.make("aec", GAME, format=name).machine.spec.author,
        lambda name: open_machine(GAME, {"format": name}).spec.author,
        lambda name: TwoHop(format=name),
        lambda name: SolverCritic(format=name),
    )
    for way in opening:
        assert way("glm").format == "glm"
        assert way(formats.DEFAULT).format == formats.DEFAULT
    for way in (*opening, lambda name: palaestra.arena(ENVS[0], 1, format=name),
                lambda name: palaestra.arena(GAME, 2, format=name)):  # fmt: skip
        with pytest.raises(ConfigError, match="did you mean 'llama3'"):
            way("lama3")


def test_the_class_the_registration_and_the_options_choose_in_that_order():
    palaestra.register("test/Tagged-v0", f"{__name__}:Tagged")
    assert chosen_format("test/Tagged-v0", {}) == "tags"
    assert chosen_format("test/Tagged-v0", {"format": "glm"}) == "glm"
    palaestra.register("test/Tagged-v0", f"{__name__}:Tagged", format="fence")
    assert chosen_format("test/Tagged-v0", {}) == "fence"
    assert open_machine("test/Tagged-v0", {}).spec.author.format == "fence"
    assert [chosen_format(env_id, {}) for env_id in (*ENVS, GAME)] == [None] * 4


def test_a_branch_reads_what_its_environment_reads():
    env, other = (gymnasium.make(ENVS[2], format=name).unwrapped for name in ("llama3", "glm"))
    env.reset(seed=1)
    env.step(env.call("search", query="Deka born"))
    here, (child,) = env.snapshot(), env.fork(1)
    other.restore(here)
    for branch in (child, other):
        branch.step(branch.call("search", query="Deka born"))
        assert [call.name for call in branch.attempt.calls] == ["search"] * 2


class Coded(TwoHop):
    """Its author chose a format, and its demonstrator writes hermes as all do."""

    format = "qwen3_coder"


def test_a_class_that_chose_is_checked_and_demonstrated_in_its_format():
    palaestra.register("test/Coded-v0", f"{__name__}:Coded", demonstrator="palaestra.envs.suite.two_hop:demonstrate")
    assert [finding for finding in check("test/Coded-v0") if not finding.passed] == []
