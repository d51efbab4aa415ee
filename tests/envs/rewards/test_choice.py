"""Multiple choice: one letter, found where an agent puts it; two letters are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.choice import chose, chosen


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{C}", r"\boxed{\text{(C)}}", r"$\boxed{\textbf{C}}$", r"\boxed{c}", r"\boxed{C. Paris}",
        "Answer: (C)", "Answer: C. Paris", "**Answer:** C", "answer: c", "So it is (C).", "C", "(C)",
        "A is wrong, and so is B.\nSo I choose C.", r"Answer: A, or rather \boxed{C}",
        r"\boxed{\boxed{C}}", r"\boxed{\fbox{ \boxed{(C)}}}", r"\fbox{C}", "Answer: C. A dog", "Answer: C. 40 B",
        r"\boxed{C. 25 °A}",
    ],
)  # fmt: skip
def test_one_letter_is_found_where_agents_write_it(text):
    assert chosen(text) == "C"


@pytest.mark.parametrize(
    "text",
    [
        None, "", "E", "I do not know", "Answer: A or B", "Answer: (A) and (B)", "Answer: A/B",
        r"\boxed{A} or \boxed{B}", r"\boxed{A, B}", "(A) (B)", "either (A) or (B)", "A, B, C, D", "A and B",
        "Answer: A\nAnswer: B", r"\boxed{}",
        "Answer: A. maybe C", r"\boxed{A. C}", r"\fbox{A} \boxed{C}", r"\boxed{A. B) C}", "Answer: C. A or not",
        r"\boxed{\boxed{A} \boxed{B}}", "Answer: Apple", "Answer: ABCD", r"\boxed{E}",
    ],
)  # fmt: skip
def test_two_letters_or_none_are_no_choice(text):
    assert chosen(text) is None


@given(st.text())
def test_no_text_raises(text):
    assert chosen(text) in (None, *"ABCD")


def test_more_options_have_more_letters():
    assert chosen("Answer: F") is None
    assert chose("Answer: F", "(F)", letters="ABCDEF")
    assert not chose("Answer: F", "A", letters="ABCDEF")
