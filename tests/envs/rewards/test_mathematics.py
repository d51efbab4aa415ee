"""Mathematical answers: what is settled by text and numbers, and what a process of math-verify says of the rest."""

import asyncio
import json
import random
import threading
import time
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards import limited_processes, mathematics, symbolic
from palaestra.envs.rewards.limited_processes import LimitedProcesses
from palaestra.envs.rewards.mathematics import boxed, matches, number_matches, same, settled
from palaestra.errors import Broken, UsageError


@pytest.fixture(scope="module", autouse=True)
def processes():
    """They are shared by the tests below, for they take a second to start; and they have time on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        for line in (symbolic._light, symbolic._others):
            patch.setattr(line, "seconds", 60.0)
        yield
        symbolic.close()


@pytest.mark.parametrize(("answer", "expected"), [
    ("42", "42"), (" 42. ", "42"), ("$42$", "42"), ("1,234,567", "1234567"), ("1{,}234", "1234"), ("-7", "\u22127"),
    ("0.5", r"\frac{1}{2}"), (r"\dfrac12", "1/2"), (r"\frac{-1}{2}", "-0.5"), ("2/4", "1/2"), ("3.0", "3"),
    (r"10\%", "0.1"), (r"10\%", "10"), ("10", r"10 \%"), (r"\text{42}", "42"), (r"90^\circ", "90"),
    (r"\left( 1, 2 \right)", "(1,2)"), ("1e3", "1000"), (r"\$5", "5"), ("+3", "3"), (r"1.5\times10^{-3}", "1.5e-3"),
    ("1.5e-3", r"1.5 \times 10^{-3}"), ("0.0015", r"1.5\cdot 10^{-3}"), ("10^{12}", "1000000000000"),
    ("-2*10**3", "-2000"), (r"0.\overline{3}", r"\frac13"), (r"0.1\bar{6}", "1/6"), (r"1\frac{1}{2}", "3/2"),
    (r"\frac{1.5}{2}", "0.75"), ("(5)", "5"),
])  # fmt: skip
def test_another_spelling_of_a_number_is_the_same_without_a_process(answer, expected):
    assert settled(answer, expected) is True


@pytest.mark.parametrize(("answer", "expected"), [
    ("42", "43"), ("1/3", "0.333"), ("", "5"), ("", ""), ("1,23", "123"), ("5", "5 5"), ("10%", "11"), ("1/0", "0"),
    ("1" * 301, "1"), ("0.1", "0.10001"), ("-1", "1"), (r"1.5\times10^{3}", "1.5e-3"), ("10^5", "105"),
    (r"0.\overline{3}", "0.3"), (r"1\frac{3}{2}", "5/2"), ("(5", "5"), ("2m", "3m"),
])  # fmt: skip
def test_another_number_or_nothing_at_all_is_not_the_same(answer, expected):
    assert not settled(answer, expected)


@given(st.fractions(max_denominator=10**6), st.sampled_from(["{0}/{1}", "\\frac{{{0}}}{{{1}}}"]), st.integers(1, 99))
def test_a_number_is_itself_in_every_spelling_and_no_other_number(value, spelling, off):
    written = spelling.format(value.numerator, value.denominator)
    assert settled(written, str(value))
    assert settled(written, str(value + Fraction(off, 7))) is False


@given(st.text(max_size=400), st.text(max_size=400))
def test_no_text_raises_or_takes_long(answer, expected):
    begun = time.thread_time()
    settled(answer, expected)
    boxed(answer)
    assert time.thread_time() - begun < 5


def test_a_long_hostile_answer_is_read_in_a_moment():
    begun = time.thread_time()
    boxes = ("\\boxed{" * 50_000, "\\boxed{" + "{" * 100_000, "\\boxed{1e999999999}")
    for text in (*boxes, "9" * 200_000, "\\text{" * 30_000):
        assert not number_matches(text, "7")
        settled(text, "7")
    assert settled("1e999999999", "7") is False
    assert time.thread_time() - begun < 5, "it looks at every part of a text once, which takes hundredths of that"


def test_a_boxed_question_is_not_paid_where_a_number_is_expected():
    found = [number_matches(text, "155") for text in (r"\boxed{155}", r"\boxed{27^{315} \bmod 473}", "155")]
    assert found == [True, False, False]
    asked = {
        "1419857": ("17^5", "17^{5}", r"17 \cdot 17^4"), "56088": (r"123\cdot456", "123*456", r"123 \times 456"),
        "9": (r"\sqrt{81}", "1+1+1+1+1+1+1+1+1"), "120": (r"10\cdot9\cdot8/6", "5!"), "1024": ("2^{10}",),
    }  # fmt: skip
    for expected, questions in asked.items():
        assert asyncio.run(matches(rf"\boxed{{{expected}}}", expected))
        for question in questions:
            assert not asyncio.run(matches(rf"\boxed{{{question}}}", expected)), question


def test_an_answer_that_was_published_unevaluated_is_paid_in_that_form_and_worked_out():
    for expected, forms in {
        "2^{100}": ("2^{100}", "4^{50}", str(2**100)),
        "10!": ("10!", "3628800"),
        r"\frac{3}{4}\cdot\pi": (r"\frac{3\pi}{4}", r"0.75\pi"),
    }.items():
        for form in forms:
            assert asyncio.run(matches(rf"\boxed{{{form}}}", expected)), form


@pytest.mark.parametrize(("answer", "expected"), [
    (r"-5^\circ\text{C}", "-5 °C"), ("3.2e-5 kg", r"$3.2\times10^{-5}$ kg"), (r"5\,\mathrm{m/s}", "5.0 m/s"),
    ("H_2O", "H2O"), (r"\text{H}_2\text{O}", "H2O"), (r"\ce{H2O}", "H2O"), (r"\text{SO}_4^{2-}", "SO4^2-"),
    (r"\varnothing", r"\emptyset"), (r"\mathbb{R}", r"\mathbb R"), ("2.0x", "2x"),
])  # fmt: skip
def test_another_spelling_of_a_quantity_a_substance_or_a_set_is_the_same_without_a_process(answer, expected):
    assert settled(answer, expected) is settled(expected, answer) is True


def test_a_unit_may_stand_behind_a_number_and_a_letter_that_is_none_may_not():
    async def all_of_them():
        return [await same(answer, expected) for answer, expected in pairs]

    pairs = [(r"9~\mathrm{m/s}", "9"), (r"9\text{ m/s}", "9"), ("9 cm", "9"), ("9x", "9"), ("9i", "9"), (r"9\pi", "9")]
    assert asyncio.run(all_of_them()) == [True] * 3 + [False] * 3
    assert [settled(*pair) for pair in (("5 km", "5 m"), ("5 s", "5 m"), ("5 mg", "5 kg"))] == [False] * 3
    assert settled("R_2R_1", "R_1R_2") is None, "a product, and no substance"
    for letters in (r"\log 28", "H_3O", "2H_2O"):
        assert settled(letters, r"\log_2 8" if "log" in letters else "H2O") is not True


def test_what_is_no_text_is_refused_with_what_was_expected():
    with pytest.raises(UsageError, match="is 9; expected text"):
        asyncio.run(matches(9, "9"))


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


def test_percent_means_what_its_own_side_says():
    same_ones = [("10%", "10"), ("10", "10%"), ("10%", "0.1"), ("0.1", "10%"), ("4200%", "42.00"), ("10.0%", "10%")]
    others = [("100000%", "10"), ("0.001", "10%"), ("420000%", "42.00"), ("1000", "10%"), ("0.1%", "10"), ("1%", "10%")]
    assert [settled(*pair) for pair in same_ones] == [True] * len(same_ones)
    assert [settled(*pair) for pair in others] == [False] * len(others)


def test_a_blank_between_digits_parts_numbers_unless_it_groups_thousands():
    for text in ("1 5", "1 5/1", "1  5.0", "15 000", "0.001 500"):
        assert settled(text, "15") is False, text
    for text in ("15 000", r"15\,000", "15 000.0", "15{,}000"):
        assert settled(text, "15000") is True, text
    assert settled("1 1/2", "11/2") is False
    assert settled("1  2", "1 2") is True


def test_what_the_number_is_called_may_stand_before_it():
    for text in ("x=5", "x = 5.0", "f(2)=5", "S_{10}=5", "a+b=5", r"\theta=5"):
        assert settled(text, "5") is True, text
    for text in ("1=5", "5=x", "x=y=5", "x==5", "x=6", "2x=5"):
        assert settled(text, "5") is False, text


class Pretended:
    """A process that compares nothing: what is slow by its text takes until all that are slow are let go."""

    over = threading.Event()
    slow: list[str] = []  # noqa: RUF012

    def __init__(self, *_):
        self.ready = {"math-verify"}

    def answer(self, _, question, __):
        if SLOW in json.loads(question)[0]:
            self.slow.append(question)
            self.over.wait(60)
        return "True"

    def end(self):
        pass


SLOW = r"\int x dx + "


def test_slow_answers_of_others_cost_a_quick_one_nothing_and_none_waits_for_long(monkeypatch):
    """Not one process is started: what is asked here is who waits for whom, and how long, by a clock of its own."""
    now = [0.0]

    async def all_of_them():
        line = [
            asyncio.ensure_future(symbolic.equal(f"{SLOW}{n}", "x")) for n in range(5 * limited_processes.PROCESSES)
        ]
        until = time.monotonic() + 60
        while len(Pretended.slow) < limited_processes.PROCESSES and time.monotonic() < until:
            await asyncio.sleep(0.005)
        quick = await symbolic.equal("x+1", "x")
        now[0] += symbolic.QUEUE_SECONDS + 1
        Pretended.over.set()
        return quick, await asyncio.gather(*line), await symbolic.equal(f"{SLOW}{len(line) - 1}", "x")

    Pretended.over.clear()
    Pretended.slow.clear()
    for name in ("_light", "_others"):
        monkeypatch.setattr(symbolic, name, LimitedProcesses(symbolic.SymbolicEqualityJob, 2.0, 100))
    monkeypatch.setattr(limited_processes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(limited_processes, "_Worker", Pretended)
    quick, verdicts, alone = asyncio.run(all_of_them())
    symbolic.close()
    assert quick, "while all processes of the others are busy"
    assert verdicts == [True] * limited_processes.PROCESSES + [False] * 4 * limited_processes.PROCESSES
    assert len(Pretended.slow) == limited_processes.PROCESSES + 1, "a late one is not looked at"
    assert alone, "what was not looked at is not remembered as wrong"


def test_what_takes_too_long_is_different_and_the_next_comparison_is_served(monkeypatch):
    assert asyncio.run(same(r"2\sqrt{2}", r"\sqrt{8}"))
    monkeypatch.setattr(symbolic._others, "seconds", 0.3)
    begun = time.monotonic()
    assert asyncio.run(same("(" * 60 + "1" + ")" * 60, "1+x")) is False
    assert time.monotonic() - begun < 60
    assert asyncio.run(same(r"3\sqrt{2}", r"\sqrt{18}"))


def test_processes_that_cannot_be_started_are_broken_and_not_a_wrong_answer(monkeypatch):
    def refuse(*_):
        raise OSError("no process left")

    symbolic.close()
    monkeypatch.setattr(limited_processes, "WorkerProcess", refuse)
    with pytest.raises(Broken, match="no process left"):
        asyncio.run(same("x+1", f"y+{random.random()}"))
