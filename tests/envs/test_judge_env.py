"""A judge is an agent too: the environment that grades its verdicts."""

from functools import partial

import pytest
from checked import success

import palaestra
from palaestra import UsageError
from palaestra.envs.suite.judge import JudgeEnv, demonstrate
from palaestra.episode import Attempt, Task

JUDGE = "palaestra/Judge-v0"


def graded(text, label=0.75, grade="closeness", **data):
    task = Task("question", label, data=data)
    messages = ({"role": "user", "content": "question"}, {"role": "assistant", "content": text})
    return JudgeEnv(grade=grade).reward(Attempt(task, messages, text, (), 1))


def verdict(score):
    return f"<think>so</think><critique>Look.</critique><score>{score}</score>"


def test_f30_agreement_counts_the_attempts_with_another_outcome_that_are_on_the_right_side():
    peers = [[0.2, 0.0], [0.6, 0.0], [0.5, 0.0], [0.9, 1.0]]
    found = graded(verdict(0.5), grade="agreement", outcome=1.0, peers=peers)
    assert found["agreement"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["success"] == pytest.approx(0.1 + 0.9 * 0.5)
    assert found["brier"] == pytest.approx(0.25)
    alone = graded(verdict(0.5), grade="agreement", outcome=1.0, peers=peers[3:])
    assert alone["success"] == pytest.approx(0.1 + 0.9 * 0.75), "without such attempts it is closeness"


def test_the_rule_is_read_off_generated_episodes_and_random_scores_are_not():
    assert success(JUDGE, demonstrate, 40, split="eval") == 1.0
    assert success(JUDGE, partial(demonstrate, tool_rate=0.0), 40, split="eval") < 0.8


def test_a_file_whose_labels_are_no_scores_is_refused_before_it_is_played(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text('{"prompt": "p", "answer": "high", "split": "train"}\n')
    with pytest.raises(UsageError, match="expected a score from 0 to 1"):
        palaestra.arena(JUDGE, 1, tasks=str(path))
