"""Figures of episodes and of runs: the same offline as live, and held together over seeds."""

import json
import math
from dataclasses import replace

import families
import numpy as np
import pytest
import torch
from batches import batch_of, local, restless, scripted, settings

from palaestra import Status, UsageError
from palaestra.cli import main
from palaestra.record import Lesson, Record, write
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.config.recipes import ADVANTAGES, LOSSES
from palaestra.trainers.evaluation.metrics import batch_metrics
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.policy import PolicyGradient
from palaestra.trainers.parts import find_part
from palaestra.trainers.run.folder import Run
from palaestra.trainers.view import analyse

OK, FAILED = Status.OK, Status.TOOL_ERROR


def learner_of(model, **changes):
    return Learner(replace(local(), model=model).agent, model, settings("grpo-t", beta=0.0, **changes))


def figures_of_update(model, batch, advantages, **changes):
    return update(learner_of(model, **changes), batch, advantages, BatchScores())[0]


def test_the_clipped_share_of_free_tokens_is_of_those_that_were_unsure_and_are_to_become_likelier(monkeypatch):
    """One token a row. Three are driven up: two of them were free, and one of these is clipped."""
    model = restless()
    rows = [families.token_row(3, [1], seed=number, version=-1) for number in range(4)]
    now = [float(families.fresh_logprobs(model, row)[0]) for row in rows]
    assert max(now) < math.log(0.5), "or the old log-probs below could not be"
    with torch.no_grad():
        sure = float(np.float32(math.log(0.95)))
    for row, old in zip(rows, [now[0] - 1.0, now[1], sure, now[3]], strict=True):
        row.logprobs[row.sampled] = old
    batch = batch_of([families.an_episode(row, reward=1.0, seed=number) for number, row in enumerate(rows)])
    found = figures_of_update(model, batch, [1.0, 1.0, 1.0, -1.0], max_logprob_gap=100.0, num_mini_batches=1)
    assert found["clip_ratio/high_mean"] == pytest.approx(1 / 4)
    assert found["clip_ratio/free_high_mean"] == pytest.approx(1 / 2)
    plain = PolicyGradient()(torch.zeros(2), torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.long))
    assert (plain.clipped_low, plain.clipped_high) == (0, 0)


def test_offline_and_live_figures_are_the_same(tmp_path):
    episodes = scripted()
    live = batch_metrics(batch_of(episodes))
    write(tmp_path / "a.jsonl", [Record("palaestra/TwoHop-v0", one) for one in episodes])
    offline = analyse([tmp_path / "a.jsonl"]).groups[0].each[0]
    shared = live.keys() & offline.keys()
    assert len(shared) >= 15
    assert {name: offline[name] for name in shared} == pytest.approx({name: live[name] for name in shared})


