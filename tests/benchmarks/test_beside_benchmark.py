"""The benchmark beside another checkout: it judges by paired ratios, and a difference is not missed by chance."""

import json
from pathlib import Path

import numpy as np
import pytest

SCRIPT = "beside.py"
TINY = "--rounds 2 --seconds 0 --slots 2 --waiting 2 --held 64 --calls 0"
ELSEWHERE = """
import os
for line in ({"versions": {}}, {"checkout": "elsewhere"}):
    os.write(int(os.environ["PALAESTRA_BENCH_ANSWERS"]), (str(line).replace("'", '"') + "\\n").encode())
    input()
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.prove
def test_a_checkout_beside_itself_costs_the_same_and_is_written_down(script, change, tmp_path, capsys):
    change("BOUND", 1e9)
    out = tmp_path / "beside.json"
    assert script["main"]([str(ROOT), *TINY.split(), "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    found = {one["name"]: one for one in record["figures"]}
    assert record["commits"]["here"] == record["commits"]["there"]
    for name, one in found.items():
        assert len(one["ratios"]) == 2
        if "Python calls" in name or "files of ours" in name:
            assert one["ratio"] == 1.0
    assert found["calls in flight, async tool of 50 ms, 2 at once"]["here"] > 1
    assert found["bytes of an environment, idle"]["here"] < found["bytes of an environment, after one turn"]["here"]
    assert "calls in flight, blocking tool of 50 ms, 2 at once" in capsys.readouterr().out


def test_code_that_is_slower_fails_the_run(script, change, tmp_path, capsys):
    (tmp_path / "palaestra").mkdir()
    (tmp_path / "palaestra" / "__init__.py").touch()

    class Fake:
        def __init__(self, name, python, driver, code):
            self.name, self.code = name, code

        def ask(self, verb, **details):
            slow = 1.2 if self.name == "here" else 1.0
            return {"checkout": str(self.code)} if verb == "where" else Answer(slow)

        def close(self):
            pass

    class Answer(dict):
        def __init__(self, slow):
            self.slow = slow

        def __getitem__(self, key):
            return self.slow

    change("Side", Fake)
    asked = [str(tmp_path), "--rounds", "8", "--out", str(tmp_path / "beside.json")]
    assert script["main"](asked) == 1
    assert "MISSED CPU us a step, by hand" in capsys.readouterr().out
    assert script["main"]([*asked, "--no-targets"]) == 0


@pytest.mark.parametrize(
    ("here", "more", "verdict"),
    [
        ([1.04] * 20, False, "met"),
        ([1.06] * 20, False, "MISSED"),
        ([1.06] * 11 + [1.0] * 9, False, "open"),
        ([0.5] * 20, False, "met"),
        ([0.94] * 20, True, "MISSED"),
        ([0.94] * 11 + [1.0] * 9, True, "open"),
        ([2.0] * 20, True, "met"),
    ],
)
def test_a_bound_is_missed_only_where_the_whole_interval_is_beyond_it(script, here, more, verdict):
    row = script["Figure"]("row", "key", "verb", more=more)
    machine = [1.0 + number for number in range(20)]  # Slower and slower: ratios do not see it.
    judged = script["judge"](row, [one * speed for one, speed in zip(here, machine, strict=True)], machine)
    assert judged["verdict"] == verdict
    free = script["Figure"]("row", "key", "verb", more=more, bound=False)
    assert script["judge"](free, here, [1.0] * 20)["verdict"] == "figure"


def test_the_interval_holds_the_median_of_skewed_ratios_as_often_as_it_says(script):
    draws = np.random.default_rng(0).exponential(size=(2000, 20))
    inside = [low <= np.log(2) <= high for low, high in map(script["interval"], draws.tolist())]
    assert 0.95 <= np.mean(inside) <= 0.985
    assert script["interval"]([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_a_folder_without_palaestra_or_another_ones_code_is_refused(script, change, tmp_path, capsys):
    assert script["main"]([str(tmp_path), *TINY.split()]) == 2
    assert "expected the folder of a checkout" in capsys.readouterr().err
    (tmp_path / "palaestra").mkdir()
    (tmp_path / "palaestra" / "__init__.py").write_text("raise ImportError('half a checkout')")
    assert script["main"]([str(tmp_path), *TINY.split(), "--out", str(tmp_path / "beside.json")]) == 1
    assert "half a checkout" in capsys.readouterr().err
    change("DRIVER", tmp_path / "driver.py")
    (tmp_path / "driver.py").write_text(ELSEWHERE)
    assert script["main"]([str(ROOT), *TINY.split(), "--out", str(tmp_path / "beside.json")]) == 1
    assert "palaestra came from elsewhere; expected" in capsys.readouterr().err
