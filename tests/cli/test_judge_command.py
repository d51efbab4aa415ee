"""`palaestra judge` labels recorded episodes, and Judge-v0 pays a verdict by its form and its distance to the label."""

import json
from contextlib import closing

import pytest
from fake_server import FakeServer, Reply, said

import palaestra
from palaestra import Start, Status
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.cli import main
from palaestra.episode import Call
from palaestra.judging.annotator import annotated_calls, written
from palaestra.judging.verdict import read_verdict
from palaestra.record import Record, read, write
from palaestra.registry import arena, demonstrator

ENV = "palaestra/TwoHop-v0"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Six episodes, some of which guess."""
    path = tmp_path_factory.mktemp("played") / "episodes.jsonl"
    rule = demonstrator(ENV)
    policy = ScriptedPolicy(lambda messages, rng: rule(messages, rng, 0.5), 3, "hermes")
    with closing(arena(ENV, 3)) as there:
        write(path, [Record(ENV, one) for one in play(Agent(policy), there, (Start(i, i) for i in range(6)))])
    return path


def paid(label, answer, tmp_path):
    (tmp_path / "labels.jsonl").write_text(json.dumps({"prompt": "[1] The agent says:\n| x", "answer": label}) + "\n")
    with closing(palaestra.arena("palaestra/Judge-v0", 1, tasks=str(tmp_path / "labels.jsonl"), split="all")) as there:
        there.begin(0, Start(0, 1))
        there.recv(1, 30.0)
        there.send({0: answer})
        return there.recv(1, 30.0)[0].parts


def test_f30_a_verdict_is_paid_by_its_form_and_its_distance_to_the_label(tmp_path):
    whole = "<think>t</think><critique>c</critique><score>{}</score>"
    for score, label, reward in ((0.4, 0.4, 1.0), (1, 0, 0.1), (0.5, 0.75, 0.775)):
        assert paid(label, whole.format(score), tmp_path)["success"] == pytest.approx(reward)
    for wrong in ("<score>0.4</score>", whole.format("high"), whole.format(1.7), whole.format(0.4)[:-4], "0.4",
                  "<critique>c</critique><think>t</think><score>0.4</score>"):  # fmt: skip
        assert paid(0.4, wrong, tmp_path) == {"success": 0.0, "format": 0.0, "distance": 1.0}


def test_a_rule_labels_episodes_by_what_their_calls_show(recorded, tmp_path):
    labels, shown = tmp_path / "labels.jsonl", tmp_path / "shown.jsonl"
    assert main(["judge", str(recorded), "--out", str(labels), "--demonstrations", str(shown)]) == 0
    rows = [json.loads(line) for line in labels.read_text().splitlines()]
    assert {row["answer"] for row in rows} == {0.5, 1.0}, "a guess, or an answer that was looked up"
    assert [row["answer"] == 1.0 for row in rows] == [bool(one.episode.attempt.calls) for one in read(recorded)]
    with closing(palaestra.arena("palaestra/Judge-v0", 1, tasks=str(labels), split="all")) as there:
        assert there.task_count == 6
    for row, record in zip(rows, read(shown), strict=True):
        said = read_verdict(record.episode.attempt.messages[-1]["content"])
        assert said.whole and said.score == row["answer"] and record.episode.attempt.task.prompt == row["prompt"]


def test_a_teacher_labels_and_what_it_cannot_is_left_out_and_counted(recorded, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    first = []

    def teach(seen):
        if seen.method == "GET":
            return Reply({"data": []})
        prompt = seen.asked["messages"][1]["content"]
        first.append(prompt)
        return said("I cannot" if prompt == first[0] else "<critique>c</critique><score>0.6</score>")

    with FakeServer(teach) as server:
        assert (
            main(["judge", str(recorded), "--out", str(tmp_path / "l.jsonl"), "--url", server.url, "--json", "-"]) == 0
        )
    assert json.loads(capsys.readouterr().out) == {"labelled": 5, "left_out": 1, "teacher": [server.url]}


def test_each_fault_of_an_episode_costs_and_is_told():
    def call(query, status=Status.OK):
        return Call("search", {"query": query}, "Momu" if status is Status.OK else "no", status)

    good = annotated_calls([call("a"), call("b")], "Answer: Momu")
    assert (good.score, good.critique) == (1.0, "") and read_verdict(written(good)) == good
    assert annotated_calls([call("a"), call("a")], "Answer: Momu").score == 0.88
    assert annotated_calls([call("a", Status.BAD_CALL)], "Answer: Momu").score == 0.25
    assert annotated_calls([call("a")], None).score == 0.5
    assert "Look up" in annotated_calls([], "Answer: Momu").critique
