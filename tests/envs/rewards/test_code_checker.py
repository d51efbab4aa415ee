"""What a program printed or returned beside what was expected: when they are the same, and when they are not."""

import pytest

from palaestra.envs.rewards.code_checker import same_output, same_value


def test_printed_text_is_compared_but_for_blanks_at_line_ends_and_empty_lines_at_the_end():
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert same_output("1\r\n2", "1\n2")
    assert not same_output("a  b", "a b")
    assert not same_output("1\n\n2", "1\n2")
    assert not same_output(" a", "a")
    assert not same_output("", "1")


@pytest.mark.parametrize(("printed", "wanted"), [
    ("0.5", "0.500000"), ("1", "1.0"), ("-0.0", "0"), ("1e-3 .25", "0.001 0.25"), ("1  2", "1 2"), (" 7\n", "7"),
    ("x\n2.50", "x\n2.5"), ("+5", "5"), ("1e999999999", "10e999999998"),
])  # fmt: skip
def test_lines_of_numbers_are_compared_as_numbers_exactly(printed, wanted):
    assert same_output(printed, wanted)
    assert same_output(wanted, printed)


@pytest.mark.parametrize(("printed", "wanted"), [
    ("0.1000000000000000055511151231257827", "0.1"), ("007", "7"), ("0010", "10"), ("1_0", "10"), ("\u0661", "1"),
    ("nan", "NaN"), ("inf", "Infinity"), ("x 0.5", "x 0.50"), ("0.5\n", "0.5\n0.5"), ("1 2", "1"), ("0x1", "1"),
    ("", "0"), ("1e9999999999", "1e9999999999.0"), ("1/2", "0.5"),
])  # fmt: skip
def test_what_is_no_line_of_the_same_numbers_is_another_output(printed, wanted):
    assert not same_output(printed, wanted)
    assert not same_output(wanted, printed)


def test_numbers_may_be_off_by_the_tolerance_alone():
    assert not same_output("0.3333", "0.3334")
    assert same_output("x 0.3333", "x 0.33331", tolerance=1e-4)
    assert not same_output("nan inf", "1 2", tolerance=1e9)
    assert not same_output("y 1", "x 1", tolerance=1.0)
    assert same_value([1.0, [2.0000001]], [1, [2]], tolerance=1e-6)
    assert not same_value([1.0, [2.0000001]], [1, [2]])
    assert not same_value([1], [1, 2])
