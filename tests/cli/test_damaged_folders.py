"""Folders and records of strangers: control characters, pipes and deep JSON end no command and move no cursor."""

import os
import signal
from contextlib import closing
from dataclasses import replace

import pytest
from commands import run

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.episode import Start
from palaestra.record import Record, write
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.run.folder import Run

ENV = "palaestra/Calculator-v0"


@pytest.fixture(scope="module")
def honest():
    """One episode of the demonstrator."""
    with closing(palaestra.arena(ENV, 1)) as arena:
        episodes = list(play(Agent(ScriptedPolicy(palaestra.demonstrator(ENV))), arena, [Start(0, 0)]))
    return [Record(ENV, episode, {"split": "train"}) for episode in episodes]


@pytest.fixture
def folder(tmp_path, honest, monkeypatch):
    """A folder with a run that no device can go on with, and an episode in it."""
    monkeypatch.chdir(tmp_path)
    Run.create(tmp_path / "run", replace(tiny_config(ENV), device="none")).close()
    write(tmp_path / "run" / "episodes" / "step-000001.jsonl", honest)
    return tmp_path


@pytest.mark.parametrize("command", ["replay e.jsonl", "analyse e.jsonl", "judge e.jsonl --out labels.jsonl"])
def test_a_name_in_a_record_moves_no_cursor(command, folder, honest, capsys):
    title = "\x1b]0;yours\x07\x1b[2Jpalaestra/Calculator-v0"
    write(folder / "e.jsonl", [replace(honest[0], env_id=title, agent=title)])
    _, out, err = run(capsys, *command.split())
    assert not {"\x1b", "\x07"} & {*(out + err)}


@pytest.mark.parametrize("command", ["view run", "analyse run", "replay run", "audit run", "train --resume run"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "episodes/step-000002.jsonl", "summary.json"])
def test_no_command_waits_for_a_pipe_in_a_folder(command, name, folder, honest, capsys):
    (folder / "run" / name).unlink(missing_ok=True)
    os.mkfifo(folder / "run" / name)

    def waited(*_):
        pytest.fail(f"{command} waits for {name}")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(20)
    try:
        assert "Traceback" not in run(capsys, *command.split())[2]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_json_that_nests_deeper_than_python_reads_is_told_in_one_sentence(folder, capsys):
    for name in ("metrics.jsonl", "summary.json", "seconds.json", "tracking.json", "before.json"):
        (folder / "run" / name).write_text("[" * 200_000)
    for command in ("view run", "analyse run", "train --resume run"):
        assert "Traceback" not in run(capsys, *command.split())[2]
