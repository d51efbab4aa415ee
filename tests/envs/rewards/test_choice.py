"""Multiple choice: one letter, found where an agent puts it; two letters are none."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.choice import chosen


@pytest.mark.parametrize("text", [
    r"\boxed{C}", r"\boxed{\text{(C)}}", r"$\boxed{\textbf{C}}$", r"\boxed{c}", r"\boxed{C. Paris}", "Answer: (C)",
    "Answer: C. Paris", "**Answer:** C", "answer: c", "So it is (C).", "C", "(C)",
    "A is wrong, and so is B.\nSo I choose C.", r"Answer: A, or rather \boxed{C}", r"\boxed{\boxed{C}}",
    r"\boxed{\fbox{ \boxed{(C)}}}", r"\fbox{C}", "Answer: C. A dog", "Answer: C. 40 B", r"\boxed{C. 25 °A}",
    r"\boxed{Option C}", r"\boxed{Answer: C}", r"\boxed{\text{Option (C)}}", "Answer: Option C", "<answer>C</answer>",
    "<answer>\n(C)\n</answer>", "The answer is C, a pion", "**The answer is C**",
    "The correct answer is (C) because A is wrong.", "A and B are wrong, so the answer is C.",
])  # fmt: skip
def test_one_letter_is_found_where_agents_write_it(text):
    assert chosen(text) == "C"


@pytest.mark.parametrize("text", [
    None, "", "E", "I do not know", "Answer: A or B", "Answer: (A) and (B)", "Answer: A/B", r"\boxed{A} or \boxed{B}",
    r"\boxed{A, B}", "(A) (B)", "either (A) or (B)", "A, B, C, D", "A and B", "Answer: A\nAnswer: B", r"\boxed{}",
    "Answer: A. maybe C", r"\boxed{A. C}", r"\fbox{A} \boxed{C}", r"\boxed{A. B) C}", "Answer: C. A or not",
    r"\boxed{\boxed{A} \boxed{B}}", "Answer: Apple", "Answer: ABCD", r"\boxed{E}", "The answer is A or C",
    "The answer is A, or maybe C", "The answer is (A)/(C)", "The answer is A dog",
    "The answer is A. The answer is C.", "<answer>A</answer><answer>C</answer>", "<answer>A or C</answer>",
    r"\boxed{Option A or C}", r"\boxed{Options A and C}",
])  # fmt: skip
def test_two_letters_or_none_are_no_choice(text):
    assert chosen(text) is None


@pytest.mark.parametrize("text", [
    "definitely not C", "not C", "I exclude C", "I rule out (C).", "It can't be C", "It isn’t C", "anything but C",
    "The answer is not C", "I do not think that the answer is (C).", "I doubt that it is C", r"\boxed{not C}",
])  # fmt: skip
def test_a_letter_that_is_denied_is_no_choice(text):
    assert chosen(text) is None


@pytest.mark.parametrize(
    "text", ["Since it is not a lepton the answer is C", "There is no doubt it is C", "not 9, so C"]
)
def test_what_is_said_of_something_else_denies_no_letter(text):
    assert chosen(text) == "C"


@pytest.mark.parametrize("text", ["answer is A,", "not that ", "<answer>", "answer is A or ", "not C\n", "the "])
def test_a_long_hostile_text_is_read_in_a_moment(text):
    begun = time.thread_time()
    chosen(text * (200_000 // len(text)))
    assert time.thread_time() - begun < 5


@given(st.text())
def test_no_text_raises(text):
    assert chosen(text) in (None, *"ABCD")


def test_more_options_have_more_letters():
    assert chosen("Answer: F") is None
    assert chosen("Answer: F", letters="ABCDEF") == "F"
