"""`palaestra judge`: a teacher's verdicts on recorded episodes, as tasks of a judge and as lessons for it."""

import json
from functools import partial

import numpy as np
import pytest
from fake_server import FakeServer, Reply, said

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.cli import main
from palaestra.episode import Start
from palaestra.record import Record, read, write

JUDGE = "palaestra/Judge-v0"


def verdict(score):
    return f"<think>so</think><critique>Look.</critique><score>{score}</score>"


@pytest.fixture
def played(tmp_path):
    """Episodes of a script that guesses half the time, three of each of eight tasks."""
    arena = palaestra.arena("palaestra/TwoHop-v0", 8, ordered=True)
    agent = Agent(ScriptedPolicy(partial(palaestra.demonstrator("palaestra/TwoHop-v0"), tool_rate=0.5)))
    episodes = play(agent, arena, [Start(task, 10 * task + one, task) for task in range(8) for one in range(3)])
    path = tmp_path / "played.jsonl"
    write(path, [Record("palaestra/TwoHop-v0", episode) for episode in episodes])
    arena.close()
    return path


def labels_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_episodes_become_tasks_of_a_judge_and_lessons_for_it(played, tmp_path, capsys):
    out = tmp_path / "labels.jsonl"
    assert main(["judge", str(played), "--out", str(out)]) == 0
    labels = labels_of(out)
    assert len({label["id"] for label in labels}) == len(labels) > 12, "of equal episodes there is one label"
    by_task = {}
    asked = {record.episode.start.task: record.episode.attempt.task.prompt for record in read(played)}
    for label in labels:
        assert asked[int(label["task"].rpartition("/")[2])] in label["prompt"]
        by_task.setdefault(label["task"], set()).add(label["split"])
        assert len(label["peers"]) == sum(one["task"] == label["task"] for one in labels) - 1
    assert all(len(splits) == 1 for splits in by_task.values()), "a task is in one split with all its episodes"
    solved, failed = ([one["answer"] for one in labels if one["outcome"] == how] for how in (1.0, 0.0))
    assert min(solved) > max(failed)
    taught = list(read(tmp_path / "labels.taught.jsonl"))
    assert len(taught) == sum(label["split"] == "train" for label in labels) > 0
    assert {record.episode.reward for record in taught} == {1.0}
    arena = palaestra.arena(JUDGE, 4, tasks=str(out), split="all")
    assert arena.task_count == len(labels)
    arena.close()


def test_labels_of_successes_alone_are_told(played, tmp_path, capsys):
    solved = [record for record in read(played) if record.episode.reward == 1]
    for records, said_so in ((solved, True), (list(read(played)), False)):
        write(tmp_path / "some.jsonl", records)
        assert main(["judge", str(tmp_path / "some.jsonl"), "--out", str(tmp_path / f"labels-{said_so}.jsonl")]) == 0
        assert ("sees no difference" in " ".join(capsys.readouterr().err.split())) is said_so


def test_labels_of_other_episodes_are_refused_and_their_own_are_kept(played, tmp_path, capsys):
    out, some = tmp_path / "labels.jsonl", tmp_path / "some.jsonl"
    whole = {json.dumps(record.episode.attempt.messages): record for record in read(played)}
    write(played, whole.values())
    write(some, list(whole.values())[:-4])
    assert main(["judge", str(some), "--out", str(out)]) == 0
    first = labels_of(out)
    assert main(["judge", str(played), "--out", str(out), "--json", str(tmp_path / "figures.json")]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["new"] == 4
    assert [{**one, "peers": 0} for one in labels_of(out)[:-4]] == [{**one, "peers": 0} for one in first]
    before = out.read_bytes()
    capsys.readouterr()
    write(some, list(whole.values())[5:])
    assert main(["judge", str(some), "--out", str(out)]) == 2
    assert f"labels of other episodes: 5 of {len(whole)}" in " ".join(capsys.readouterr().err.split())
    assert out.read_bytes() == before


def test_a_teacher_that_fails_is_asked_again_the_next_time(played, tmp_path, capsys):
    calls = []

    def teacher(seen):
        if seen.method == "GET":
            return Reply({"data": []})
        calls.append(1)
        return said(verdict(0.4) if len(calls) > 5 else verdict(0.4).replace("<score>", ""))

    out = tmp_path / "labels.jsonl"
    write(tmp_path / "one.jsonl", list(read(played))[:1])
    with FakeServer(teacher) as server:
        asked = ["judge", str(tmp_path / "one.jsonl"), "--out", str(out), "--teacher", server.url]
        assert main(asked) == 1
        assert out.read_text() == ""
        assert main(asked) == 0
    (label,) = labels_of(out)
    assert label["answer"] == 0.4 and "<critique>Look.</critique>" in label["verdict"]


def test_eval_tells_format_error_and_agreement_with_intervals(tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert main(["eval", JUDGE, "--model", "demonstrator", "--tasks", "12", "--json", str(path)]) == 0
    parts = json.loads(path.read_text())["parts"]
    assert parts["format"]["value"] == 1.0 and parts["error"]["value"] == 0.0
    for figure in parts.values():
        assert figure["low"] <= figure["value"] <= figure["high"] and figure["tasks"] == 12
    assert 0.5 < parts["agreement"]["value"] <= 1 and np.isfinite(parts["brier"]["value"])
    assert "agreement" in capsys.readouterr().out
