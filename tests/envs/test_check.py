"""`palaestra check` finds an author's mistake and says once what to change, at its line; what is sound has none."""

import importlib
import re

import flawed
import gymnasium
import pytest
from checked import RECORDED, failed, findings

import palaestra
from palaestra import UnknownId, UsageError
from palaestra.cli import main as command
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.checks import afresh
from palaestra.envs.checks.check import CHECKS, FOREIGN_CHECKS, OF_GAMES, check
from palaestra.envs.checks.findings import difference, measure
from palaestra.errors import EnvironmentDefect

SINGLE = [name for name, function in CHECKS.items() if function not in OF_GAMES and name != RECORDED]
SOUND = [flawed.Sound, flawed.Guessable, flawed.Generous, flawed.Refusing, flawed.Described, flawed.HandingOut]
WRONG = [
    (flawed.Drawn, "tasks are sound", "take randomness from rng only: Task.answer is"),
    (flawed.SetInTask, "tasks are sound", "SetInTask.task sets self.number; expected a Task that holds all"),
    (flawed.Same, "tasks are sound", "all have the prompt 'What is 1 + 1??'"),
    (flawed.Gridded, "tasks are sound", "Task.data['grid'] is a numpy array"),
    (flawed.Holding, "tasks are sound", "Task.data['thing'] is of type object, which cannot be written"),
    (flawed.NoTurns, "tasks are sound", "NoTurns.max_turns is 0; expected at least 1"),
    (flawed.Undescribed, "tool schemas", "tool 'undescribed' has no description"),
    (flawed.Anything, "tool schemas", "the parameter 'what' of tool 'show' takes anything"),
    (flawed.Forgetful, "splits disjoint", "Forgetful(split='eval') has the split 'train'"),
    (flawed.Narrow, "splits disjoint", "test/Narrow-v0 takes no option 'split'; an __init__ of its own hands on"),
    (flawed.Answerless, "tasks can be judged", "has neither answer nor data"),
    (flawed.Capital, "tasks can be judged", "such as 'City"),
    (flawed.Misspelt, "settings are known", "Misspelt.max_turn is set, and nobody reads it; is 'max_turns' meant?"),
    (flawed.Lengthened, "settings are known", "Lengthened.system_prompt is set, and nobody reads it; is 'system'"),
]  # fmt: skip
"""One mistake is one failure, with its name."""


@pytest.mark.parametrize("cls", SOUND)
def test_what_keeps_its_promises_has_no_findings(cls):
    found = findings(cls)
    assert [one.name for one in found] == SINGLE
    assert [one for one in found if not one.passed or (one.message and not one.skipped)] == []


@pytest.mark.parametrize(("cls", "name", "said"), WRONG)
def test_one_mistake_is_one_failure_with_its_name(cls, name, said):
    found = failed(cls)
    assert found.keys() == {name}
    assert said in found[name]


def test_an_attribute_that_resembles_a_setting_and_is_read_is_no_mistake():
    assert failed(flawed.Reading, "settings are known") == {}


def test_prompts_in_both_splits_fail_and_few_prompts_or_worlds_are_said():
    assert "1 prompts are in both splits" in failed(flawed.Leaky, "splits disjoint")["splits disjoint"]
    (few,) = findings(flawed.Few, "splits disjoint")
    assert few.passed
    assert not few.skipped
    assert "train has 6 different prompts in 6 tasks, few enough to learn by heart" in few.message
    assert "eval has 6 different prompts in 6 tasks: however many episodes are played" in few.message
    assert "success on eval is uncertain by 40 points" in few.message
    assert "6 of the 6 different Task.data of eval are in train too" in few.message


# Can it be won?


def test_an_answer_that_is_no_text_and_compared_with_text_is_found():
    for cls, kind in ((flawed.Whole, "int"), (flawed.WholeOfNumpy, "int64"), (flawed.Fraction, "float")):
        said = failed(cls, "tasks can be judged", demonstrator=flawed.unable)["tasks can be judged"]
        assert re.search(rf"is {kind} \d+\S* and attempt.answer is text; compare with str", said)


def test_what_is_not_judged_by_what_is_said_is_no_failure_and_not_called_ok():
    for cls in (flawed.ByTests, flawed.ByCalls):
        (found,) = findings(cls, "tasks can be judged")
        assert found.skipped
        assert "a demonstrator would show" in found.message


