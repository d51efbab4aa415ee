"""Why episodes failed is counted by cause, in few short lines, whatever the texts are."""

from palaestra.causes import BROKEN, OTHERS, RAISED, Causes


def counted(*texts):
    causes = Causes()
    for text in texts:
        causes.add(BROKEN, text)
    return causes.as_dict().get(BROKEN, {})


def test_numbers_addresses_and_temporary_paths_do_not_make_a_cause_of_its_own():
    same = [
        "Mine slot 3: http://127.0.0.1:4001/AbcDefGhi/v1 is gone, <Pool at 0x7f21ab>, /tmp/tmpabcdef/x, after 1.5 s",
        "Mine slot 17: http://127.0.0.1:52345/XyzzyPlugh/v1 is gone, <Pool at 0x55aa>, /tmp/tmpuvwxyz/x, after 20 s",
    ]
    assert counted(*same, "KeyError: 'color'", "KeyError: 'size'", same[1]) == {
        same[0]: 3,
        "KeyError: 'color'": 1,
        "KeyError: 'size'": 1,
    }


def test_the_most_frequent_causes_come_first_and_the_rest_are_counted_together():
    words = [f"{letter * 4} failed" for letter in "abcdefghijkl"]
    found = counted(*(word for place, word in enumerate(words, start=1) for _ in range(place)))
    assert [*found] == [*reversed(words[5:]), OTHERS]
    assert sum(found.values()) == 78
    hostile = counted(*("".join(chr(97 + int(digit)) for digit in str(number)) for number in range(20_000)))
    assert (len(hostile), sum(hostile.values())) == (8, 20_000)


def test_a_cause_is_one_line_of_bounded_length_with_its_beginning_and_its_end():
    (text,) = counted("Traceback:\n" + "word \n" * 10**6 + "the last line")
    assert text.startswith("Traceback: word") and text.endswith("the last line")
    assert len(text) <= 300 and "\n" not in text
    assert all(len(text) < 5000 for text in counted("x" * 10**6, "1 " * 10**6, f"{'1' * 80} " * 10**6))
    assert counted("", " \n") == {"no cause was recorded": 2}


def test_causes_that_were_written_are_summed_up_and_what_was_edited_is_ignored():
    first, second = Causes(), Causes()
    for causes, slot in ((first, 1), (second, 2), (second, 3)):
        causes.add(BROKEN, f"slot {slot} is gone")
        causes.add(RAISED, "ValueError")
    edited = [None, 3, {BROKEN: 3}, {BROKEN: {"text": "many"}}, {"others": {"text": 1}}, {RAISED: {"text": None}}]
    total = Causes([first.as_dict(), second.as_dict(), *edited])
    assert total.as_dict() == {BROKEN: {"slot 1 is gone": 3}, RAISED: {"ValueError": 3}}
    assert total.lines() == [
        "3 episodes are BROKEN, and count in no figure:",
        "      3  slot 1 is gone",
        "3 episodes ended because their harness raised an error:",
        "      3  ValueError",
    ]
    assert Causes().lines() == []
