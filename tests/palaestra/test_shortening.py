"""Texts cut to a length, with a note of what is missing."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.envs.sandboxes.runner.output import shortened as shortened_bytes
from palaestra.shortening import cut, shortened

NOTE = re.compile(r"\n\[\.\.\. (?:(\d+) characters)?(?: and )?(?:(\d+)(?: of \d+)? bytes)? left out \.\.\.\]\n")


def written(total):
    """Text of which no two pieces are alike."""
    return "".join(f"{number:05d}" for number in range(total // 5 + 1))[:total]


def check(shown, text):
    """What is kept and what the notes name as left out is the whole text."""
    left_out = sum(int(number) for note in NOTE.finditer(shown) for number in note.groups() if number)
    pieces = NOTE.sub("|", shown).split("|")
    assert sum(map(len, pieces)) + left_out == len(text)
    assert text.startswith(pieces[0])
    assert text.endswith(pieces[-1])
    assert "left out" not in "".join(pieces), "a torn note"


@given(st.integers(0, 20_000), st.lists(st.integers(80, 9_000), min_size=1, max_size=3))
def test_what_is_kept_and_what_is_named_as_left_out_is_the_whole_text(total, limits):
    text = shown = written(total)
    for limit in limits:
        before, shown = shown, cut(shown, limit)
        assert shown == before if len(before) <= limit else limit - 80 <= len(shown) <= limit
        check(shown, text)


@given(st.integers(0, 40_000), st.integers(0, 40_000), st.integers(100, 20_000), st.integers(100, 20_000))
def test_what_a_sandbox_has_left_out_of_its_output_is_counted_in(stdout, stderr, cap, limit):
    texts = [written(stdout), written(stderr)]
    output = "".join(shortened_bytes(text.encode(), cap).decode() for text in texts)
    check(cut(output, limit), "".join(texts))


@given(st.integers(0, 60), st.integers(-5, 40))
def test_a_text_is_never_longer_than_its_limit(total, limit):
    assert len(cut("x" * total, limit)) <= max(limit, 0)


ROLES = st.sampled_from(["tool", "assistant", "user"])


@settings(max_examples=40)
@given(st.lists(st.tuples(ROLES, st.integers(0, 900)), max_size=8), st.integers(640, 4000))
def test_a_dialogue_is_cut_no_more_than_needed_and_results_first(parts, limit):
    messages = [{"role": role, "content": "x" * length} for role, length in parts]
    found = shortened(messages, limit)
    total, now = (sum(len(one["content"]) for one in some) for some in (messages, found))
    assert now <= limit
    assert now == total or now > limit - 24, "not more than the rounding of each message"
    assert [one["role"] for one in found] == [one["role"] for one in messages]
    for before, after in zip(messages, found, strict=True):
        assert before == after or "characters left out ...]" in after["content"]
    if any(a != b for a, b in zip(messages, found, strict=True) if a["role"] != "tool"):
        assert all(len(one["content"]) <= 80 for one in found if one["role"] == "tool")
