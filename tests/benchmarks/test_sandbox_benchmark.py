"""The sandbox benchmark in miniature: it judges by ratios within rounds, and a wrong output is no figure."""

import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

SCRIPT = "sandbox.py"
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def figures(script, *rounds):
    return script["Figures"]([{"cpu_ms": cpu, "runs_s": 1000 / cpu} for cpu in rounds])


def alone(**changed):
    found = {
        "steps": {"wall_ms": 0.1},
        "forks": {"wall_ms": 9.0},
        "idle": {"idle_bytes": 2e6},
        "live": {"alive": 500},
        "overshoot": {"seconds": 0.1},
        "docker": {"wall_ms": 5.0, "exec_ms": 50.0},
    }
    return found | changed


def judged(script, case, found, **changed):
    return {one["name"]: one for one in script["judge"]({case: found}, alone(**changed), script["Options"]())}


def case(script, program, workers=1):
    return next(one for one in script["cases"]() if (one.program, one.workers) == (program, workers))


@pytest.mark.parametrize(("ours", "met"), [((5.0, 6.4, 40.0), True), ((5.0, 6.6, 6.7), False)])
def test_cpu_is_judged_by_the_median_of_the_ratios_within_rounds(script, ours, met):
    found = {
        script["ONCE"]: figures(script, *ours),
        script["REFERENCE"]: figures(script, 10.0, 10.0, 10.0),
    }
    targets = judged(script, case(script, "print"), found)
    assert targets["print, one at a time: CPU, by a bare subprocess's"]["met"] is met


def test_throughput_is_judged_by_the_best_tool_that_starts_a_python_process(script):
    found = {
        script["ONCE"]: figures(script, 5.0),
        script["REFERENCE"]: figures(script, 100.0),
        ("gem", "tool"): figures(script, 100.0),
        ("skyrl", "tool"): figures(script, 40.0),
    }
    targets = judged(script, case(script, "numpy", 2), found)
    (one,) = [target for name, target in targets.items() if "starts a Python process" in name]
    assert one["found"] == pytest.approx(40.0 / 5.0)
    assert not one["met"]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"steps": {"wall_ms": 0.3}}, "step in a session"),
        ({"forks": {"wall_ms": 16.0}}, "fork of a session"),
        ({"idle": {"idle_bytes": 5e6}}, "bytes of an idle session"),
        ({"live": {"alive": 499}}, "sessions alive at once"),
        ({"overshoot": {"seconds": 0.6}}, "seconds past a time limit"),
        ({"docker": {"wall_ms": 7.0, "exec_ms": 50.0}}, "Docker"),
        ({"docker": {}}, "Docker"),
    ],
)
def test_every_other_target_can_be_missed(script, changed, name):
    found = {script["ONCE"]: figures(script, 1.0), script["REFERENCE"]: figures(script, 1.0)}
    met = judged(script, case(script, "loop"), found)
    assert all(one["met"] for one in met.values())
    missed = [one for one in judged(script, case(script, "loop"), found, **changed).values() if not one["met"]]
    assert [one["name"].startswith(name) for one in missed] == [True]


def test_a_side_measures_runs_and_refuses_a_wrong_output(script, monkeypatch):
    driver = BENCHMARKS / "peers" / "subprocess_programs.py"
    with closing(script["Side"]("subprocess", Path(sys.executable), driver, 120.0)) as bare:
        found = bare.ask("time", way="subprocess", program="print", seconds=0.0)
        assert min(found["cpu_ms"], found["runs_s"]) > 0
        with pytest.raises(script["Lost"], match="KeyError"):
            bare.ask("time", way="subprocess", program="absent", seconds=0.0)
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    with pytest.raises(RuntimeError, match="expected '42'"):
        import_module("programs").check(lambda source: "43", "print")
