"""Trackers hear every step of a run once, however often it is interrupted, and whatever fails in them it goes on."""

import importlib
import sqlite3
import struct
import time

import pytest
from families import random_agent
from going import run_of

from palaestra import UsageError
from palaestra.errors import MissingExtra
from palaestra.trainers.run import tracking
from palaestra.trainers.run.folder import Run
from palaestra.trainers.training import train

TOLD = [(0, "eval"), (1, "step"), (2, "eval"), (2, "step"), (3, "eval"), (3, "step")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_agent(tmp_path_factory.mktemp("model") / "random")


class Heard:
    """A tracker that keeps what it is told; or fails."""

    def __init__(self, heard=None):
        self.heard = heard

    def log(self, step, figures):
        if self.heard is None:
            raise ConnectionError("no route to host")
        assert all(isinstance(value, int | float) for value in figures.values())
        self.heard.append((step, "eval" if "eval/success" in figures else "step"))

    def close(self):
        if self.heard is None:
            raise OSError("closed")


def go(folder, config=None, steps=None):
    """Take a run so many steps, or to its end; returns its notes."""
    notes = []
    with Run.reopened(folder, config) if (folder / "config.json").exists() else Run(folder, config) as run:
        stage = train(run, on_progress=lambda progress: notes.append(progress.note))
        for taken, _ in enumerate(stage, start=1):
            if taken == steps:
                stage.close()
                break
    return notes


def test_each_step_is_told_once_though_the_run_is_killed_and_a_tracker_comes_late(tmp_path, model, monkeypatch):
    heard, late = [], []
    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", lambda *_: Heard(heard))
    monkeypatch.setitem(tracking.TRACKERS, "trackio", lambda *_: Heard(late))
    run, options = tmp_path / "run", {"eval_steps": 2, "checkpoint_every": 1, "eval_tasks": 1, "steps": 3}
    go(run, run_of(model, track=("tensorboard",), **options), steps=1)
    go(run, run_of(model, track=("tensorboard",), **options), steps=2)
    for path in (run / "checkpoints").iterdir():  # Steps that were told of come again.
        if path.name > "step-000001":
            path.rename(tmp_path / path.name)
    go(run, run_of(model, track=("tensorboard", "trackio", "tensorboard"), **options))
    assert sorted(heard) == sorted(late) == TOLD


def test_a_tracker_that_fails_is_left_out_with_one_note_and_the_run_goes_on(tmp_path, model, monkeypatch):
    heard = []
    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", lambda *_: Heard())
    monkeypatch.setitem(tracking.TRACKERS, "trackio", lambda *_: Heard(heard))
    notes = go(tmp_path / "run", run_of(model, track=("tensorboard", "trackio"), steps=2))
    assert [note for note in notes if "tensorboard" in note] == [
        "tensorboard failed and gets no more of this run (ConnectionError: no route to host); the run goes on"
    ]
    assert sorted(heard) == [(0, "eval"), (1, "step"), (2, "eval"), (2, "step")]
    assert Run.read(tmp_path / "run").finished


def test_an_absent_or_broken_library_is_refused_before_anything_is_made(tmp_path, model, monkeypatch):
    def broken(*_):
        raise PermissionError("no")

    config = run_of(model, track=("tensorboard",))
    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", broken)
    with pytest.raises(UsageError, match="--track tensorboard: it cannot be opened: PermissionError: no"):
        go(tmp_path / "run", config)
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'palaestra\[tensorboard\]'"):
        go(tmp_path / "run", config)
    assert not (tmp_path / "run" / "before.json").exists()


def of_tensorboard(folder):
    event_accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return [(one.step, one.value) for one in found.Scalars("reward")]


def of_trackio(folder):
    where = importlib.import_module("trackio.utils").TRACKIO_DIR / "palaestra.db"
    query = "select step, json_extract(metrics, '$.reward') from metrics where run_name like ? order by id"
    with sqlite3.connect(where) as database:
        return database.execute(query, (f"{folder.name}-%",)).fetchall()


def of_wandb(folder):
    """Its file is a header of 7 bytes and records, each behind its checksum, length and kind."""
    records, found = importlib.import_module("wandb.proto.wandb_internal_pb2"), []
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        content, at = path.read_bytes(), 7
        while at < len(content):
            _, length, kind = struct.unpack_from("<IHB", content, at)
            assert kind == 1, "whole in one block"
            record = records.Record.FromString(content[at + 7 : at + 7 + length])
            at += 7 + length
            values = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            if values:
                found.append((int(values["step"]), float(values["reward"])))
    return found


@pytest.mark.parametrize(
    ("name", "told"), [("tensorboard", of_tensorboard), ("trackio", of_trackio), ("wandb", of_wandb)]
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.prove
def test_what_a_library_wrote_on_this_machine_is_each_step_once(tmp_path, monkeypatch, capsys, name, told):
    """Closed and opened again in the middle, as by a run that goes on."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # Where it is not imported yet.
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = tmp_path / "one"
    run.mkdir()
    for steps in ((1, 2), (3,)):
        tracker = tracking.TRACKERS[name](run, "abcd1234", {"seed": 0})
        for step in steps:
            tracker.log(step, {"reward": step / 2})
        tracker.close()
        time.sleep(1.1)  # wandb names its files by the second.
    assert told(run) == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert capsys.readouterr().out == ""
