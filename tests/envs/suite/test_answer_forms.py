"""Every environment of the suite says what a right answer looks like, and pays an answer of that form."""

import asyncio
import inspect
import re

import gymnasium
import pytest

import palaestra
from palaestra.envs.rewards.stated_number import stated_number, states_number
from palaestra.envs.suite.debate import JUDGE, Debate, decision
from palaestra.envs.suite.miniwob import MiniWoB
from palaestra.envs.suite.negotiation import Negotiation, accepts, read_offer
from palaestra.envs.suite.solver_critic import CRITIC, SOLVER, SolverCritic, agrees
from palaestra.episode import Attempt, Task

FORMS = {
    "End with Answer: ": "I have looked it up.\nAnswer: {}",
    "the number alone": "{}",
    r"\boxed{": r"So it is \boxed{{{}}}.",
    "between <answer> and </answer>": "I have sorted it.\n<answer>{}</answer>",
}
"""Answers of an agent that does what the system text says, by the words that say it."""
OTHER_WORDS = {
    "CodeContest": "one ```python block", "HumanEval": "one ```python block", "Judge": "<score>one number from 0",
    "LongQA": "briefly, in full sentences", "MiniWoB": "there is nothing to answer",
    "Service": "urn without a call", "WebShop": "Then say Done",
}  # fmt: skip
"""What the other environments say, in which no short answer is read."""


def paid(author, task, answer):
    reward = author.reward(Attempt(task, (), answer, (), 1))
    reward = asyncio.run(_awaited(reward)) if inspect.isawaitable(reward) else reward
    return reward["success"] if isinstance(reward, dict) else reward


async def _awaited(reward):
    return await reward


@pytest.mark.parametrize("env_id", palaestra.registered())
def test_the_system_text_says_the_form_of_an_answer_and_that_form_is_paid(env_id):
    name = env_id.removeprefix("palaestra/").removesuffix("-v0").removesuffix("-v1")
    if name == "MiniWoB":
        system = MiniWoB.system  # Opening it needs a Chromium.
    else:
        author = gymnasium.make(env_id).unwrapped.author
        system = author.system
    if name in OTHER_WORDS:
        assert OTHER_WORDS[name] in system
        return
    (form,) = (answer for words, answer in FORMS.items() if words in system)
    tasks = author.task_set("train")
    for task in (tasks[index] for index in range(12)):
        assert paid(author, task, form.format(task.answer)) == 1.0
        assert paid(author, task, form.format(f"not {task.answer}, {task.answer} or {task.answer}1")) == 0.0


@pytest.mark.parametrize("rubric", [True, False])
def test_a_judge_that_fills_in_the_blocks_of_its_system_text_is_paid(rubric):
    author = gymnasium.make("palaestra/Judge-v0", rubric=rubric).unwrapped.author
    blocks = re.findall(r"<(\w+)>.+?</\1>", author.system)
    task = author.task_set("train")[0]
    answer = "".join(f"<{block}>{task.answer if block == 'score' else 'well'}</{block}>" for block in blocks)
    attempt = Attempt(task, ({"role": "assistant", "content": answer},), answer, (), 1)
    assert author.reward(attempt)["success"] == 1.0


def test_what_a_seat_is_told_to_begin_with_is_read():
    solver, critic = SolverCritic.system[SOLVER], SolverCritic.system[CRITIC]
    assert solver.endswith("Answer with the number alone.") and states_number("12", "12")
    assert critic.endswith("Begin with Agree or Disagree.") and agrees("Disagree: it is 12.") is False
    assert Debate.system[JUDGE].endswith("Begin with Yes or No.") and decision("No, it is less.") == "No"
    for system in Negotiation.system.values():
        assert system.startswith("Begin with Take 1 book, 0 hats, 2 balls") and "or Accept." in system
    assert read_offer("Take 1 book, 0 hats, 2 balls, please", (2, 1, 3)) == ((1, 0, 2), "") and accepts("Accept.")


@pytest.mark.parametrize("env_id", ["palaestra/Calculator-v0", "palaestra/Arithmetic-v0"])
@pytest.mark.parametrize("answer", [
    "5360", "5360.", "5,360", "5360.0", "**5360**", "Answer: 5360", "**Answer:** 5,360.", "The answer is 5360.",
    "80 * 67 = 5360.", "80 * 67 = 80 * 60 + 80 * 7 = 5360", r"80 \times 67 is \boxed{5360}.",
    "80 times 67 is **5,360**", "It is not 5361.\nAnswer: 5360 plums", "The product of 80 and 67 is equal to $5360$",
])  # fmt: skip
def test_a_right_number_is_paid_in_a_sentence_too(env_id, answer):
    author = gymnasium.make(env_id).unwrapped.author
    assert paid(author, Task("What is 80 * 67?", "5360"), answer) == 1.0


@pytest.mark.parametrize("answer", [
    None, "", "80 * 67", "5360 or 5361", "5361 or 5360", "5359, 5360, 5361", "5359,5360", "5360 5361", "536.0", "53,60",
    "5360e0", "5360%", "10720/2", "-5360", "= 5360 or 5361", "The answer is 5360 or 5361", "80 * 67 = 5360 = 5361",
    "Answer: 5361\n5360", "5360\nAnswer:", "Answer: 80 * 67", "x5360", "0x14f0", "1 " * 9_000 + "is 5360",
])  # fmt: skip
def test_a_question_a_list_and_another_number_are_not(answer):
    assert not states_number(answer, "5360")


def test_one_number_is_read_whatever_stands_beside_it_and_a_question_does_not_answer_itself():
    assert stated_number("12 - 5 = 7") == stated_number("It is 7") == 7
    assert stated_number("5 - 12 = -7") == stated_number("(\u22127)") == -7
    assert not states_number("What is 0 * 0", "0") and not states_number("1*1", "1")


def test_a_text_that_is_expected_in_place_of_a_number_is_compared_as_text():
    assert states_number("Answer: 1/2", "1/2") and states_number("forty", "forty")
    assert not states_number("2", "1/2") and not states_number("", "") and not states_number("30", "10:30")
