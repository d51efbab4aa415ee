"""What is shown of a run: everything that is whole, with a name for everything that is not."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewer_records import HOSTILE, hostile_record, record, row

from palaestra.errors import UsageError
from palaestra.record import Recorder, to_line, write
from palaestra.trainers.view.pages.episode_view import content, embedded, entry
from palaestra.trainers.view.pages.load_episodes import Collection
from palaestra.trainers.view.pages.token_text import Pieces

Make = Callable[..., Path]


def read(*paths: Path, steps: frozenset[int] | None = None) -> Collection:
    collection = Collection(paths, steps)
    for _ in collection.news():
        pass
    return collection


def test_every_episode_of_a_run_is_shown_under_its_step_and_group(make_run: Make) -> None:
    found = read(make_run(steps=3))
    assert len(found.entries) == len(found.places) == 24
    assert {(one["stage"], one["group"]) for one in found.entries} == {(str(s), g) for s in (1, 2, 3) for g in (0, 1)}
    assert [one["ordinal"] for one in found.entries[:8]] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert found.entries[1]["advantage"] == pytest.approx(0.8660247)
    assert [step for step, _ in found.metrics] == [1, 2, 3]
    assert found.defects() == []


@pytest.mark.parametrize("missing", ["config.json", "metrics.jsonl", "episodes"])
def test_a_run_is_shown_with_what_it_has(make_run: Make, missing: str) -> None:
    run = make_run()
    path = run / missing
    if path.is_dir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    else:
        path.unlink()
    found = read(run)
    assert len(found.entries) == (0 if missing == "episodes" else 16)
    assert len(found.metrics) == (0 if missing == "metrics.jsonl" else 2)
    assert found.defects() == []


def test_each_damaged_line_is_named_and_the_whole_ones_are_shown(make_run: Make) -> None:
    run = make_run(steps=1)
    path = run / "episodes" / "step-000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"reward": 0.0', b'"reward": 1.0')
    lines[4] = b"[" * 100_000 + b"\n"
    lines[7] = lines[7][:-40]
    path.write_bytes(b"".join(lines))
    found = read(run)
    assert len(found.entries) == 5
    named = {one["line"]: one["reason"] for one in found.defects()}
    assert set(named) == {3, 5, 8}
    assert "changed after it was written" in named[3]
    assert "cut off" in named[8]
    assert {one["file"] for one in found.defects()} == {"episodes/step-000001.jsonl"}
    assert [one["line"] for one in found.entries] == [1, 2, 4, 6, 7]


def test_damaged_metrics_are_named_too(make_run: Make) -> None:
    run = make_run()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            '{"step": 3, "reward": NaN, "name": "text", "huge": 1e999, "flag": true}\nno json\n{"step": "x"}\n[]\n{"st'
        )
    found = read(run)
    assert found.metrics[2] == [3, [["reward", None], ["huge", None], ["flag", 1.0]]]
    assert [one["line"] for one in found.defects()] == [4, 5, 6, 7]


def test_what_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    line = to_line(record(0, 1))
    path.write_bytes(to_line(record(0, 0)) + line[:50])
    os.utime(path, (2**32, 2**32))  # However slow we are, it was written a moment ago.
    collection = Collection([path])
    assert len(list(collection.news(settled=False))) == 1
    with path.open("ab") as file:
        file.write(line[50:])
    assert len(list(collection.news(settled=False))) == 1
    assert collection.defects() == []
    assert [place.read().episode.start.seat for place in collection.places] == [None, None]


def test_a_last_line_that_nobody_finishes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(to_line(record())[:50])
    os.utime(path, (1, 1))
    collection = Collection([path])
    assert list(collection.news(settled=False)) == []
    assert [one["line"] for one in collection.defects()] == [1]


def test_new_episodes_are_read_without_reading_the_old_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    collection = None
    with Recorder(path) as recorder:
        recorder.add(record(0, 0))
        collection = Collection([path])
        assert len(list(collection.news())) == 1
        recorder.add(record(0, 1))
        assert len(list(collection.news())) == 1
        assert list(collection.news()) == []
    assert [one["line"] for one in collection.entries] == [1, 2]
    assert not collection.was_replaced()


def test_a_file_that_was_replaced_or_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    for change in (lambda: write(path, [record(3)]), lambda: os.truncate(path, 10), path.unlink):
        write(path, [record(), record(0, 1)])
        collection = read(path)
        assert not collection.was_replaced()
        change()
        assert collection.was_replaced()


def test_only_the_chosen_steps_are_shown(make_run: Make) -> None:
    run = make_run(steps=3)
    (run / "episodes" / "step-000002.jsonl").write_bytes(b"never opened\n")
    found = read(run, steps=frozenset({1, 3}))
    assert {one["step"] for one in found.entries} == {1, 3}
    assert found.defects() == []


def test_an_episode_without_a_lesson_belongs_to_its_file(make_run: Make) -> None:
    run = make_run(steps=1)
    write(run / "episodes" / "eval-before.jsonl", [replace(record(), lessons=())])
    found = read(run)
    assert [one["stage"] for one in found.entries] == ["eval-before"] + ["1"] * 8


def test_loose_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "step.jsonl" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        write(path, [record(0, 0)])
    assert {one["stage"] for one in read(*paths, paths[0]).entries} == {"step, step 1", "step (2), step 1"}
    assert {one["stage"] for one in read(paths[0]).entries} == {"1"}


def test_what_cannot_be_shown_is_refused_by_name(tmp_path: Path, make_run: Make) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match=r"there is no .*absent"):
        Collection([tmp_path / "absent"])
    with pytest.raises(UsageError, match="no ordinary file"):
        Collection([tmp_path / "pipe.jsonl"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no run"):
        Collection([tmp_path / "empty"])
    with pytest.raises(UsageError, match="runs' folders alone"):
        Collection([make_run(), tmp_path / "pipe.jsonl"])
    with pytest.raises(UsageError, match="runs' folders alone"):
        Collection([])


def test_a_pipe_among_the_episodes_is_passed_over(make_run: Make) -> None:
    run = make_run(steps=1)
    os.mkfifo(run / "episodes" / "step-000002.jsonl")
    assert len(read(run).entries) == 8


@given(
    st.recursive(
        st.none()
        | st.text()
        | st.text("</script>&!-[]\u2028\u2029")
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False),
        st.lists,
    )
)
def test_embedded_json_is_the_same_value_and_cannot_end_its_element(value: Any) -> None:
    text = embedded(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()
    assert json.loads(text) == value


def test_hostile_names_are_never_keys() -> None:
    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for inner in value.values() for key in keys(inner)}
        return {key for inner in value for key in keys(inner)} if isinstance(value, list) else set()

    harmless = record()
    said = [embedded([entry(one), content(one)]) for one in (harmless, hostile_record())]
    assert keys(json.loads(said[1])) <= keys(json.loads(said[0]))
    assert all(text not in said[1] for text in HOSTILE[:2])


def test_tokens_travel_exactly() -> None:
    import base64

    one = row(500, seed=3, version=7)
    shown = content(record(rows=(one,)))["rows"][0]
    floats = np.frombuffer(base64.b64decode(shown["logprobs"]), "<f4")
    assert floats.tobytes() == one.logprobs[one.sampled].astype("<f4").tobytes()
    assert np.frombuffer(base64.b64decode(shown["ids"]), "<i4").tolist() == one.ids.tolist()
    spans = np.array(shown["spans"]).reshape(-1, 2)
    assert [bool(one.sampled[begin:end].all()) for begin, end in spans] == [True] * len(spans)
    assert sum(end - begin for begin, end in spans) == one.sampled.sum()


def test_a_value_that_python_cannot_write_is_said_to_be_one() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    attempt = replace(record().episode.attempt, answer="x")
    task = replace(attempt.task, data={"deep": deep, "number": 10**5000})
    shown = content(record(attempt=replace(attempt, task=task)))["data"]
    assert [text[:34] for _, text in shown] == [
        "<list that cannot be shown: Recurs",
        "<int that cannot be shown: ValueEr",
    ]


def tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.BPE(vocab={"\u0120a": 0, "\u00c3": 1, "b": 2}, merges=[]))
    made.decoder = decoders.ByteLevel()
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))


def test_tokens_read_as_in_a_sentence_and_pieces_of_letters_by_their_spelling(tmp_path: Path) -> None:
    tokenizer(tmp_path / "model")
    texts = Pieces([tmp_path / "absent", tmp_path / "model"]).texts([0, 1, 2, 99, -5])
    assert texts == {0: " a", 1: "\u00c3", 2: "b", 99: "\ufffd", -5: "\ufffd"}


def test_a_tokenizer_that_comes_later_names_the_tokens_that_were_read_before(make_run: Make) -> None:
    run = make_run(steps=1)
    collection = read(run)
    assert collection.vocabulary == []
    tokenizer(run / "model")
    assert list(collection.news()) == []
    assert [0, " a"] in collection.vocabulary
    assert list(collection.news()) == []
    assert len({one for one, _ in collection.vocabulary}) == len(collection.vocabulary)


def test_a_broken_tokenizer_is_named_and_ids_are_shown(make_run: Make) -> None:
    run = make_run(steps=1)
    (run / "model").mkdir()
    (run / "model" / "tokenizer.json").write_text("{}")
    found = read(run)
    assert found.vocabulary == []
    assert ["tokenizer.json" in one["reason"] for one in found.defects()] == [True]
