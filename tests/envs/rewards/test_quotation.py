"""Answers in words: normalised as in SQuAD, exact or by shared words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.bleu import length_aware_bleu
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


UNLIKE = [
    ("3.14", "314"), ("-5", "5"), ("\u22125", "5"), ("\u20135", "5"), ("-$5", "$5"), ("1/2", "12"), ("10-12", "1012"),
    ("10:30", "1030"), ("5,-6", "5,6"), ("3.1.4", "3.14"), ("1,2", "12"), (".5", "5"), ("2^10", "210"), ("0.50", "050"),
    ("C++", "C"), ("C#", "C"), ("A+", "A"), ("version 3.14", "version 314"), ("it is -5 here", "it is 5 here"),
    ("1e-3", "1e3"), ("2.5E\u22123 m", "2.5e3 m"), ("\uff0d5", "5"), ("\ufe635", "5"),
]  # fmt: skip
ALIKE = [
    ("1,200", "1200"), ("1,200.50", "1200.5"), ("1984.0", "1984"), ("In 1984.", "in 1984"), ("\u22125", "-5"),
    (".5", "0.50"), ("-.5", "\u20130.5"), ("1990-1995", "1990\u20131995"), ("12/25/2020", "12-25-2020"), ("$5", "5"),
    ("+5", "5"), ("1e+3", "1E3"), ("1e-3", "1E\u22123"), ("\uff0d5", "-5"),
    ("(5)", "5"), ("5%", "5"), ("covid-19", "COVID19"), ("U.S.", "US"), ("...5", "5"), ("x_y", "xy"), ("5 - 6", "5 -6"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_a_mark_that_makes_another_number_or_name_is_no_punctuation(one, other):
    for said, expected in ((one, other), (other, one)):
        assert not exact_match(said, expected)
        assert token_f1(said, expected) < 1
        assert length_aware_bleu(said, expected) < 1


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_a_number_is_the_same_however_it_is_written(one, other):
    for said, expected in ((one, other), (other, one)):
        assert exact_match(said, expected)
        assert token_f1(said, expected) == length_aware_bleu(said, expected) == 1


@given(st.decimals(-9999, 9999, places=3, allow_nan=False), st.decimals(-9999, 9999, places=3, allow_nan=False))
def test_numbers_are_compared_as_numbers(one, other):
    assert exact_match(str(one), f"{other:,}") == (one == other)
    assert exact_match(f"about {one:,}.", f"About {one.normalize():f}!")


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
