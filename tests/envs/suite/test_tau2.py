"""Desks of tau2-bench: its tools, policy and tasks, judged by the final database and by what had to be said."""

import json
import sys

import fake_tau2
import pytest
from fake_server import replying, said

import palaestra
from palaestra.envs import TextEnv
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.envs.suite.tau2 import Tau2, domain_of
from palaestra.envs.users import USERS
from palaestra.episode import Episode, Start
from palaestra.errors import MissingExtra, TaskFileError, UsageError
from palaestra.record import Record, from_line, to_line

DESK = "library_desk"
TASKS = fake_tau2.FOLDER / "tasks.json"


@pytest.fixture(autouse=True)
def package(monkeypatch):
    for name, module in fake_tau2.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(USERS, "_shared", {})
    domain_of.cache_clear()
    palaestra.register("palaestra/Tau2-v0", "palaestra.envs.suite.tau2:Tau2")
    yield
    domain_of.cache_clear()


def desk(task, split="train", **options):
    env = TextEnv(Tau2(split, domain=DESK, **options))
    ids = [one.id for one in env.tasks]
    env.reset(seed=0, options={"task": ids.index(task)})
    return env


def renewing(env, *calls, words="You may keep it until 17 May."):
    """The parts of the reward after these renewals and words."""
    for loan, weeks in calls:
        env.step(env.call("renew", loan=loan, weeks=weeks))
    return env.step(words)[4]["parts"]


def test_a_desk_is_judged_by_its_final_database_and_by_what_was_said():
    assert "Renew a loan only" in desk("renew").machine.spec.system[None]
    assert renewing(desk("renew"), ("17", 1), ("17", 1))["success"] == 1.0, "another way to the same state is right"
    for calls, words in (
        ((), "It is due on 17 May."),
        ([("17", 2)], "It is renewed."),
        ([("17", 2), ("18", 1)], "17 May"),
    ):
        assert renewing(desk("renew"), *calls, words=words)["success"] == 0.0
    parts = renewing(desk("renew"), ("17", 2), words="Until the 117 May.")
    assert (parts["db"], parts["communicate"]) == (1.0, 0.0)


def test_calls_and_assertions_are_judged_where_the_task_says_so_from_its_initial_state():
    env = desk("reserved", "eval")
    assert env.step("I am sorry.")[1] == 0.0, "the right call was not made"
    env = desk("reserved", "eval")
    assert json.loads(env.step(env.call("get_loan", loan="18"))[0])["reserved"]
    assert env.step("I am sorry.")[1] == 1.0
    env = desk("note")
    assert json.loads(env.step(env.call("get_loan", loan="17"))[0])["due"] == "9 May"
    assert "Loan not found" in env.step(env.call("renew", loan="99", weeks=1))[0]
    assert env.step("Noted.")[1] == 1.0
    assert renewing(desk("note"), ("17", 1))["env_assertion"] == 0.0


def test_the_model_that_plays_the_user_gets_the_scenario_and_ends_the_talk():
    with replying(said("Renew loan 17, please."), said("###STOP###")) as model:
        env = desk("renew", user={"base_url": model.url, "model": "m"})
        assert env.step("What can I do?")[0] == "Renew loan 17, please."
        here = env.snapshot()
        env.step(env.call("renew", loan="17", weeks=2))
        *_, info = env.step("Until 17 May.")
        assert (info["ending"], info["parts"]["success"]) == ("answered", 1.0)
        env.restore(here)
        assert json.loads(env.step(env.call("get_loan", loan="17"))[0])["due"] == "3 May"
        role = model.questions[0]["messages"][0]["content"]
    assert "You are brief." in role
    assert "Ask until when" in role
    assert "renew(" not in role
    start, attempt = Start(0, 0), info["attempt"]
    options = {"domain": DESK, "user": "script"}
    ended = Episode(start, attempt, (), palaestra.Ending.ANSWERED, 1.0, info["parts"])
    record = from_line(to_line(Record("palaestra/Tau2-v0", ended, options)))
    assert ReplayMachines().replay([record]) is None, "neither the world nor the model is needed"


def test_a_file_in_the_layout_is_played_and_its_bad_rows_are_named(tmp_path):
    rows = json.loads(TASKS.read_text())
    own = tmp_path / "tasks.json"
    own.write_text(json.dumps(rows[:3]))
    assert [task.id for task in TextEnv(Tau2("all", str(own), DESK)).tasks] == ["renew", "reserved", "note"]
    late = {**rows[0], "initial_state": {"message_history": [{"role": "user", "content": "Hello"}]}}
    wrong = {**rows[0], "initial_state": {"initialization_actions": "rm"}}
    for row, message in (
        (rows[3], "is judged by NL_ASSERTION"),
        (late, "begins in the middle"),
        (wrong, "is no task of tau2"),
        ({**rows[0], "evaluation_criteria": {"actions": ["renew"]}}, "expected an object with name and arguments"),
        ({"id": "empty", "user_scenario": {}}, "expected what the user is told"),
    ):
        own.write_text(json.dumps([row]))
        with pytest.raises(TaskFileError, match=message):
            TextEnv(Tau2("all", str(own), DESK)).reset(seed=0)


def test_without_the_package_or_the_domain_it_says_what_to_do(monkeypatch):
    with pytest.raises(UsageError, match="tau2 has no domain 'nowhere'"):
        Tau2(domain="nowhere")
    for name in ("os.path", "../x", ""):
        with pytest.raises(UsageError, match="expected a name such as retail"):
            Tau2(domain=name)
    monkeypatch.setattr(fake_tau2.Library, "user_tools", object())
    with pytest.raises(UsageError, match="the user has tools"):
        Tau2(domain=DESK)
    monkeypatch.setitem(sys.modules, "tau2", None)
    domain_of.cache_clear()
    with pytest.raises(MissingExtra, match="pip install git"):
        Tau2(domain=DESK)
