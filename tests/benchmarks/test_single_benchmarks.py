"""The benchmarks of one process, in miniature: they measure, write it down, and fail when a target is missed."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "suite"
ENGINE = (
    "--prompts 2 --rollouts 3 --turns 2 --shortest-turn 2 --longest-turn 6 --result-tokens 3 --hidden 32 --layers 1 "
    "--vocabulary 64 --rounds 1 --prompt-tokens 9 20"
)
FIGURES = [
    ("engine.py", ENGINE, lambda found: [figure["ratio"] for figure in found["figures"]]),
    ("episodes.py", "--episodes 20 --rounds 1", lambda found: list(found["episodes_per_cpu_second"].values())),
]


@pytest.mark.parametrize(("name", "flags", "figures"), FIGURES)
def test_it_measures_and_writes_down_what_it_found_and_with_what(load, tmp_path, name, flags, figures):
    out = tmp_path / "results" / "found.json"
    assert load(name)["main"]([*flags.split(), "--out", str(out)]) in (0, 1)
    record = json.loads(out.read_text())
    assert all(figure > 0 for figure in figures(record))
    assert record["versions"]["torch"]
    assert record["options"]["out"] == "found.json"


@pytest.mark.parametrize(
    ("name", "flags", "limit", "status"),
    [
        ("engine.py", ENGINE, ("TARGETS", {9: 1e9}), 1),
        ("engine.py", f"{ENGINE} --no-targets", ("TARGETS", {9: 1e9}), 0),
        ("episodes.py", "--episodes 4 --rounds 1", ("TARGET", 10**9), 1),
    ],
)
def test_a_missed_target_is_an_error_unless_none_was_asked_for(
    load, tmp_path, capsys, monkeypatch, name, flags, limit, status
):
    main = load(name)["main"]
    monkeypatch.setitem(main.__globals__, *limit)
    assert main([*flags.split(), "--out", str(tmp_path / "found.json")]) == status
    assert "MISSED" in capsys.readouterr().out


def test_both_sides_of_the_engine_sample_what_the_work_says_and_keep_what_it_gives(load):
    script = load("engine.py")
    options = script["Options"](prompts=2, rollouts=3, turns=3, longest_turn=20, hidden=32, layers=1, vocabulary=64)
    model, work = script["build"](options), script["draw"](options, 12)
    assert len({tuple(prompt) for prompt in work.prompts}) == 2
    engine = script["TorchEngine"](model, (), slots=4)
    for rows in (script["play_generate"](model, work), script["play_engine"](engine, work)):
        for row, ids in enumerate(rows):
            place = 12
            assert ids[:place] == work.prompts[row]
            for turn, lengths in enumerate(work.lengths):
                place += lengths[row]
                if turn < 2:
                    assert ids[place : place + 32] == work.results[turn][row]
                    place += 32
            assert len(ids) == place
    assert work.tokens == sum(work.lengths[turn][row] for turn in range(3) for row in range(6))


def test_the_page_of_results_says_what_the_committed_files_say(load, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "results.md"
    emptied = re.sub(
        r"(written by make results -->).*?(<!-- end of)", r"\1\n\2", page.read_text("utf-8"), flags=re.DOTALL
    )
    (tmp_path / "results.md").write_text(emptied, encoding="utf-8")
    assert load("suite")["main"](["--write-only", "--page", str(tmp_path / "results.md")]) == 0
    assert (tmp_path / "results.md").read_text("utf-8") == page.read_text("utf-8") != emptied


def test_a_run_is_measured_again_only_where_its_command_has_changed(load, tmp_path, monkeypatch):
    main = load("suite")["main"]
    kept, changed, missing = main.__globals__["RUNS"][:3]
    figures = json.loads((RESULTS / "runs" / "tiny-TwoHop-v0-0.json").read_text("utf-8"))
    (tmp_path / "runs").mkdir()
    for run, command in ((kept, kept.command), (changed, "palaestra train otherwise")):
        (tmp_path / "runs" / f"{run.name}.json").write_text(json.dumps(figures | {"command": command}))
    played = []
    monkeypatch.setitem(main.__globals__, "CASES", ())
    monkeypatch.setitem(main.__globals__, "RUNS", (kept, changed, missing))
    monkeypatch.setitem(
        main.__globals__, "play_run", lambda run, folder: played.append(run) or figures | {"command": run.command}
    )
    page = tmp_path / "results.md"
    page.write_text((ROOT / "docs" / "results.md").read_text("utf-8"), encoding="utf-8")
    for expected in ([changed, missing], [changed, missing]):  # The second time nothing is left.
        assert main(["--results", str(tmp_path), "--page", str(page)]) == 0
        assert played == expected
    assert f"`{missing.command}` | .29 (.24 to .35)<br>.03" in page.read_text("utf-8")


def test_an_evaluation_of_a_served_model_is_measured_with_what_its_server_saw(load, tmp_path, capsys):
    out = tmp_path / "found.json"
    flags = f"--at-once 4 --episodes 3 --rounds 2 --latency 0.2 --peers nobody --out {out}"
    assert load("evaluation.py")["main"](flags.split()) == 1, "a target that cannot be judged is missed"
    record = json.loads(out.read_text())
    row = record["cases"]["4"]["palaestra, eval"]
    assert row["requests"] == 24 and row["peak"] == 4 and 0 < row["mean"] <= 4
    assert row["cpu_ms"] > 0 and row["wall_ms"] >= 1000 * 3 * 2 * 0.2 / 12
    assert "not installed" in record["missing"]["nobody"]
