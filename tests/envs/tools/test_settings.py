"""The settings of a toolkit's class are looked at when it is made: what is wrong is told to its author, at once."""

import pytest

from palaestra import EnvironmentDefect
from palaestra.envs.sandboxes import Limits
from palaestra.envs.tools.python import CodeInterpreter, Python
from palaestra.envs.tools.shell import Shell


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"limits": {"seconds": 1}}, r"Kit.limits is {'seconds': 1}; expected Limits, as in Limits\(seconds=5\)"),
        ({"limits": None}, "Kit.limits is None; expected Limits"),
        ({"max_calls": 0}, "Kit.max_calls is 0; expected a whole number above 0"),
        ({"max_calls": True}, "Kit.max_calls is True"),
        ({"max_calls": 2.5}, "Kit.max_calls is 2.5"),
        ({"max_seconds": -1}, "Kit.max_seconds is -1; expected a number of seconds above 0"),
        ({"max_seconds": float("inf")}, "Kit.max_seconds is inf"),
        ({"stateful": "no"}, "Kit.stateful is 'no'; expected True or False"),
        ({"require": "files"}, r"Kit.require: require is 'files'; expected names in a tuple, \('files',\)"),
        ({"require": ("fly",)}, "Kit.require: no guard is named 'fly'; known: files"),
        ({"require": None}, "Kit.require: require is None; expected names in a tuple"),
        ({"max_call": 3}, "Kit.max_call is no setting; is max_calls meant"),
        ({"show_lst": False}, "Kit.show_lst is no setting; is show_last meant"),
    ],
    ids=str,
)
def test_a_setting_that_would_fail_in_every_call_or_that_nobody_reads_is_refused(settings, said):
    with pytest.raises(EnvironmentDefect, match=said):
        type("Kit", (Python,), settings)


@pytest.mark.parametrize("kit", [Python, Shell, CodeInterpreter])
def test_settings_that_make_sense_and_attributes_of_ones_own_are_taken(kit):
    settings = {
        "limits": Limits(seconds=1), "max_calls": 1, "max_seconds": 0.5, "require": ["files", "memory"],
        "stateful": False, "table": {"a": 1}, "longest_answer": 3, "_max_call": 3, "max_call": lambda self: 3,
    }  # fmt: skip
    made = type("Kit", (kit,), settings)
    assert type("Deeper", (made,), {"max_calls": None, "table": {}}).max_calls is None
    assert type("Computed", (made,), {"max_calls": property(lambda self: 3)})().max_calls == 3
