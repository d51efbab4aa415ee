"""The environment benchmark in miniature, without peers: it measures, it judges, and no peer can fool or hang it."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = "envs.py"
ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
TINY = (
    "--curve 1 3 --waiting 2 --latency 0.002 --long-latency 0.003 --uneven-envs 2 --uneven-turns 3 --opened 2 "
    "--idle 64 --rounds 2 --seconds 0 --peers"
)
LYING = """
import sys
sys.path.insert(0, {folder!r})
import drive

class Batch:
    def __init__(self, setting): self.setting = setting
    def begin(self): pass
    def play(self):
        for _ in range(self.setting.envs * 2 if self.setting.way != "idle" else 0): drive.evaluate("2 * 3")
        return self.setting.envs - (self.setting.way == "wrong")
    def close(self): pass

print("a greeting that is no answer")
drive.serve((), {{way: Batch for way in ("right", "wrong", "idle")}})
"""

DYING = """
import os
os.write(int(os.environ["PALAESTRA_BENCH_ANSWERS"]), b'{"versions": {}}\\n')
input()
raise SystemExit("out of memory")
"""


@pytest.fixture
def driver(script, tmp_path):
    """Starts a side whose driver is this text."""
    opened = []

    def start(text, seconds=60.0):
        file = tmp_path / "driver.py"
        file.write_text(text)
        opened.append(script["Side"]("peer", Path(sys.executable), file, seconds))
        return opened[-1]

    yield start
    for side in opened:
        side.close()


def test_it_measures_palaestra_alone_and_writes_it_down(script, tmp_path, capsys):
    out = tmp_path / "results" / "envs.json"
    assert script["main"]([*TINY.split(), "--no-targets", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert len(record["cases"]) == 5
    rows = [(name, row) for case in record["cases"].values() for name, row in case.items()]
    assert {"palaestra, step", "palaestra, async step", "palaestra, blocking step", "palaestra, uneven free"} <= {
        name for name, _ in rows
    }
    for name, row in rows:
        assert name.startswith("palaestra"), name
        assert "lost" not in row
        assert row["wall_us"] > 0
        assert len(row["cpu_us_rounds"]) == (1 if "pool" in name else 2)
    assert record["versions"]["palaestra"]["pydantic"]
    assert "computing tool, 3 at once" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "status"), [((), 1), (("--no-targets",), 0)])
def test_a_missed_target_is_an_error_unless_none_was_asked_for(script, change, tmp_path, capsys, flags, status):
    change("IDLE_BYTES", -(10**9))
    change("cases", lambda options: iter(()))
    out = tmp_path / "envs.json"
    assert script["main"]([*TINY.split(), *flags, "--out", str(out)]) == status
    assert "MISSED bytes of an idle environment" in capsys.readouterr().out
    assert json.loads(out.read_text())["targets"][0]["met"] is False


def figures(script, *rounds):
    return script["Figures"]([dict.fromkeys(("cpu_us", "in_flight", "cpu_s", "bytes"), value) for value in rounds])


def judged(script, envs, latency, found):
    case = script["Case"]("case", envs, latency, 3, tuple(found))
    light = {("palaestra", "step"): figures(script, 0.1)}
    targets = list(script["judge"]({case: found}, light, light, script["Options"]()))
    assert all(one["met"] for one in targets[-2:])  # Making and holding environments.
    return targets[:-2]


def test_ratios_are_the_median_of_those_within_rounds_and_figures_where_no_target_is(script):
    found = {
        ("palaestra", "step"): figures(script, 12.0, 15.0, 90.0),
        ("gem", "sync"): figures(script, 10.0, 10.0, 10.0),
    }
    (one,) = judged(script, 256, 0.0, found)
    assert (one["found"], one["most"], one["met"]) == (pytest.approx(1.5), None, True)
    found["gem", "sync"] = script["Figures"](rounds=[], lost="it died")
    (one,) = judged(script, 256, 0.0, found)
    assert (one["found"], one["met"]) == (None, True)


@pytest.mark.parametrize(("ours", "met"), [((140.0, 150.0, 900.0), True), ((140.0, 151.0, 900.0), False)])
def test_waiting_tools_are_judged_by_the_best_peer_with_a_thread_each(script, ours, met):
    found = {
        ("palaestra", "async step"): figures(script, *ours),
        ("palaestra", "blocking step"): figures(script, 400.0, 400.0, 400.0),
        ("gem", "threads"): figures(script, 300.0, 300.0, 300.0),
        ("skyrl", "threads"): figures(script, 450.0, 450.0, 450.0),
        ("skyrl", "pool"): figures(script, 10.0),
    }
    share, blocking, cpu = judged(script, 1024, 0.05, found)
    assert share["found"] == pytest.approx(ours[1] / 1024)
    assert blocking["found"] == pytest.approx(400 / 450)
    assert cpu["found"] == pytest.approx(ours[1] / 300)
    assert [one["met"] for one in (share, blocking, cpu)] == [True, True, met]
    assert judged(script, 64, 0.05, found)[0]["least"] == 0.88
    alone = {("palaestra", "async step"): figures(script, 1.0), ("palaestra", "blocking step"): figures(script, 1.0)}
    assert [one["met"] for one in judged(script, 1024, 0.05, alone)] == [True, True, False]  # Its peer is not there.


def test_a_peer_that_is_not_installed_is_named_with_its_reason(script, change, tmp_path, capsys):
    (tmp_path / "gem.reason").write_text("ERROR: no matching distribution\n")
    change("INSTALLED", tmp_path)
    change("cases", lambda options: iter(()))
    assert script["main"]([*TINY.split(), "gem", "skyrl", "--no-targets", "--out", str(tmp_path / "envs.json")]) == 0
    shown = capsys.readouterr().out
    assert "gem was not measured: ERROR: no matching distribution" in shown
    assert "skyrl was not measured: not installed; run scripts/peers.py" in shown


def test_palaestra_itself_must_be_measurable(script, change, tmp_path, capsys):
    (tmp_path / "palaestra_side.py").write_text(DYING)
    change("DRIVERS", tmp_path)
    assert script["main"]([*TINY.split(), "--no-targets", "--out", str(tmp_path / "envs.json")]) == 1
    assert "palaestra itself cannot be measured: palaestra has ended: out of memory" in capsys.readouterr().err
    assert not (tmp_path / "envs.json").exists()


def test_a_batch_that_is_not_the_work_is_no_figure(script, driver):
    side = driver(LYING.format(folder=str(BENCHMARKS / "peers")))
    asked = {"envs": 4, "seconds": 0.0}
    assert side.ask("play", way="right", **asked)["cpu_us"] >= 0
    for way, reason in (("wrong", "3 of 4 episodes"), ("idle", "0 calls were run; expected 8"), ("other", "KeyError")):
        with pytest.raises(script["Lost"], match=reason):
            side.ask("play", way=way, **asked)
    assert side.ask("play", way="right", **asked)["batch_s"] > 0  # It goes on.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_of_this_name", "peer has ended: ModuleNotFoundError"),
        ("import os; os.write(int(os.environ['PALAESTRA_BENCH_ANSWERS']), b'hello\\n')", "expected a JSON object"),
        ("import os; os.write(int(os.environ['PALAESTRA_BENCH_ANSWERS']), b'[1]\\n')", "expected a JSON object"),
        ("import time; time.sleep(60)", "gave no answer in"),
    ],
)
def test_a_side_that_does_not_start_is_lost_with_the_reason(script, driver, text, reason):
    with pytest.raises(script["Lost"], match=reason):
        driver(text, 0.5 if "sleep" in text else 60.0)


def test_a_peer_that_dies_midway_is_left_out_and_the_others_go_on(script, driver):
    dying = driver(DYING)
    calls = []
    ask = lambda side, way: side.ask("play") if side is dying else calls.append(way) or {"cpu_us": 1.0}  # noqa: E731
    ways = (("peer", "a"), ("other", "b"), ("absent", "c"))
    found = script["around"]({"peer": dying, "other": object()}, ways, 3, ask)
    assert "out of memory" in found["peer", "a"].lost
    assert len(found["other", "b"].rounds) == len(calls) == 3
    assert ("absent", "c") not in found


def test_every_peer_has_a_driver_and_a_pinned_version(script, load):
    peers = runpy.run_path(str(ROOT / "scripts" / "peers.py"))
    sandbox = load("sandbox.py")["PEERS"]
    assert {*peers["PEERS"]} - {*peers["SHARED"]} == {*script["PEERS"], *sandbox, "verifiers"}
    assert all("==" in requirements[0] for requirements in peers["PEERS"].values())
    for ending, names in (("side", script["PEERS"]), ("programs", ("subprocess", *sandbox)), ("train", ("trl",))):
        assert all((BENCHMARKS / "peers" / f"{name}_{ending}.py").is_file() for name in ("palaestra", *names))


def test_a_peer_that_cannot_be_installed_leaves_its_reason_and_a_later_success_removes_it(tmp_path, monkeypatch):
    peers = runpy.run_path(str(ROOT / "scripts" / "peers.py"))
    commands, outcome = [], ["", "ERROR: no space left on device"]

    def run(*command):
        commands.append(command)
        (tmp_path / "gem" / "bin").mkdir(parents=True, exist_ok=True)
        return outcome[len(commands) % 2 - 1]

    monkeypatch.setitem(peers["make"].__globals__, "FOLDER", tmp_path)
    monkeypatch.setitem(peers["make"].__globals__, "run", run)
    assert peers["make"]("gem") == "not installed: ERROR: no space left on device"
    assert (tmp_path / "gem.reason").read_text() == "ERROR: no space left on device\n"
    assert not (tmp_path / "gem").exists()
    outcome[1] = ""
    assert peers["make"]("gem") == "installed"
    assert not (tmp_path / "gem.reason").exists()
    assert peers["make"]("gem") == "is up to date"
    assert len(commands) == 4
