"""Rows F28 to F30, F32 and F36 to F38: the judge of arXiv 2601.22154, Reagent-R, its tools and its rule reward.

A judge's score is a term of the reward; a judge that fails costs episodes, never a score of 0.
"""

import asyncio
import json
import re
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import families
import gymnasium
import numpy as np
import pytest
from batches import local, same, settings, weights
from fake_server import FakeServer as Server
from fake_server import Reply, error, nobody, replying, said

from palaestra import ConfigError, TrainingHalted
from palaestra.endpoint.client import Endpoint
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.index import Document
from palaestra.errors import Broken, UsageError
from palaestra.record import Lesson, Record, from_line, to_line
from palaestra.trainers import grpo
from palaestra.trainers.batch import Scored
from palaestra.trainers.config.recipes import find_recipe
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.reward.judge_agreement import disagreements, judged_figures, labelled_episode
from palaestra.trainers.reward.reward_model import ReasoningReward
from palaestra.trainers.samplers.uniform import Uniform


def verdict(score, critique="Look first."):
    return said(f"<think>so</think><critique>{critique}</critique><score>{score}</score>")


def by_length(seen):
    """A judge that scores by what it was shown, so that scores differ within a group."""
    if seen.method == "GET":
        return Reply({"data": []})
    return verdict(round(sum(map(ord, seen.asked["messages"][1]["content"])) % 101 / 100, 2))


def recipe(urls=(), weight=0.3, **options):
    base = replace(find_recipe("reagent-none"), sampler=Uniform(), recipe_name="reagent-r")
    urls = [one if isinstance(one, str) else one.url for one in urls]
    return base if not urls else replace(base, judge=ReasoningReward(tuple(urls), score_weight=weight, **options))


def trained(two_hop, recipe, **changes):
    pupil = local()
    config = settings(**{"steps": 2, **changes})
    learner = Learner(pupil.agent, pupil.model, replace(config, recipe=recipe))
    played = [(dict(one.metrics), one.rollouts) for one in grpo.train_learner(learner, two_hop)]
    return [figures for figures, _ in played], [pair for _, pairs in played for pair in pairs], weights(pupil.model)


def test_f32_the_reward_is_the_rule_s_and_the_weighted_score_beside_its_critique(two_hop):
    with Server(by_length) as server:
        curve, played, after = trained(two_hop, recipe([server]))
    assert not same(after, trained(two_hop, recipe())[2]), "the judge alone tells these failures apart"
    assert len({lesson.remarks["score"] for _, (lesson,) in played}) > 3
    for episode, (lesson,) in played:
        assert lesson.remarks["critique"] == "Look first."
        assert lesson.terms["outcome"] == episode.reward
        assert sum(lesson.terms.values()) == pytest.approx(episode.reward + 0.3 * lesson.remarks["score"])
        again = from_line(to_line(Record("palaestra/TwoHop-v0", episode, lessons=(lesson,)))).lessons[0]
        assert again.remarks == lesson.remarks and again.terms == lesson.terms
    for step, figures in enumerate(curve):
        scores = [lesson.remarks["score"] for _, (lesson,) in played[16 * step : 16 * step + 16]]
        assert figures["judge/score"] == pytest.approx(sum(scores) / 16)
        assert figures["judge/dropped"] == figures["judge/clamped"] == 0
    asked = server.questions[0]["messages"][1]["content"]
    assert "<think>, <critique>, <score>" in asked and "| " in asked


def test_f32_a_weight_of_0_is_plain_grpo_bit_by_bit(two_hop):
    plain, _, without = trained(two_hop, recipe())
    with Server(by_length) as server:
        curve, played, after = trained(two_hop, recipe([server], weight=0.0))
    assert same(after, without)
    times = ("time/play", "time/learn", "step_time")
    for one, other in zip(plain, curve, strict=True):
        assert {name: value for name, value in one.items() if name not in times} == {
            name: value for name, value in other.items() if name not in times and "judge" not in name
        }
    assert all("score" in lesson.remarks for _, (lesson,) in played), "it is asked all the same"


def test_f29_a_judge_that_is_dead_costs_nothing_while_another_lives(two_hop):
    with Server(by_length) as server, nobody() as dead:
        curve, played, _ = trained(two_hop, recipe([dead, server]), steps=1)
    assert len(played) == 16 and curve[0]["judge/dropped"] == 0


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (None, "no connection"),
        ([said("<score>high</score>")], "expected one number"),
        ([verdict(1), error(400, "maximum context length is 8 tokens")], "longer than the judge's context"),
    ],
)
def test_f28_f29_a_judge_that_fails_for_good_halts_the_run_and_says_why(two_hop, answers, why):
    """Also one that is gone, or has no room for an episode."""
    with ExitStack() as stack:
        url = stack.enter_context(nobody()) if answers is None else stack.enter_context(replying(*answers))
        with pytest.raises(TrainingHalted, match=f"(?s)max_broken_share.*its judge failed.*{why}"):
            trained(two_hop, recipe([url], deadline=1.0, tries=2), steps=1)


