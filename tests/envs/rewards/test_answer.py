"""The answer that stands behind the last "Answer:", whatever Markdown is put around it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.answer import final_answer


@pytest.mark.parametrize("text", [
    "Answer: Momu", "answer: Momu", "ANSWER: Momu", "**Answer:** Momu", "**Answer**: Momu", "**Answer: Momu**",
    "Answer: **Momu**", "Answer: `Momu`", "**Final Answer:** Momu", "**Final Answer: Momu**", "__Answer:__ Momu",
    "- **Answer:** *Momu*", "_Answer: Momu_", "`Answer: Momu`", "Answer:\n**Momu**\n", "**Answer:**\n\nMomu",
    "**Momu**", "Answer: Bado\n***Answer: Momu***\nThat is all.",
])  # fmt: skip
def test_marks_of_markdown_and_capitals_are_no_part_of_an_answer(text):
    assert final_answer(text) == "Momu"


@pytest.mark.parametrize("answer", ["__init__", "*", "*.py", "a*b*", "*a* and *b*", "2 ** 3", "`", "Momu, Bado", "_"])
def test_marks_that_belong_to_an_answer_stay(answer):
    assert final_answer(f"Answer: {answer}") == final_answer(answer) == answer


@given(st.text(alphabet="*_`answer: \n"))
def test_no_text_raises_and_nothing_is_added(text):
    assert final_answer(text) in text


def test_a_long_hostile_text_is_read_in_a_moment():
    begun = time.thread_time()
    for text in ("*", "answer:", "_", "* _", "*a", "`", "answer**:"):
        final_answer(text * 20_000 + "answer: x")
    assert time.thread_time() - begun < 5
