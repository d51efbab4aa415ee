"""Answers in words: normalised as in SQuAD, exact or by shared words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.quotation import exact_match, normalised, token_f1
from palaestra.errors import UsageError


def test_case_punctuation_articles_and_blanks_do_not_matter():
    assert exact_match("The  Eiffel-Tower!", "eiffeltower")
    assert exact_match("«Notre Dame»", ["x", "notre dame"])
    assert normalised("An apple, a day") == "apple day"
    assert not exact_match("Paris, France", "Paris")
    assert not exact_match(None, "Paris")
    assert not exact_match("theatre", "atre"), "an article is a word"
    assert not exact_match("+", "-")
    assert exact_match(" - ", "-")


def test_f1_is_that_of_the_best_expected_answer():
    assert token_f1("Barack Obama", ["Obama", "Barack Hussein Obama"]) == pytest.approx(0.8)
    assert token_f1("one two two", "two two three") == pytest.approx(2 / 3)
    assert token_f1("Paris", "London") == 0
    assert token_f1(None, "London") == 0


@pytest.mark.parametrize(
    ("said", "expected"), [("no idea", "no"), ("yes it is", "yes"), ("no", "no way"), ("true", "not true")]
)
def test_yes_and_no_are_exact(said, expected):
    assert token_f1(said, expected) == 0
    assert token_f1(expected, expected) == 1


@given(st.text(), st.text())
def test_f1_is_a_share_and_symmetric_and_one_for_an_exact_match(one, other):
    assert 0 <= token_f1(one, other) <= 1
    assert token_f1(one, other) == token_f1(other, one)
    said, wanted = sorted(normalised(one).split()), sorted(normalised(other).split())
    assert (token_f1(one, other) == 1) == (said == wanted if wanted else one.strip() == other.strip() != "")


@pytest.mark.parametrize("expected", ["A", "the", "The a", "!", "", " "])
def test_an_empty_answer_is_never_right_even_where_nothing_but_articles_is_expected(expected):
    for nothing in ("", " ", None, "an", "?"):
        assert token_f1(nothing, expected) == 0, nothing
        assert not exact_match(nothing, expected), nothing
    for alike in (token_f1, exact_match):
        assert alike(f" {expected}", expected) == bool(expected.strip())


def test_where_no_answer_is_expected_that_is_said():
    for judge in (token_f1, exact_match):
        with pytest.raises(UsageError, match="no answer is expected"):
            judge("Paris", None)
