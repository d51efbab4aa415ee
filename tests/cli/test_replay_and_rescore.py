"""`palaestra replay` and `palaestra rescore`: what is printed, what is written, and the exit status."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import refused, run

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.episode import Start
from palaestra.record import Record, read, to_line, write

ENV = "palaestra/Calculator-v0"


@pytest.fixture(scope="module")
def records():
    arena = palaestra.arena(ENV, 4)
    agent = Agent(ScriptedPolicy(palaestra.demonstrator(ENV)))
    found = [Record(ENV, e, {"split": "train"}) for e in play(agent, arena, (Start(n, n, n // 4) for n in range(12)))]
    arena.close()
    return found


@pytest.fixture
def file(tmp_path, records):
    write(tmp_path / "episodes.jsonl", records)
    return tmp_path / "episodes.jsonl"


def test_a_folder_of_episodes_is_read_whole_and_so_is_a_run(tmp_path, records, capsys):
    folder = tmp_path / "run" / "episodes"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        write(folder / f"{name}.jsonl", records[:3])
    for given in (folder, tmp_path / "run"):
        status, out, _ = run(capsys, "replay", given)
        assert (status, out) == (0, "6 identical, 0 different\n")


def test_a_different_episode_and_a_cut_line_are_named_and_the_rest_is_read(tmp_path, records, capsys):
    path = tmp_path / "e.jsonl"
    lie = replace(records[1], episode=replace(records[1].episode, reward=0.125))
    path.write_bytes(to_line(records[0]) + to_line(lie) + b'{"half": ' + b"\n" + to_line(records[2]) + b'{"cut')
    status, out, _ = run(capsys, "replay", path)
    assert status == 1
    assert "e.jsonl, episode 2: reward: recorded 0.125, replayed 1.0" in out.replace("\n", " ")
    assert "line 3: " in out
    assert "line 5: " in out
    assert "2 identical, 1 different, 2 lines are no episodes" in out


def test_an_environment_that_is_not_registered_is_named(tmp_path, records, capsys):
    write(tmp_path / "e.jsonl", [replace(records[0], env_id="palaestra/Calculater-v0")])
    refused(capsys, "did you mean palaestra/Calculator-v0", "replay", tmp_path / "e.jsonl")


@pytest.mark.parametrize("command", [["replay"], ["rescore", "--reward", ENV]])
def test_what_is_not_there_is_a_clear_error(tmp_path, command, capsys):
    refused(capsys, "no episode files", command[0], tmp_path, *command[1:])
    refused(capsys, "cannot be read", command[0], tmp_path / "no.jsonl", *command[1:])


def test_a_reward_of_ones_own_is_found_in_the_current_folder(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "half_reward.py").write_text("def half(attempt):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "new.jsonl"
    status, printed, _ = run(capsys, "rescore", file, "--reward", "half_reward:half", "--out", out)
    assert status == 0
    assert "mean reward, recorded" in printed
    assert "0.500" in printed
    assert "episode 1: 1 -> 0.5" in printed
    assert [record.episode.reward for record in read(out)] == [0.5] * 12


def test_a_reward_that_fails_leaves_no_half_file(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "bad_reward.py").write_text("def bad(attempt):\n    return 'high'\n")
    monkeypatch.chdir(tmp_path)
    refused(capsys, "success = 'high'", "rescore", file, "--reward", "bad_reward:bad", "--out", "new.jsonl")
    assert sorted(path.name for path in Path(tmp_path).glob("*.jsonl*")) == ["episodes.jsonl"]


def test_an_environment_is_named_as_everywhere_else_and_a_file_that_cannot_be_written_is_named(file, capsys):
    assert "higher now" in run(capsys, "rescore", file, "--reward", "calculator")[1]
    for unknown in ("calculater", ":calculater"):
        refused(capsys, "no environment is registered", "rescore", file, "--reward", unknown)
    refused(capsys, "write a function as shop:right,", "rescore", file, "--reward", "shop.right")
    nowhere = file.with_name("absent") / "new.jsonl"
    refused(capsys, "cannot be written", "rescore", file, "--reward", "calculator", "--out", nowhere)


@pytest.mark.parametrize("command", [["replay"], ["rescore", "--reward", ENV]])
def test_a_file_of_another_kind_is_told_in_one_line_and_the_others_are_read(tmp_path, file, command, capsys):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "What is 1 + 1?", "answer": "2"}\n' * 60)
    status, out, _ = run(capsys, command[0], tmp_path / "tasks.jsonl", file, *command[1:])
    assert status == 1
    assert out.count("tasks.jsonl") == 1
    assert "tasks.jsonl: none of its 60 lines is an episode; line 1: " in out
    assert "12" in out


def test_of_many_damaged_lines_the_first_are_told_and_all_are_counted(tmp_path, records, capsys):
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"{}\n" * 15 + to_line(records[0]) + b"{}\n" * 15)
    status, out, _ = run(capsys, "replay", path)
    assert status == 1
    assert [f"e.jsonl, line {line}: " in out for line in (1, 10, 11, 17)] == [True, True, False, False]
    assert "1 identical, 0 different, 30 lines are no episodes" in out


def test_the_rate_of_rescore_is_that_of_the_reward_and_not_of_what_it_loads(tmp_path, records, monkeypatch, capsys):
    """By a clock that they alone move: 100 s to load, a thousandth for each reward."""
    clock = SimpleNamespace(now=0.0, process_time=lambda: clock.now)
    monkeypatch.setattr("palaestra.cli.rescore.time", clock)
    monkeypatch.setitem(sys.modules, "a_clock", clock)
    (tmp_path / "slow_to_load.py").write_text(
        "import sys\n"
        "clock = sys.modules['a_clock']\n"
        "clock.now += 100.0\n"
        "def reward(attempt):\n"
        "    clock.now += 0.001\n"
        "    return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    for count, told in ((3, []), (60, ["1,000"])):
        write(tmp_path / "some.jsonl", (records * 5)[:count])
        _, out, _ = run(capsys, "rescore", "some.jsonl", "--reward", "slow_to_load:reward")
        assert re.findall(r"([\d,]+) episodes a second of CPU", out) == told
        sys.modules.pop("slow_to_load")
