"""What an environment is told when it is opened: everything it takes is listed, and nothing else is accepted."""

from inspect import signature

import pytest

import palaestra
from palaestra import UsageError
from palaestra.cli import main
from palaestra.envs.core.backends import Where
from palaestra.envs.suite.calculator import Calculator
from palaestra.envs.suite.code_math import CodeMath
from palaestra.options import is_service, options_of, refuse_unknown, services_of
from palaestra.registry import author_class, check_options, registered

ID = "palaestra/CodeMath-v0"
COMMANDS = {
    "play": [],
    "check": [],
    "eval": ["--tasks", "1"],
    "train": ["--run", "RUN"],
    "collect": ["--out", "RUN/e.jsonl"],
}


def test_every_option_is_listed_with_its_default():
    assert options_of(Calculator) == {"split": "'train'", "tasks": "None", "format": "'hermes'"}
    assert {"mode": "'agentic'", "compare": "'value'", "format": "'hermes'"}.items() <= options_of(CodeMath).items()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_lists_the_options_where_one_is_wrong(command, tmp_path, capsys):
    given = [word.replace("RUN", str(tmp_path / "run")) for word in COMMANDS[command]]
    assert main([command, "code-math", *given, "--env-options", "compaer=text"]) == 2
    said = capsys.readouterr().err
    assert "takes no option 'compaer'; it takes split, tasks, mode, compare, sandbox, format" in said
    assert "did you mean 'compare'?" in said
    assert list(tmp_path.rglob("*.json*")) == []


def test_what_the_class_decides_says_how_to_set_it():
    with pytest.raises(UsageError, match=r"takes no option 'max_turns'; .*: set it in a subclass"):
        palaestra.arena(ID, 1, max_turns=3)


class Hermit(Calculator):
    def __init__(self):
        super().__init__()


class Open(Calculator):
    def __init__(self, **options):
        super().__init__()


def test_only_what_a_class_takes_is_accepted_and_one_that_takes_anything_looks_itself():
    with pytest.raises(UsageError, match=r"takes no option 'tasks'; it takes format$"):  # Not one for a subclass.
        refuse_unknown("me/Hermit-v0", Hermit, ["tasks"])
    refuse_unknown("me/Open-v0", Open, ["whatever"])
    check_options(ID, {"ordered": True, "max_workers": 2, "format": "glm", "mode": "direct"})


@pytest.mark.parametrize(("name", "told"), [("code-math", "compare='value'"), ("solver-critic", "seat=None")])
def test_list_shows_the_options_of_one_environment(name, told, capsys):
    assert main(["list", name]) == 0
    said = capsys.readouterr().out
    assert f"    {told}\n" in said
    assert "    split='train'\n" in said
    assert "TwoHop" not in said


@pytest.mark.parametrize("slots", ["4", None, 2.0])
def test_an_arena_of_no_whole_number_of_slots_is_a_usage_error(slots):
    with pytest.raises(UsageError, match="expected how many episodes"):
        palaestra.arena(ID, slots)


class Clinic(Calculator):
    def __init__(self, split: str = "train", level: str = "easy", ward=1, where: Where = "here", **more):
        super().__init__()


@pytest.mark.parametrize(
    ("registered_with", "given", "services"),
    [
        ({}, {"split": "eval", "level": "hard", "ward": 2, "where": "here"}, []),
        ({}, {"where": "there"}, ["where"]),
        ({}, {"where": None}, ["where"]),
        ({"where": "a strong sandbox"}, {"where": "here"}, ["where"]),  # What the class does is less than was chosen.
        ({"where": "a strong sandbox"}, {"where": "a strong sandbox"}, []),
        ({}, {"ward": "http://a.test"}, ["ward"]),  # Its type is not declared.
        ({}, {"level.of": "x", "ray_address": "a.test", "workers": 2}, ["level.of", "ray_address"]),
    ],
)
def test_a_file_decides_no_service_and_no_text_whose_kind_is_not_declared(registered_with, given, services):
    assert list(services_of(Clinic, registered_with, given)) == services


def test_of_other_peoples_environments_a_file_decides_numbers_alone():
    assert list(services_of(None, {}, {"split": "eval", "size": 3, "make": "evil:Env-v0"})) == ["make"]


def test_every_option_of_the_suite_that_takes_a_backend_is_a_service():
    for env_id in registered():
        takes = signature(author_class(env_id)).parameters
        for name in ("sandbox", "judge", "search", "browser", "user", "model", "speech", "files"):
            assert name not in takes or is_service(takes[name].annotation), (env_id, name)
