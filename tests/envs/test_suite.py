"""The suite: every environment is solved by its demonstrator's play and by no guess, and passes our own check."""

import re
from contextvars import ContextVar
from functools import partial

import gymnasium
import pytest
from checked import success

import palaestra
from palaestra import ToolError
from palaestra.envs.checks.cheats import CRASHES
from palaestra.envs.checks.check import CHECKS, OF_GAMES, check
from palaestra.envs.checks.trials import Subject
from palaestra.envs.core.tasks import split_of
from palaestra.envs.rewards.answer import final_answer
from palaestra.envs.suite import arithmetic, two_hop
from palaestra.envs.suite.calculator import safe_eval
from palaestra.envs.suite.demonstrations import solution_of
from palaestra.envs.tools.sandboxed import SandboxedToolkit

QUICK = ("palaestra/Arithmetic-v0", "palaestra/Calculator-v0", "palaestra/TwoHop-v0")
DEMONSTRATED = [
    pytest.param(env_id, marks=() if env_id in QUICK else pytest.mark.prove)
    for env_id in palaestra.registered()
    if Subject(env_id).demonstrator is not None
]
"""The code suite plays hundreds of programs each, which is for `make prove`."""


@pytest.fixture
def impatient(monkeypatch):
    """Hostile programs get a second, where they would get five: they use all of it."""
    run, admit, hostile = SandboxedToolkit.run, SandboxedToolkit.admit, ContextVar("hostile", default=False)

    async def told_apart(kit, program, **options):
        hostile.set((program if isinstance(program, str) else program[-1]) in CRASHES)
        return await run(kit, program, **options)

    monkeypatch.setattr(SandboxedToolkit, "run", told_apart)
    monkeypatch.setattr(SandboxedToolkit, "admit", lambda kit: min(admit(kit), 1.0 if hostile.get() else 60.0))


@pytest.mark.parametrize("env_id", DEMONSTRATED)
def test_tools_win_and_guesses_lose(env_id):
    chance = gymnasium.make(env_id).unwrapped.author.chance
    rule = palaestra.demonstrator(env_id)
    assert success(env_id, rule, 20, split="eval") == 1.0
    assert success(env_id, partial(rule, tool_rate=0.0), 60, split="eval") < 0.1 + 1.5 * chance
    assert 0.2 < success(env_id, partial(rule, tool_rate=0.5), 60, split="eval") < 0.8 + chance / 2


@pytest.mark.parametrize("env_id", [*DEMONSTRATED, pytest.param("palaestra/HumanEval-v0", marks=pytest.mark.prove)])
def test_every_check_passes(env_id, impatient):
    found = check(env_id)
    assert len(found) == len(CHECKS) - len(OF_GAMES)
    assert [finding for finding in found if not finding.passed] == []


def test_two_hop_worlds_share_no_facts_and_no_name_means_two_things():
    env = gymnasium.make("palaestra/TwoHop-v0").unwrapped
    worlds = [env.tasks[index].data["facts"] for index in range(40)]
    for facts in worlds:
        cities = {city for query, city in facts.items() if query.endswith("born")}
        others = [value for query, value in facts.items() if not query.endswith("born")]
        assert len(set(others)) == len(others) == two_hop.CITIES * len(two_hop.RELATIONS)
        assert not cities & set(others)
    assert len({frozenset(facts.items()) for facts in worlds}) == 40
    assert len(set(two_hop.NAMES)) == 64


def test_every_name_of_two_hop_is_asked_about_in_training():
    # Else a held-out question may hold a word that was never learned, and the split measures vocabulary.
    for name in two_hop.NAMES:
        asked = [q.format(relation=r, person=name) for q in two_hop.QUESTIONS for r in two_hop.RELATIONS]
        assert sum(split_of(question) == "train" for question in asked) >= 2


def test_an_answer_counts_bare_or_marked_and_nothing_beside_it():
    assert final_answer("Answer: Kemu") == final_answer(" Kemu ") == "Kemu"
    assert final_answer("It is not Bado.\nAnswer: Kemu\n") == "Kemu"
    assert final_answer("Answer: Bado Answer: Kemu") == "Kemu"
    assert final_answer("Kemu, Bado") == "Kemu, Bado"
    assert final_answer("Answer:") == ""
    assert final_answer(None) is None


def test_two_hop_answers_exact_queries_only():
    env = two_hop.TwoHop()
    env.problem = env.task_set("train")[0]
    person = next(word for word in re.findall(r"\w+", env.problem.prompt) if word in two_hop.NAMES)
    assert env.search(f"{person} born") in two_hop.NAMES
    for query in (person, "born", "", f"{person} mayor", "everything"):
        with pytest.raises(ToolError, match="no result"):
            env.search(query)


def test_arithmetic_demonstrations_are_right_for_every_template():
    env = gymnasium.make("palaestra/Arithmetic-v0").unwrapped
    seen = set()
    for index in range(300):
        task = env.tasks[index]
        expression = solution_of(task.prompt, arithmetic.TEMPLATES)
        assert str(eval(expression)) == task.answer
        seen.add(re.sub(r"\d+", "", task.prompt))
    assert len(seen) == len(arithmetic.TEMPLATES) == 8


@pytest.mark.parametrize(
    "expression",
    ["9**9**9", "2**10000", "1<<9", "__import__('os')", "'a'*9", "(" * 100 + ")" * 100, "9" * 150, "x", "", "1/0",
     "(-8)**0.5", "1e308*10**20*1e308**9", "True+1", "1" * 201, "f(1)", "[1][0]", "0**-1", "\x00"],
)  # fmt: skip
def test_the_calculator_refuses_what_is_no_small_sum(expression):
    with pytest.raises(ToolError):
        safe_eval(expression)


@pytest.mark.parametrize(
    ("expression", "value"), [("23 * 41 + 7", 950), ("-(2**10) // 3 % 7", -342 % 7), ("1/4", 0.25)]
)
def test_the_calculator_computes(expression, value):
    assert safe_eval(expression) == value