def made(folder, seed, success, **changes):
    """A run that has been written down by hand: its curve of success, and nothing played."""
    with Run(folder, settings(steps=len(success), seed=seed, **changes)):
        pass
    lines = [{"step": step, "rewards/success/mean": value, "loss": None} for step, value in enumerate(success, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_runs_that_have_little_in_common_are_named_by_their_folders(tmp_path):
    changes = {"slots": 7, "max_turn_tokens": 9, "num_prompts": 7, "num_generations": 9, "eval_tasks": 7}
    made(tmp_path / "a", 0, [0.5] * 9)
    made(tmp_path / "b", 0, [0.5] * 8, **changes)
    assert [group.name for group in analyse([tmp_path]).groups] == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_arms_with_other_parts_are_named_by_these_and_not_by_the_settings_that_each_part_brings(tmp_path, capsys):
    for advantage in ("group", "leave-one-out"):
        for loss in ("clip", "cispo"):
            parts = {
                "advantage": find_part(ADVANTAGES, advantage, "advantage"),
                "loss": find_part(LOSSES, loss, "loss"),
            }
            made(tmp_path / "a_folder_with_a_long_name" / f"{advantage}-{loss}", 0, [0.5] * 9, **parts)
    names = [group.name for group in analyse([tmp_path]).groups]
    assert "advantage group, loss cispo" in names and len(names) == 4
    assert main(["analyse", str(tmp_path)]) == 0
    assert "\u2026" not in capsys.readouterr().out, "no name in the head of a column is cut"


def test_runs_that_differ_in_their_seed_are_one_group_with_an_interval_over_seeds(tmp_path):
    for seed, level in enumerate([0.2, 0.4, 0.6]):
        made(tmp_path / "a" / f"seed-{seed}", seed, [level] * 20)
        made(tmp_path / "b" / f"seed-{seed}", seed, [level + 0.1] * 20, epsilon_high=0.3, slots=8)
    made(tmp_path / "b" / "seed-9", 9, [0.9] * 20, epsilon_high=0.3, slots=8)
    first, second = analyse([tmp_path]).groups
    assert [len(first.sources), len(second.sources)] == [3, 4]
    assert "epsilon_high 0.3" in second.name
    spread = first.figures["rewards/success/mean"]
    half = 4.302653 * 0.2 / math.sqrt(3)
    assert (spread.value, spread.low, spread.high) == pytest.approx((0.4, 0.4 - half, 0.4 + half), abs=1e-6)
    beside = second.beside["rewards/success/mean"]
    assert (beside.value, beside.low, beside.high, beside.runs) == (
        pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1), 3,
    )  # fmt: skip
    assert not first.beside


def test_what_is_said_of_a_run_is_the_mean_of_the_last_tenth_of_its_steps(tmp_path):
    made(tmp_path / "run", 0, [0.0] * 90 + [0.5] * 10)
    figures = analyse([tmp_path / "run"]).groups[0].each[0]
    assert figures["rewards/success/mean"] == 0.5
    assert figures["rewards/success/whole_run"] == pytest.approx(0.05)
    assert "loss" not in figures, "what was no number is no number"


@pytest.mark.parametrize(("name", "text", "said"), [
    ("gone", None, "there is no"), ("a.jsonl", "{}\n", "is an episode"), ("empty/x", "", "holds no run"),
])  # fmt: skip
def test_what_cannot_be_analysed_is_said(tmp_path, name, text, said):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=said):
        analyse([path.parent if "/" in name else path], lambda _: None)


def test_a_plot_is_drawn_and_one_without_curves_is_refused(tmp_path):
    from palaestra.trainers.view.plots import check_plot, plot

    for seed in (0, 1):
        made(tmp_path / "runs" / f"seed-{seed}", seed, [0.1 * seed] * 4)
    plot(tmp_path / "curves.svg", analyse([tmp_path / "runs"]))
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    write(tmp_path / "a.jsonl", [Record("palaestra/TwoHop-v0", one) for one in scripted()])
    with pytest.raises(UsageError, match="nothing here has steps"):
        plot(tmp_path / "b.png", analyse([tmp_path / "a.jsonl"]))
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        check_plot(tmp_path / "b.txt")


def judged_file(path, verdicts):
    """Episodes of a run that has a judge: success and score of each."""
    write(path, [
        Record("palaestra/TwoHop-v0", families.an_episode(reward=success, seed=seed), agent="x",
               lessons=(Lesson(1, {}, 0.0, remarks={"score": score, "critique": ""}),) if score is not None else ())
        for seed, (success, score) in enumerate(verdicts)
    ])  # fmt: skip


def test_episodes_whose_score_contradicts_their_outcome_are_listed_and_only_where_there_are_scores(tmp_path, capsys):
    judged_file(tmp_path / "a.jsonl", [(1.0, 0.9), (0.0, 0.75), (1.0, 0.05), (0.0, 0.69), (0.0, None), (None, 1.0)])
    judged_file(tmp_path / "b.jsonl", [(1.0, None)])
    arguments = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--json", str(tmp_path / "found.json")]
    assert main(["analyse", *arguments, "--plot", str(tmp_path / "scores.svg")]) == 0
    shown = capsys.readouterr().out
    assert "a: 2 of 4 scores contradict the outcome" in shown and "b:" not in shown
    low, high = map(shown.index, ("low score, solved: 0.05, 1.00; ", "high score, failed: 0.75, 0.00; "))
    assert low < high, "the widest apart first"
    first, second = json.loads((tmp_path / "found.json").read_text())["groups"]
    assert (first["judged"], first["contradicted"], "judged" in second) == (4, 2, False)
    assert [(one["kind"], one["score"], one["outcome"]) for one in first["disagreements"]] == [
        ("low score, solved", 0.05, 1.0), ("high score, failed", 0.75, 0.0),
    ]  # fmt: skip
    assert first["disagreements"][0]["place"] == f"{tmp_path / 'a.jsonl'}, episode 3"
    assert "judge's score, by outcome" in (tmp_path / "scores.svg").read_text()
