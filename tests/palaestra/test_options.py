"""What an environment is told when it is opened: everything it takes is listed, and nothing else is accepted."""

import pytest

import palaestra
from palaestra import UsageError
from palaestra.cli import main
from palaestra.envs.suite.calculator import Calculator
from palaestra.envs.suite.code_math import CodeMath
from palaestra.options import options_of, refuse_unknown
from palaestra.registry import check_options

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
    assert "is 'compare' meant?" in said
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
