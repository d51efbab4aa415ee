"""Episode files: what is written is read back, and what was cut or changed is found."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.episode import Attempt, Call, Ending, Episode, Start, Status, Task, TokenRow
from palaestra.errors import RecordError, UsageError
from palaestra.plain import from_plain, to_plain
from palaestra.record import Defect, Lesson, Record, Recorder, _digest, from_line, read, scan, to_line, write

simple = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=8)
values = st.recursive(
    simple,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("$"), inner, max_size=4)
        | st.frozensets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    return json.dumps(to_plain(one)) == json.dumps(to_plain(other)) and type(one) is type(other)


def row(count: int = 7, seed: int = 0) -> TokenRow:
    rng = np.random.default_rng(seed)
    sampled = rng.random(count) < 0.5
    return TokenRow(
        rng.integers(50_000, size=count).astype(np.int32),
        sampled,
        np.where(sampled, -rng.random(count), 0.0).astype(np.float32),
        np.where(sampled, rng.integers(3, size=count), -1).astype(np.int32),
    )


def record(**changes: Any) -> Record:
    attempt = Attempt(
        Task("What is 2 * 3?", answer=(6, {"six"}), id="train/4", data={"digits": np.int64(1), 3: b"\x00"}),
        ({"role": "user", "content": "What is 2 * 3?"}, {"role": "assistant", "content": "café \ud800 </script>"}),
        "6",
        (
            Call("calculator", {"expression": "2*3"}, "6", Status.OK, 0.25),
            Call("submit", {"value": 6}, "six", Status.OK, 0.5, {"value": "6"}, "6"),
        ),
        2,
        {"orders": {7: "paid"}},
        "ann_0",
        ({"sold": ()}, {"sold": (7,)}),
    )
    fields: dict[str, Any] = {
        "start": Start(4, 2**40, 17, None, ({"role": "user", "content": "again"},), greedy=True),
        "attempt": attempt,
        "rows": (row(), row(0), row(31, 5)),
        "ending": Ending.ANSWERED,
        "reward": 1.0,
        "parts": {"success": 1.0},
        "tools": ({"type": "function", "function": {"name": "calculator"}},),
        "seconds": 1.5,
    }
    return Record("palaestra/Calculator-v0", Episode(**{**fields, **changes}), {"split": "train"}, "tiny")


def assert_equal(one: Record, other: Record) -> None:
    assert replace(one, episode=None, lessons=()) == replace(other, episode=None, lessons=())  # type: ignore[arg-type]
    for name in ("start", "ending", "reward", "parts", "fault", "tools", "seconds"):
        assert getattr(one.episode, name) == getattr(other.episode, name)
    for left, right in zip(one.episode.rows, other.episode.rows, strict=True):
        for name in ("ids", "sampled", "logprobs", "versions"):
            a, b = getattr(left, name), getattr(right, name)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    for name in ("messages", "answer", "calls", "turns", "final", "seat", "worlds"):
        assert getattr(one.episode.attempt, name) == getattr(other.episode.attempt, name)
    assert same(to_plain(one.episode.attempt.task.data), to_plain(other.episode.attempt.task.data))


@given(values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    written = json.loads(json.dumps(to_plain(value), allow_nan=False))
    assert same(from_plain(written), value)


def test_arrays_come_back_with_type_and_shape_and_objects_of_other_classes_are_refused_by_name() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    back = from_plain(json.loads(json.dumps(to_plain(array))))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    with pytest.raises(UsageError, match=r"data\['world'\]\[1\] is of type PosixPath"):
        to_plain({"world": [1, Path("x")]}, "data")


def test_a_record_comes_back_as_it_was_and_stores_no_field_that_old_ones_lack_unless_it_is_needed() -> None:
    big = row(20_000, 3)
    for made in (record(), record(rows=()), record(rows=(big,))):
        assert_equal(from_line(to_line(made)), made)
    assert from_line(to_line(record(rows=(big,)))).episode.rows[0].logprobs.tobytes() == big.logprobs.tobytes()
    attempt = record().episode.attempt
    plain = replace(attempt, final={}, seat=None, worlds=())
    full, bare = (json.loads(to_line(record(attempt=one)).decode("utf-8", "surrogatepass")) for one in (attempt, plain))
    assert full.keys() - bare.keys() == {"final", "seat", "worlds"}
    assert full["calls"][1].keys() - full["calls"][0].keys() == {"written", "answer"}
    assert_equal(from_line(to_line(record(attempt=plain))), record(attempt=plain))


def learned(step: int = 3) -> Lesson:
    """What training made of `record()`."""
    said = tuple(np.where(one.sampled, np.float32(-0.125), np.float32(0)) for one in record().episode.rows)
    return Lesson(step, {"outcome": 1.0}, -0.5, said, 2)


def assert_same_lessons(found: tuple[Lesson, ...], given_ones: tuple[Lesson, ...]) -> None:
    for lesson, written in zip(found, given_ones, strict=True):
        for name in ("step", "terms", "advantage", "updates"):
            assert getattr(lesson, name) == getattr(written, name)
        for one, other in zip(lesson.trainer_logprobs, written.trainer_logprobs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_each_lesson_comes_back_with_the_trainers_log_probs() -> None:
    several = (learned(3), learned(4))
    assert_same_lessons(from_line(to_line(replace(record(), lessons=several))).lessons, several)


def test_a_line_that_was_cut_off_is_named_and_those_before_it_are_read(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write(path, [record(), record(), record()])
    path.write_bytes(path.read_bytes()[:-40])
    found = list(scan(path))
    assert [type(one) for one in found] == [Record, Record, Defect]
    with pytest.raises(RecordError, match=r"episodes.jsonl, line 3: .*cut off"):
        list(read(path))


def test_a_changed_line_is_found_and_one_that_is_spelled_another_way_is_read() -> None:
    line = to_line(record(reward=1.0)).decode("utf-8", "surrogatepass")
    for old, new in (('"reward": 1.0', '"reward": 2.0'), ("2 * 3", "2 * 4"), ('"task": 4', '"task": 5')):
        assert old in line
        with pytest.raises(ValueError, match="changed after it was written"):
            from_line(line.replace(old, new).encode("utf-8", "surrogatepass"))
    content = json.loads(to_line(record(rows=(), fault="é")).decode("utf-8", "surrogatepass"))
    assert_equal(from_line(json.dumps(content, sort_keys=True, indent=None).encode()), record(rows=(), fault="é"))


def test_what_is_no_record_is_said_to_be_none() -> None:
    others = (b'{"palaestra": 99}', b'{"palaestra": 1, "digest": "x"}')
    for line in (b"{}", b"[1]", b"null", b"\xff\xfe", b"<html>", *others):
        with pytest.raises(ValueError, match="it "):
            from_line(line)
    content = json.loads(to_line(record()).decode("utf-8", "surrogatepass"))
    del content["digest"]
    content["rows"] = [{"ids": [1], "sampled": [[0, 9]], "logprobs": [], "versions": []}]
    line = json.dumps({"digest": _digest(content), **content}).encode()
    with pytest.raises(ValueError, match="fields are not those of an episode"):
        from_line(line)


def test_writing_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write(path, [record()])
    before = path.read_bytes()
    bad = record(attempt=replace(record().episode.attempt, task=Task("x", answer=object())))
    with pytest.raises(UsageError, match=r"Task\.answer is of type object"):
        write(path, [record(), bad])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_recorder_adds_lines_that_are_whole_at_once_and_glues_none_to_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    for count in (1, 2):
        with Recorder(path) as recorder:
            recorder.add(record())
            assert len(list(read(path))) == count
    path.write_bytes(to_line(record())[:-9])
    with pytest.raises(UsageError, match="cut off"):
        Recorder(path)


def test_a_file_that_is_not_there_or_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        list(read(tmp_path / "absent.jsonl"))
    for made in (lambda: Recorder(tmp_path), lambda: write(tmp_path / "absent" / "e.jsonl", [])):
        with pytest.raises(UsageError, match=r"cannot be written: (Is a directory|No such file)"):
            made()


MISSHAPEN = {
    "more versions than tokens": (("rows", 0, "versions"), [[0, 10**12]]),
    "versions of a negative length": (("rows", 0, "versions"), [[0, 10], [0, -3]]),
    "ids beyond 32 bits": (("rows", 0, "ids"), [2**40]),
    "ids in lists": (("rows", 0, "ids"), [[1], [2], [3], [4], [5], [6], [7]]),
    "a fraction over 0": (("task", "answer"), {"$": "Fraction", "of": [1, 0]}),
    "a reward of text": (("reward",), "1"),
    "a reward that no float holds": (("reward",), 10**400),
    "a reward that is no number": (("reward",), float("nan")),
    "parts in a list": (("parts",), [1]),
    "a part of text": (("parts", "success"), "1"),
    "a message of text": (("messages", 0), "hello"),
    "a message without a role": (("messages", 0), {"content": "hello"}),
    "a part of a message that is a number": (("messages", 0, "content"), [5]),
    "a prefix of text": (("start", "prefix"), ["hello"]),
    "a group that is a list": (("start", "group"), [1]),
    "a seat that is a list": (("seat",), [1]),
    "a prompt that is a number": (("task", "prompt"), 5),
    "data in a list": (("task", "data"), [1]),
    "an answer that is a number": (("answer",), 5),
    "arguments in a list": (("calls", 0, "arguments"), [1]),
    "turns of text": (("turns",), "2"),
    "a tool of text": (("tools", 0), "calculator"),
    "a function that is a list": (("tools", 0, "function"), [1]),
    "an agent that is a list": (("agent",), ["tiny"]),
    "terms in a list": (("lessons", 0, "terms"), [1]),
    "an advantage of text": (("lessons", 0, "advantage"), "1"),
    "a step of text": (("lessons", 0, "step"), "1"),
}


@pytest.mark.parametrize("case", MISSHAPEN)
def test_a_line_with_a_digest_whose_values_are_of_another_kind_is_a_defect(case, tmp_path):
    """Whoever writes a file also writes its digests, so these say nothing of the kinds of values in it."""
    content = json.loads(to_line(replace(record(), lessons=(Lesson(1, {"outcome": 1.0}, 0.5),))))
    content.pop("digest")
    path, value = MISSHAPEN[case]
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    line = json.dumps({"digest": _digest(content), **content})
    (tmp_path / "e.jsonl").write_text(f"{line}\n")
    (found,) = scan(tmp_path / "e.jsonl")
    assert isinstance(found, Defect)
    assert "its fields are not those of an episode" in found.reason