@pytest.mark.parametrize(
    ("answer", "why"), [(error(401, "no such key"), "no such key"), (Reply(b"<html>hello</html>"), "HTML")]
)
def test_f29_a_judge_that_refuses_every_question_ends_the_run_before_the_round_does(two_hop, answer, why):
    asked, ended = [], threading.Event()

    async def refuse(seen):
        asked.append(seen.method)
        for _ in range(3000 if asked.count("POST") > 8 else 0):  # The run has seen enough: it ends before the next one.
            if not ended.is_set():
                await asyncio.sleep(0.01)
        return Reply({"data": []}) if seen.method == "GET" else answer

    with Server(refuse) as server:
        with pytest.raises(UsageError, match=f"(?s)refuses every question.*{why}"):
            trained(two_hop, recipe([server], at_once=1), steps=1)
        ended.set()
    assert 8 <= asked.count("POST") <= 9, "of the sixteen of this step"


def test_f28_a_few_episodes_without_a_verdict_are_dropped_and_counted_and_never_0(two_hop):
    first = []

    def behave(seen):
        first.append(seen.data) if not first else None
        return said("none") if seen.data == first[0] else by_length(seen)

    with Server(behave) as server:
        curve, played, _ = trained(two_hop, recipe([server], tries=1, at_once=1), steps=1, max_broken_share=0.2)
    dropped = [episode for episode, lessons in played if not lessons]
    assert curve[0]["judge/dropped"] == len(dropped) >= 1
    assert len(dropped) < 4


def remarks(judge, *episodes):
    async def ask():
        return await judge(episodes)

    return asyncio.run(ask())


def test_f28_a_score_out_of_range_is_moved_and_counted_or_asked_for_again():
    with replying(verdict(1.7)) as server:
        judge = ReasoningReward((server.url,)).opened()
        (remark,) = remarks(judge, families.an_episode())
        judge.close()
    assert remark.terms == {"judge": 0.3} and remark.remarks["written"] == 1.7
    found = judged_figures([Scored(families.an_episode(), remark.terms, remark.remarks)])
    assert found["judge/clamped"] == 1 and found["judge/score_of_solved"] == 1.0
    with replying(verdict(1.7), verdict(0.7)) as server:
        judge = ReasoningReward((server.url,), clamp=False).opened()
        assert remarks(judge, families.an_episode())[0].remarks["score"] == 0.7
        judge.close()


def test_the_reasoning_that_a_server_gives_apart_is_the_analysis():
    text = "<critique>c</critique><score>0.5</score>"
    with replying(said(text, reasoning_content="It was lucky.")) as server:
        judge = ReasoningReward((server.url,)).opened()
        assert remarks(judge, families.an_episode())[0].remarks == {
            "score": 0.5,
            "critique": "c",
            "analysis": "It was lucky.",
        }
        judge.close()


def test_f29_all_servers_dead_is_waited_for_once_and_not_by_every_episode(monkeypatch):
    real, tries = Endpoint._try, []

    async def counted(self, *arguments):
        tries[-1] += 1
        return await real(self, *arguments)

    monkeypatch.setattr(Endpoint, "_try", counted)
    with nobody() as dead:
        judge = ReasoningReward((dead,), deadline=1.2).opened()
        for _ in range(4):
            tries.append(0)
            with pytest.raises(Broken, match="no connection"):
                remarks(judge, families.an_episode())
        judge.close()
    assert tries[0] > 1, "the first question is tried again while it has time"
    assert tries[1:] == [1, 1, 1], "the others do not wait"


def test_figures_compare_scores_with_outcomes_and_disagreements_are_listed():
    def scored(success, score):
        return Scored(families.an_episode(reward=success), {}, {"score": score, "critique": ""})

    played = [scored(1.0, 0.9), scored(0.0, 0.1), scored(1.0, 0.2), scored(0.0, 0.95), Scored(families.an_episode())]
    found = judged_figures(played)
    assert found["judge/score"] == pytest.approx(0.5375) and found["judge/score_of_solved"] == pytest.approx(0.55)
    assert found["judge/correlation"] == pytest.approx(np.corrcoef([0.9, 0.1, 0.2, 0.95], [1, 0, 1, 0])[0, 1])
    assert found["judge/without_critique"] == 4 and found["judge/dropped"] == 1
    records = [Record("x", one.episode, lessons=(Lesson(1, {}, 0.0, remarks=one.remarks),)) for one in played]
    verdicts = [one for one in map(labelled_episode, records) if one]
    assert [(one.contradiction, one.score) for one in disagreements(verdicts)] == [
        ("high score, failed", 0.95),
        ("low score, solved", 0.2),
    ]


def test_settings_that_can_never_work_are_refused():
    with pytest.raises(ConfigError, match=r"--recipe\.judge\.url"):
        ReasoningReward().opened()
    for wrong in ({"url": ("localhost:80",)}, {"read_chars": 5}, {"score_weight": -1.0}, {"tries": 0}):
        with pytest.raises(ConfigError):
            ReasoningReward(**wrong)