def test_a_demonstrator_shows_that_it_can_be_won():
    assert "tasks can be judged" in failed(flawed.Backwards)
    assert failed(flawed.Backwards, demonstrator=flawed.backwards) == {}
    assert not any(found.skipped for found in findings(flawed.Sound, demonstrator=flawed.adds_with_the_tool))
    ((name, said),) = failed(flawed.Sound, demonstrator=flawed.unable).items()
    assert name == "demonstrator succeeds"
    assert said.startswith("its demonstrator succeeds in 0%; expected 90%; in task train/")
    (skipped,) = findings(flawed.Sound, "demonstrator succeeds")
    assert skipped.skipped


# One fault, once.


def line_of(function, further=1):
    code = function.__code__
    return f"({code.co_filename}, line {code.co_firstlineno + further}, in {code.co_name})"


@pytest.mark.parametrize(
    ("cls", "said", "place"),
    [(flawed.Undeclaring, "'bonus', which is not declared", line_of(flawed.Undeclaring.reward, 0)),
     (flawed.NotANumber, "success = nan", line_of(flawed.NotANumber.reward, 0)),
     (flawed.Raising, "KeyError: 'key'", line_of(flawed.Raising.reward, 0)),
     (flawed.Asserting, "AssertionError: ", line_of(flawed.Asserting.reward)),
     (flawed.NotStarting, "did not start: ConnectionError: no server", line_of(flawed.Unreachable.start))],
)  # fmt: skip
def test_a_fault_is_told_once_and_at_its_authors_line(cls, said, place):
    found = findings(cls)
    assert [finding.name for finding in found] == SINGLE
    (told,) = (finding for finding in found if not finding.passed)
    assert said in told.message
    assert place in told.message
    unreached = [finding for finding in found if finding.skipped and finding.message.startswith("not reached")]
    assert len(unreached) >= 7
    assert all(repr(told.name) in finding.message for finding in unreached)


def test_faults_that_differ_are_told_each():
    assert failed(flawed.UndescribedRaising).keys() == {"gymnasium contract", "tool schemas"}
    assert failed(flawed.RaisingTwice).keys() == {"hostile turns", "unanswered episodes are scored"}
    assert "hostile turns" in failed(flawed.Uncomfortable, "hostile turns")
    assert "attempt.answer is None there" in failed(flawed.Expecting)["unanswered episodes are scored"]


def test_what_breaks_beside_others_only_is_told_for_what_it_is():
    ((name, said),) = failed(flawed.NotBesideOthers, demonstrator=flawed.looks).items()
    assert name == "arena equals single"
    assert "ended broken" in said
    assert "too many look at once" in said


def test_the_first_difference_is_found_in_depth():
    one = {"task": palaestra.Task("?", data={"facts": [1, (2, 3)], "other": 1})}
    other = {"task": palaestra.Task("?", data={"facts": [1, (2, 4)], "other": 2})}
    assert difference(one, one) == ""
    assert difference(one, other) == "task.data['facts'][1][1] is 3 and 4"
    assert difference([1], [1, 2], "calls") == "calls is [1] and [1, 2]"


# A reward sees the attempt alone.


@pytest.mark.parametrize(
    ("cls", "demonstrator", "said"),
    [(flawed.Peeking, flawed.adds, "reward reads self.problem, which is not there later: a reward sees the attempt"),
     (flawed.ByState, flawed.adds_with_the_tool, "'success'] is 1.0 and 0.0, first as it was played and then from"),
     (flawed.ByDesk, flawed.adds_with_the_tool, "reads self.desk, which is not there later; state set in a tool dies"),
     (flawed.Promising, flawed.adds, "the part 'style' is declared and was never returned")],
)  # fmt: skip
def test_a_reward_that_sees_more_than_the_attempt_is_found(cls, demonstrator, said):
    assert said in failed(cls, RECORDED, demonstrator=demonstrator)[RECORDED]


def test_declared_final_state_goes_through_a_record_and_a_fresh_process():
    assert failed(flawed.ByFinal, RECORDED, demonstrator=flawed.adds_with_the_tool) == {}
    (noted,) = findings(flawed.Unpaid, RECORDED)
    assert noted.passed
    assert "'style'" in noted.message


def test_what_no_other_process_can_import_is_skipped():
    with pytest.raises(afresh.Skipped, match="put it into a module"):
        afresh.recomputed("__main__:Mine", {}, [])


