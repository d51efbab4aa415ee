"""A run's folder: never used twice, never half a summary."""

import json
import os

import families
import pytest

from palaestra import MissingExtra, UsageError
from palaestra.trainers.progress import Progress
from palaestra.trainers.report import save_curve, transcript
from palaestra.trainers.run import Run, cpu_seconds, fresh_folder, versions

STEPS = [Progress("grpo", n + 1, 3, {"rewards/success/mean": n / 10, "loss": -0.1}) for n in range(3)]


def finished(folder):
    run, curve = Run(folder), []
    stage = run.recorded(iter(STEPS))
    while True:
        try:
            next(stage)
        except StopIteration as end:
            curve = end.value
            break
    return run.finish({"seed": 1, "curve": curve})


def test_a_run_leaves_its_steps_and_its_summary(tmp_path):
    written = finished(tmp_path / "a" / "b")
    lines = [json.loads(line) for line in (tmp_path / "a" / "b" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": step.step, **step.metrics} for step in STEPS]
    summary = json.loads((tmp_path / "a" / "b" / "summary.json").read_text())
    assert summary == written
    assert summary["curve"] == [0.0, 0.1, 0.2]
    assert summary["versions"]["torch"]
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["metrics.jsonl", "summary.json"]


def test_each_step_is_on_disk_when_it_is_shown(tmp_path):
    stage = Run(tmp_path).recorded(iter(STEPS))
    for number, _ in enumerate(stage, start=1):
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == number


def test_a_folder_with_a_run_is_refused_and_left_as_it_is(tmp_path):
    finished(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with pytest.raises(UsageError, match="already holds a run"):
        Run(tmp_path)
    assert before == {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        Run(tmp_path / "file" / "run")


def test_a_summary_is_whole_or_not_there(tmp_path, monkeypatch):
    def power_cut(*_):
        raise KeyboardInterrupt

    run = Run(tmp_path)
    with pytest.raises(TypeError):
        run.finish({"figure": object()})
    assert not (tmp_path / "summary.json").exists()
    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(KeyboardInterrupt):
        run.finish({"seed": 1})
    assert not (tmp_path / "summary.json").exists()


def test_a_fresh_folder_is_one_that_is_not_there(tmp_path):
    assert fresh_folder("x", tmp_path) == tmp_path / "x"
    for expected in ("x", "x-2", "x-3"):
        folder = fresh_folder("x", tmp_path)
        assert folder == tmp_path / expected
        Run(folder)


def test_processor_seconds_only_grow():
    before = cpu_seconds()
    sum(range(10**6))
    assert cpu_seconds() > before > 0
    assert versions()["python"].startswith("3.")


def test_a_curve_is_drawn(tmp_path):
    save_curve(tmp_path / "curve.png", "title", {"GRPO": [0.1, 0.5], "control": [0.1, 0.1]})
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_install_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'palaestra\[plot\]'"):
        save_curve(tmp_path / "curve.png", "title", {})


def test_a_transcript_moves_no_cursor():
    from dataclasses import replace

    episode = families.an_episode(families.token_row(1, [1]))
    said = ({"role": "assistant", "content": "\x1b[2J\x07a\nb\u202e"},)
    text = transcript(replace(episode, attempt=replace(episode.attempt, messages=said)))
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "answered: success 1 (expected 'Kemu')" in text
