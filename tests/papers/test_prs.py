"""Rows F39 to F42: the reward in stages with its three promises, length-aware BLEU, long answers, binary baselines."""

import re
from dataclasses import replace

import families
import gymnasium
import pytest
from batches import batch_of
from hypothesis import given
from hypothesis import strategies as st

import palaestra
from palaestra import ConfigError, Start, Status
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs.rewards.bleu import length_aware_bleu
from palaestra.trainers import find_recipe
from palaestra.trainers.reward.staged_shaping import EARLY, LATE, STAGES, opened
from palaestra.trainers.validation import changed

PRS = find_recipe("prs").shaping
TOOL = {"type": "function", "function": {"name": "search"}}


def episode(parsed=4, valid=4, calls=4, answer="Answer: Kemu", quality=1.0, **more):
    """One with so many calls, of which some could be read and some of these were valid."""
    made = families.an_episode(reward=float(quality == 1), **more)
    statuses = [Status.OK] * valid + [Status.BAD_CALL] * (calls - valid)
    asked = families.an_episode(calls=statuses).attempt.calls
    asked = tuple(replace(one, name="search" if at < parsed else "") for at, one in enumerate(asked))
    messages = ({"role": "user", "content": "End with Answer: VALUE."}, {"role": "assistant", "content": "\\boxed{1}"})
    attempt = replace(made.attempt, calls=asked, messages=messages, answer=answer)
    return replace(made, attempt=attempt, parts={**made.parts, "quality": quality}, tools=(TOOL,))


ANSWERS = st.sampled_from(["Answer: Kemu", "Kemu", "", None, "Answer: a Answer: b"])


@st.composite
def episodes(draw):
    parsed = draw(st.integers(0, 4))
    return episode(parsed, draw(st.integers(0, parsed)), 4, draw(ANSWERS), draw(st.integers(0, 10)) / 10)


def passed(options, made):
    """How many stages in a row are perfect."""
    scores = list(options.scores(made).values())
    return next((at for at, score in enumerate(scores) if score < 1), len(scores))


@given(episodes(), episodes(), st.booleans(), st.floats(0, 1))
def test_f39_whoever_clears_one_more_stage_has_more_whatever_the_weights(one, other, curriculum, reached):
    options = replace(PRS, curriculum=curriculum)
    rewards = [sum(options(made, reached).values()) for made in (one, other)]
    stages = [passed(options, made) for made in (one, other)]
    if stages[0] < stages[1]:
        assert rewards[0] < rewards[1]
    assert all(
        (reward == pytest.approx(1.0)) == (at == len(STAGES)) for reward, at in zip(rewards, stages, strict=True)
    )
    assert all(0 <= reward <= 1 + 1e-9 for reward in rewards)


def test_f39_a_stage_that_is_not_cleared_pays_its_share_and_none_after_it():
    paid = {name: list(PRS(made).values()) for name, made in {
        "nothing can be read": episode(0, 0), "half can": episode(2, 2), "one of four is valid": episode(4, 1),
        "no mark": episode(answer="Kemu"), "two": episode(answer="Answer: a Answer: b"), "none": episode(answer=None),
        "half right": episode(quality=0.5), "right": episode(), "no call": episode(0, 0, 0),
    }.items()}  # fmt: skip
    assert paid == {
        "nothing can be read": [0, 0, 0, 0], "half can": [0.05, 0, 0, 0], "one of four is valid": [0.1, 0.025, 0, 0],
        "no mark": [0.1, 0.1, 0, 0], "two": [0.1, 0.1, 0, 0], "none": [0.1, 0.1, 0, 0],
        "half right": pytest.approx([0.1, 0.1, 0.1, 0.35]), "right": pytest.approx([0.1, 0.1, 0.1, 0.7]),
        "no call": pytest.approx([0.1, 0.1, 0.1, 0.7]),
    }  # fmt: skip
    assert sum(replace(PRS, calls_required=True)(episode(0, 0, 0)).values()) == 0


def test_f39_stages_are_switched_off_by_their_weights_and_the_rest_is_worth_as_much():
    quality = replace(PRS, parse_weight=0.0, call_weight=0.0, format_weight=0.0)
    assert quality(episode(0, 0, answer="Kemu", quality=0.4)) == {"stage_quality": pytest.approx(0.4)}
    calls = replace(PRS, format_weight=0.0)
    assert sum(calls(episode(answer="Kemu")).values()) == pytest.approx(1.0)
    assert calls(episode(answer="Kemu"))["stage_quality"] == pytest.approx(0.7 / 0.9)


