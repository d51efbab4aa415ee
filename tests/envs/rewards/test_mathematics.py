"""Mathematical answers: what is settled by text and numbers, and what a process of math-verify says of the rest."""

import asyncio
import random
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards import mathematics, symbolic
from palaestra.envs.rewards.mathematics import boxed, matches, number_matches, same, settled, strictly_matches
from palaestra.errors import Broken


@pytest.fixture(scope="module", autouse=True)
def processes():
    """They are shared by the tests below, for they take a second to start."""
    yield
    symbolic.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "42"), (" 42. ", "42"), ("$42$", "42"), ("1,234,567", "1234567"), ("1{,}234", "1234"), ("-7", "\u22127"),
        ("0.5", r"\frac{1}{2}"), (r"\dfrac12", "1/2"), (r"\frac{-1}{2}", "-0.5"), ("2/4", "1/2"), ("3.0", "3"),
        (r"10\%", "0.1"), (r"10\%", "10"), ("10", r"10 \%"), (r"\text{42}", "42"), (r"90^\circ", "90"),
        (r"\left( 1, 2 \right)", "(1,2)"), ("1e3", "1000"), (r"\$5", "5"), ("+3", "3"),
    ],
)  # fmt: skip
def test_another_spelling_of_a_number_is_the_same_without_a_process(answer, expected):
    assert settled(answer, expected) is True


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "43"), ("1/3", "0.333"), ("", "5"), ("", ""), ("1,23", "123"), ("5", "5 5"), ("10%", "11"), ("1/0", "0"),
        ("1" * 301, "1"), ("0.1", "0.10001"), ("-1", "1"),
    ],
)  # fmt: skip
def test_another_number_or_nothing_at_all_is_not_the_same(answer, expected):
    assert not settled(answer, expected)


@given(st.fractions(max_denominator=10**6), st.sampled_from(["{0}/{1}", "\\frac{{{0}}}{{{1}}}"]), st.integers(1, 99))
def test_a_number_is_itself_in_every_spelling_and_no_other_number(value, spelling, off):
    written = spelling.format(value.numerator, value.denominator)
    assert settled(written, str(value))
    assert settled(written, str(value + Fraction(off, 7))) is False


@given(st.text(max_size=400), st.text(max_size=400))
def test_no_text_raises_or_takes_long(answer, expected):
    begun = time.perf_counter()
    settled(answer, expected)
    boxed(answer)
    assert time.perf_counter() - begun < 0.5


def test_a_long_hostile_answer_is_read_in_a_moment():
    begun = time.perf_counter()
    for text in (
        "\\boxed{" * 50_000,
        "\\boxed{" + "{" * 100_000,
        "9" * 200_000,
        "\\text{" * 30_000,
        "\\boxed{1e999999999}",
    ):
        assert not number_matches(text, "7")
        settled(text, "7")
    assert settled("1e999999999", "7") is None
    assert time.perf_counter() - begun < 2


def test_the_last_box_counts_and_braces_inside_it_belong_to_it():
    assert boxed(r"\boxed{1} then \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert boxed(r"\boxed{1") is None
    assert boxed("no box") is None
    assert boxed(None) is None


def test_a_question_put_in_a_box_is_no_number():
    assert number_matches(r"\boxed{155}", "155")
    assert not number_matches(r"\boxed{27^{315} \bmod 473}", "155")
    assert not number_matches("155", "155")


def test_the_exact_form_of_the_paper_is_the_same_text_in_the_last_hundred_characters():
    assert strictly_matches(r"so \boxed{12}", "12")
    assert not strictly_matches(r"so \boxed{12.0}", "12")
    assert not strictly_matches(r"so \boxed{ 12}", "12")
    assert not strictly_matches(r"\boxed{12}" + " and more words" * 10, "12")
    assert not strictly_matches(None, "12")


def test_any_of_several_expected_answers_is_right():
    for expected in ('["3", "\\\\frac{1}{2}"]', ["3", "0.5"]):
        assert asyncio.run(matches(r"\boxed{0.5}", expected))
        assert not asyncio.run(matches(r"\boxed{4}", expected))
    assert mathematics.alternatives("[1, 2]") == ["[1, 2]"], "an interval is one answer"


def test_math_verify_decides_what_text_and_numbers_cannot():
    async def all_of_them():
        return [await same(*pair) for pair in pairs]

    pairs = [(r"2\sqrt{2}", r"\sqrt{8}"), ("x=5", "5"), (r"\{1,2\}", r"\{2,1\}"), (r"\sqrt{2}", "1.41"), ("x", "y")]
    assert asyncio.run(all_of_them()) == [True, True, True, False, False]


def test_what_takes_too_long_is_different_and_the_next_comparison_is_served(monkeypatch):
    assert asyncio.run(same(r"2\sqrt{2}", r"\sqrt{8}"))
    monkeypatch.setattr(symbolic, "SECONDS", 0.3)
    begun = time.monotonic()
    assert asyncio.run(same("(" * 60 + "1" + ")" * 60, "1+x")) is False
    assert time.monotonic() - begun < 5
    monkeypatch.setattr(symbolic, "SECONDS", 20.0)
    assert asyncio.run(same(r"3\sqrt{2}", r"\sqrt{18}"))


def test_processes_that_cannot_be_started_are_broken_and_not_a_wrong_answer(monkeypatch):
    def refuse(*_):
        raise OSError("no process left")

    symbolic.close()
    monkeypatch.setattr(symbolic, "Child", refuse)
    with pytest.raises(Broken, match="no process left"):
        asyncio.run(same("x+1", f"y+{random.random()}"))