def test_toolkits_that_are_no_classes_are_refused_by_name():
    absent = flawed.Unreachable
    for given, said in (
        (absent, "expected a tuple of toolkit classes, or of functions that make toolkits"),
        ([absent()], "expected a tuple of toolkit classes, or of functions that make toolkits"),
        (("Absent",), "expected a tuple of toolkit classes, or of functions that make toolkits"),
    ):
        with pytest.raises(EnvironmentDefect, match=re.escape(said)):
            spec_of(type("Naming", (flawed.Sound,), {"toolkits": given})())


# What others wrote.


def of_others(cls):
    env_id = f"test/{cls.__name__}-v0"
    gymnasium.register(env_id, entry_point=f"flawed:{cls.__name__}")
    found = check(env_id)
    assert [one.name for one in found] == list(FOREIGN_CHECKS)
    return {one.name: one.message for one in found if not one.passed}


def test_a_text_environment_of_others_is_checked_too(monkeypatch):
    monkeypatch.setattr("palaestra.envs.checks.trials.MAX_STEPS", 100)
    assert of_others(flawed.Echo) == {}
    assert all(one.passed for one in check("test/Echo-v0", {"success_at": 1})), "its constructor takes no success_at"
    assert "take all randomness from reset(seed=)" in of_others(flawed.Noisy)["determinism"]
    assert "step raised on a text of the agent's (Error: the" in of_others(flawed.Throwing)["hostile turns"]
    assert "goes on after 100 turns; it has to end" in next(iter(of_others(flawed.GoingOn).values()))
    with pytest.raises(UsageError, match=r"CartPole-v1 observes Box.*expected text in both"):
        check("CartPole-v1")
    with pytest.raises(UnknownId, match="palaestra/TwoHop-v0"):
        check("palaestra/TwoHops-v0")


# The command.


def test_what_is_not_installed_is_skipped_and_nothing_fails(monkeypatch, capsys):
    palaestra.register("test/Uninstalled-v0", "flawed:Uninstalled")
    monkeypatch.setattr("palaestra.cli.check.registered", lambda: ["test/Uninstalled-v0"])
    monkeypatch.setattr("palaestra.cli.check.games", list)
    assert command(["check", "--all"]) == 0
    assert command(["check", "test/Uninstalled-v0"]) == 2  # Whoever names it wants it.
    out = " ".join(capsys.readouterr().out.split())
    assert "skip not installed its sandbox needs docker, which is not installed: pip install 'palaestra[docker]'" in out
    assert "all passed not checked, for they are not installed: test/Uninstalled-v0" in out
    assert "FAIL" not in out
    (skipped,) = findings(flawed.Ungraded, "tasks can be judged")
    assert (skipped.passed, skipped.skipped) == (True, True)
    assert "pip install 'palaestra[math]'" in skipped.message


def test_all_registered_environments_are_checked_with_all(monkeypatch, capsys):
    import palaestra.cli.check as page

    monkeypatch.setattr("palaestra.envs.checks.check.check", lambda env_id, options, report: [])
    monkeypatch.setattr(page, "games", list)
    monkeypatch.setattr(page, "registered", lambda: ["palaestra/Calculator-v0", "palaestra/TwoHop-v0"])
    for typed in (["--all"], [], ["--all", "two-hop"]):
        assert command(["check", *typed]) == 0
        out = capsys.readouterr().out
        assert out.count("palaestra/Calculator-v0") == out.count("palaestra/TwoHop-v0") == 1
    assert command(["check", "two-hop"]) == 0
    assert "Calculator" not in capsys.readouterr().out


def test_a_class_that_is_wrong_is_an_error_in_check_too(tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong_world.py").write_text(
        "import palaestra\nfrom palaestra.envs import Task, ToolEnv, tool\n"
        "palaestra.register('test/Wrong-v0', 'wrong_world:Wrong')\n"
        "class Wrong(ToolEnv):\n    def task(self, rng):\n        return Task('?', answer='x')\n"
        "    @tool\n    def look(self, where) -> str:\n        'Look.'\n        return where\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvironmentDefect, match="'where' has no type"):
        importlib.import_module("wrong_world")
    assert command(["check", "wrong_world:test/Wrong-v0"]) == 2
    assert "'where' has no type" in " ".join(capsys.readouterr().err.split())


def test_what_breaks_two_checks_is_met_by_no_third():
    ran = []

    def breaking(subject):
        ran.append(subject)
        raise palaestra.Broken("its reward could not be computed")

    found = measure(dict.fromkeys(("one", "two", "three"), breaking), "a subject")
    assert len(ran) == 2
    assert [one.passed for one in found] == [False, True, True]
    assert found[2].skipped