def test_f39_the_form_is_the_one_that_the_task_asks_for():
    def asked(text, answer):
        made = episode(answer=answer)
        attempt = replace(made.attempt, messages=({"role": "user", "content": text},))
        return PRS.scores(replace(made, attempt=attempt))["stage_format"]

    assert asked("Put it in \\boxed{}.", "\\boxed{3}") == asked("What?", "3") == asked("<answer>", "<answer>3") == 1
    assert asked("Put it in \\boxed{}.", "Answer: 3") == asked("What?", " ") == 0


def test_f42_the_binary_baseline_is_one_flag():
    binary = changed(find_recipe("vspo-prs"), {"binary": True}).shaping
    assert [binary(episode(quality=value)) for value in (1.0, 0.9)] == [{"outcome": 1.0}, {"outcome": 0.0}]
    assert binary(episode(0, 0, answer=None)) == {"outcome": 1.0}
    with pytest.raises(ConfigError, match="no weights to move"):
        replace(binary, curriculum=True)


def test_the_quality_is_a_part_of_the_environments_reward():
    half = replace(episode(quality=0.5), parts={"success": 0.25, "f1": 0.5})
    assert PRS.scores(half)["stage_quality"] == 0.25
    assert replace(PRS, quality_part="f1").scores(half)["stage_quality"] == 0.5
    with pytest.raises(ConfigError, match="quality_part is 'bleu'; expected a part of the reward: success, f1"):
        replace(PRS, quality_part="bleu")(half)


def test_a_curriculum_moves_from_form_to_quality_and_a_group_has_one_set_of_weights():
    terms = opened(replace(PRS, curriculum=True, curriculum_decay=0.5), {})
    reaching, stuck = episode(quality=0.0), episode(answer=None)
    assert list(terms(reaching).values()) == pytest.approx([*EARLY[:3], 0.0])
    early = terms(replace(reaching, start=replace(reaching.start, group=7)))
    state = terms.after(batch_of([reaching, stuck, stuck, reaching], terms))
    assert state == {"share_reaching_quality": pytest.approx(0.25)}
    assert terms(replace(reaching, start=replace(reaching.start, group=7, seed=1))) == early
    assert terms(reaching)["stage_parsed"] == pytest.approx(0.75 * EARLY[0] + 0.25 * LATE[0])
    again = opened(replace(PRS, curriculum=True), state)
    assert again(reaching) == terms(reaching)
    for _ in range(60):
        terms.after(batch_of([reaching], terms))
    assert list(terms.options.weights(terms.reached).values()) == pytest.approx(LATE)


def test_f42_one_environment_is_played_with_stages_or_with_success_alone():
    find = palaestra.demonstrator("palaestra/LongQA-v0")
    scripts = [find, lambda messages, rng: find(messages, rng, 0.0)]
    scripts.append(lambda messages, rng: find(messages, rng).partition(". ")[0])
    scripts.append(lambda messages, rng: '<tool_call>{"name": "ask", "arguments": {}}</tool_call>')
    binary, arena = changed(PRS, {"binary": True}), palaestra.arena("palaestra/LongQA-v0", 1, size=20)
    found = [next(play(Agent(ScriptedPolicy(script)), arena, [Start(0, 0)])) for script in scripts]
    arena.close()
    assert [sum(binary(one).values()) for one in found] == [1.0, 0.0, 0.0, 0.0]
    right, guessed, partly, stuck = (sum(PRS(one).values()) for one in found)
    assert right == pytest.approx(1.0) and right > partly > guessed == pytest.approx(0.3)
    assert stuck == pytest.approx(0.1), "its calls can be read, and name no tool"


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("paris", "paris", 1),
        ("london", "paris", 0),
        ("the city of paris", "paris", 0.25),
        ("new york city", "new york city", 1),
        ("new york", "new york city", 0.6065),
        ("barack hussein obama", "barack obama", 0.4714),
        ("in the year 1914", "1914", 0.25),
        ("", "paris", 0),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_f40_the_check_values_hold_in_both_forms(answer, expected, score, plain):
    assert length_aware_bleu(answer, expected, plain=plain) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("padding", ["and so on ", "We are glad to help. ", "24 months. "])
def test_f41_one_contradiction_is_fatal_though_all_else_is_right_and_padding_gains_nothing(padding):
    env = gymnasium.make("palaestra/LongQA-v0", split="eval", size=60).unwrapped
    right = env.tasks[0].answer

    def quality(answer):
        env.reset(seed=0, options={"task": 0})
        return env.step(answer)[-1]["parts"]["quality"]

    assert quality(right) == quality(f"Dear customer, {right} I am glad to help!") == 1.0
    number = re.search(r"\d+ (months|days|hours|grams|crowns)", right)
    assert quality(f"Dear customer, {right} Or is it 399 {number[1]}?") == 0.0
    for answer in (right, right.partition(". ")[0] + "."):
        assert quality(f"{padding}{answer}") <= quality(answer)
    assert quality(f"{right} {padding * 200}") < 0.2