def test_f30_a_verdict_is_worth_its_closeness_to_the_label_and_nothing_without_its_form():
    """What a judge's training is paid by; that it learns from it is proved in tests/prove/test_taught_judge.py."""
    env = gymnasium.make("palaestra/Judge-v0").unwrapped

    def paid(text):
        env.reset(seed=0, options={"task": 0})
        return env.step(text)[1]

    label, form = float(env.tasks[0].answer), "<think>so</think><critique>Look.</critique>"
    assert paid(f"{form}<score>{label}</score>") == 1.0
    assert paid(f"{form}<score>{1 - label}</score>") == pytest.approx(0.1 + 0.9 * (1 - abs(1 - 2 * label)))
    for text in (f"<score>{label}</score>", f"{form}<score>1.7</score>", f"{form}<score>high</score>", ""):
        assert paid(text) == 0.0


INDEX = EmbeddedIndex.of([Document("1", "A", "b")])
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SIX = ("search", "browse", "python", "file_reader", "image2text", "audio2text")


def test_f36_the_six_tools_are_offered_work_and_stay_within_the_questions_folder(tmp_path):
    """Those of the path of examples/reagent; pictures and sound go to served models, of which there is one here."""
    script = Path(__file__).parents[2] / "examples" / "reagent" / "full_scale.sh"
    assert set(re.search(r" tools=(\S+)", script.read_text())[1].split(",")) == set(SIX)
    row = {"id": "1", "question": "How many?", "answer": "17", "answer_type": "exactMatch"}
    (tmp_path / "hle.jsonl").write_text(json.dumps({**row, "image": f"data:image/png;base64,{PIXEL}"}))
    with replying(said("It shows 17.")) as server:
        served = {"base_url": server.url, "model": "m", "api_key_env": ""}
        options = {
            "tasks": str(tmp_path / "hle.jsonl"),
            "model": served,
            "speech": served,
            "tools": SIX,
            "search": INDEX,
        }
        env = gymnasium.make("palaestra/Research-v0", split="all", browser="text", **options).unwrapped
        _, info = env.reset(seed=0)
        assert {one["function"]["name"] for one in json.loads(info["tools"])} == set(SIX)
        told = [
            env.step(env.call(name, **arguments))[0]
            for name, arguments in (
                ("python", {"code": "import os; sorted(os.listdir())"}),
                ("image2text", {"path": "image.png", "question": "What?"}),
                ("file_reader", {"path": "../hle.jsonl"}),
                ("file_reader", {"path": "/etc/passwd"}),
            )
        ]
        env.close()
    assert told == ["['image.png']", "It shows 17.", *told[2:]]
    assert all("Error" in text and "root:" not in text for text in told[2:]), told


WORDS = "one two three four five six seven eight nine ten eleven"


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("Sopa Rin", ["sopa rin."], 1.0),
        ("two eleven", [f"{WORDS} twelve"], 0.0),  # F1 4/14 = .286.
        ("two eleven", [WORDS], pytest.approx(4 / 13)),  # F1 .308 counts as it is.
        ("b c", ["x y", "b c d", "q"], pytest.approx(0.8)),
        ("It is yes, I think.", ["yes"], 1.0),
        ("yes and no", ["yes"], 0.0),
        ("noble", ["no"], 0.0),
        (r"\boxed{\frac{2}{4}}", ["0.5"], 1.0),
        ("", ["x"], 0.0),
    ],
)
def test_f37_a_question_is_paid_by_exact_match_or_f1_from_a_threshold_on_and_mathematics_by_value(
    answer, expected, reward, tmp_path
):
    row = {"question": "What?", "answer": expected, "split": "train"}
    (tmp_path / "asked.jsonl").write_text(json.dumps(row))
    asked = {"tasks": str(tmp_path / "asked.jsonl"), "metric": "rule", "search": INDEX}
    env = gymnasium.make("palaestra/SearchQA-v0", split="all", **asked).unwrapped
    env.reset(seed=0)
    assert env.step(f"Answer: {answer}")[-1]["parts"]["success"] == reward
    env.close()


@pytest.mark.parametrize(
    ("replies", "ending"), [(["perhaps", "Match"], "answered"), (["perhaps", "a match"], "broken")]
)
def test_f38_a_label_is_one_word_asked_for_again_and_an_episode_without_one_is_dropped(replies, ending):
    with replying(*map(said, replies)) as server:
        judge = {"backend": "label", "base_url": server.url, "model": "m", "api_key_env": "", "tries": 2}
        env = gymnasium.make("palaestra/LongQA-v0", split="eval", size=60, judge=judge).unwrapped
        env.reset(seed=0)
        *_, info = env.step("24 months")
        assert info["ending"] == ending and len(server.questions) == 2
        assert ("no readable answer in 2 tries" in info["fault"]) == (ending == "broken"), "what is not judged is no 0"
        env.close()
