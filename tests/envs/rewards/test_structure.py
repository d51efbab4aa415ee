"""What an answer is made of: a written number or not, explosive or not, and sure to be quick or not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.mathematics import number, plain, settled
from palaestra.envs.rewards.structure import explodes, holds_mathematics, light

QUESTIONS = (
    r"\binom{20}{10}", r"{20 \choose 10}", r"\sum_{k=1}^{10} k", r"\prod_{k=1}^5 k", r"\int_0^1 3x^2 dx",
    r"\lim_{x \to 0} \frac{\sin x}{x}", r"\det(A)", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", r"\gcd(12, 18)", "5!",
    r"\operatorname{gcd}(12, 18)", "gcd(12,18)", r"27^{315} \bmod 473", "27^315 mod 473", "2^{2^{3}}", "2^(2^3)",
    "2**2**3", r"\log_2 8", r"\lfloor 7/2 \rfloor", "|-5|", "∑k", "C(20,10)",
)  # fmt: skip
SEVERAL = (
    "1=2", "2+2=4", r"3 \vee 4", r"3 \cup 4", r"3 \lor 4", r"3\text{ or }4", "3 or 4", "3, 4", "3; 4", r"\pm 4", "±4",
    r"\{3, 4\}", "3 < 4", r"3 \le 4", "3 ≠ 4", "[3, 4]", r"3 \approx 4",
)  # fmt: skip
UNFINISHED = (
    "2^{10}", "2^10", "17^5", r"\frac{\sqrt{4}}{2}", r"2\cdot 3", r"123\cdot 456", "1+1+1+1", r"\sqrt{16}", "2sqrt(4)",
    r"\sqrt[3]{8}", r"10\cdot 9\cdot 8/6", "(1+2)/3", "8-4", "2*2", r"8\div 2", "4×1", r"2\pi/\pi", "2^{2}", "(2)(2)",
)  # fmt: skip
WRITTEN_OUT = (
    "4", r"\frac{8}{2}", "8/2", "4.0", r"4\times 10^{0}", "(4)", "{4}", r"400\%", "0.4e1", "+4", "4^\\circ",
)  # fmt: skip


@pytest.mark.parametrize("text", QUESTIONS + SEVERAL + UNFINISHED)
def test_where_a_number_is_expected_a_question_or_several_answers_are_none(text):
    assert number(plain(text)) is None
    for expected in ("4", "2", "184756", "0.5"):
        assert settled(text, expected) is False


@pytest.mark.parametrize("text", WRITTEN_OUT)
def test_a_number_that_is_written_out_is_that_number(text):
    assert number(plain(text)) == 4


@pytest.mark.parametrize(
    "text", ["5 cm", "5cm", r"5\text{ cm}^2", "5 m/s", r"5~\mathrm{m/s}", r"5\text{ kg}\cdot\text{m/s}^{2}"]
)
def test_a_number_with_a_unit_is_for_math_verify_where_a_number_is_expected(text):
    assert settled(text, "5") is None


@pytest.mark.parametrize(
    "text", ["9^{9^{9^{7}}}", "10^{10^{10}}", "((10^8)!)!", "99999!", "9^9^9", "9**9**9", "10^{100000}", "2^(2^(9))"]
)
def test_a_tower_is_different_at_once_whatever_is_expected(text):
    assert explodes(text)
    assert settled(text, "x+y") is False
    assert not light(text)


@pytest.mark.parametrize("text", ["e^{x^{2}}", "e^{-x^2}", "x^{2^{n}}", "x^{10}", "(n+1)!", "2^{n+1}", "10^{-34}"])
def test_a_power_of_a_variable_may_stand_in_an_exponent(text):
    assert not explodes(text)


def test_only_what_is_quick_is_light():
    for text in (r"2\sqrt{2}", "x=5", r"\frac{3\pi}{4}", "x^2+2x+1", r"\{1,2\}", "(x+1)^2"):
        assert light(text), text
    long = ("9" * 100, "(" * 20, r"\sqrt{2}+" * 5 + "1", "(a+b+c+d+e+f+g)^3", "((x+y)^3+z)^3")
    for text in (*long, r"\int x dx", "(x+y+z+w)^{60}", "n!", "x^{99}+y^{99}", "sin(x)cos(y)"):
        assert not light(text), text


@pytest.mark.parametrize("text", ["-35.33", "a < b", "+", "40 C", "-x", "(a, b]", r"\alpha", "≤", "x − y"])
def test_digits_and_operators_are_mathematics(text):
    assert holds_mathematics(text)


@pytest.mark.parametrize("text", ["X-ray", "carbon dioxide", "Ada Frost.", "", "Newton's law"])
def test_words_with_their_hyphens_are_not(text):
    assert not holds_mathematics(text)


@given(st.text(alphabet="^{}()9x*!\\=", max_size=300))
def test_no_structure_takes_long(text):
    begun = time.thread_time()
    explodes(text), light(text), settled(text, "4")
    assert time.thread_time() - begun < 5
