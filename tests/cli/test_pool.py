"""`palaestra pool`: one file of several, without what is ambiguous, comes twice, is in a test or does not fit."""

import json
from dataclasses import replace

import families
import pytest
from commands import refused, run, words

from palaestra.cli import main
from palaestra.envs.data.alike import Prompts, key_of
from palaestra.envs.data.pool import answer_key, pooled
from palaestra.envs.data.pool_files import PoolRow
from palaestra.envs.data.task_files import load_tasks, read_tasks
from palaestra.episode import Task
from palaestra.record import Record, write
from palaestra.trainers.data.curated import Curated
from palaestra.trainers.data.curation import Rated, prompt_digest

TEMPLATE = (
    "Read the question with care, think about it step by step, look up what you do not know for sure, check what you "
    "have found in a second place, say in one sentence how sure you are of it, and write the answer into a box at the "
    "end of your text, without a unit and without any word beside it: "
)
LONG = TEMPLATE.replace("a", "e") + "how many people lived in Aber on the first day of 1990, by the county's register?"


@pytest.fixture
def pool(capsys, tmp_path, monkeypatch):
    """Write files, make a pool of them; its rows and the figures."""
    monkeypatch.chdir(tmp_path)

    def make(files, *arguments, status=0):
        for name, rows in files.items():
            (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        named = [name for name in files if name not in arguments]
        found, out, err = run(capsys, "pool", *named, "--out", "pool.jsonl", "--json", "figures.json", *arguments)
        assert found == status, out + err
        figures = json.loads((tmp_path / "figures.json").read_text())
        rows = read_tasks("pool.jsonl").tasks if figures["kept"] else ()
        return rows, figures, words(out + err)

    return make


def asked(prompt, answer, **more):
    return {"prompt": prompt, "answer": answer, **more}


def dropped(figures):
    """How often each rule was the reason, over all sources."""
    rules = {name for own in figures["by_source"].values() for name in own} - {"rows", "kept"}
    counts = {name: sum(own[name] for own in figures["by_source"].values()) for name in rules}
    return {name: count for name, count in counts.items() if count}


def test_ambiguous_rows_go_and_each_rule_says_how_many_of_which_source(pool):
    ours = [
        asked("Capital of France?", "Paris", data_source="geo"),
        asked("2 + 2?", "4"),
        asked("Of whom?", " "),
        asked("Who is it?", "Who is who?"),
        asked("Half of one?", "1/2"),
        asked("A test's", "x", split="test"),
        {"prompt": 3},
    ]
    for row in ours[:5]:
        row["split"] = "train"
    theirs = [
        {"question": "capital of  FRANCE", "golden_answers": ["Lyon", "paris"]},
        {"question": "2 + 2", "golden_answers": ["five"]},
        {"question": "Half of one", "golden_answers": ["0.5"]},
        {"question": "Of nobody?", "golden_answers": []},
        {"question": "a test's?", "golden_answers": ["y"]},
    ]
    rows, figures, said = pool({"ours.jsonl": ours, "theirs.jsonl": theirs})
    assert [(row.prompt, row.data["source"]) for row in rows] == [
        ("Capital of France?", "geo"),
        ("Half of one?", "ours"),
    ]
    by_source = {name: {rule: n for rule, n in own.items() if n} for name, own in figures["by_source"].items()}
    assert by_source == {
        "geo": {"rows": 1, "kept": 1},
        "ours": {"rows": 5, "for eval": 1, "no answer": 2, "contradicted": 1, "kept": 1},
        "theirs": {"rows": 5, "no answer": 1, "contradicted": 1, "in a test": 1, "the same": 2},
    }
    assert figures["unreadable"] == {"ours.jsonl": 1} and "line 7 column 'prompt' is the number 3" in said


@pytest.mark.parametrize(("first", "second", "same"), [
    ("What is 5! + 3?", "What is 5 + 3?", False),
    ("f(x) = x²", "f(x) = x2", False),
    ("Is it -3?", "Is it 3?", False),
    ("“What is it”?", "what  is it", True),
    ("北京在哪里？", "北京在哪里", True),
])  # fmt: skip
def test_only_spelling_is_evened_out_in_a_prompt(first, second, same):
    assert (key_of(first) == key_of(second)) is same


@pytest.mark.parametrize(("first", "second", "same"), [
    ("1,200", "1200.0", True), ("50%", "0.5", True), (r"\frac12", "0.5", True), ("The Beatles", "beatles!", True),
    ("3.14", "314", False), ("-5", "5", False), ("x-1", "x+1", False), (["a", 1], ["a", 2], False),
    ("9" * 5000, "9" * 5001, False),
])  # fmt: skip
def test_answers_are_the_same_as_numbers_or_words_and_signs_count(first, second, same):
    assert (answer_key(first) == answer_key(second)) is same


def test_near_duplicates_go_unless_a_number_or_the_answer_makes_them_another_question(pool):
    others = ["Please answer this: " + LONG, LONG.replace("1990", "1991"), LONG.replace("Aber", "Bala")]
    rows, figures, _ = pool({
        "a.jsonl": [asked(LONG, "7")],
        "b.jsonl": [asked(others[0], "7.0"), asked(others[1], "7"), asked(others[2], "8")],
    })  # fmt: skip
    assert [row.prompt for row in rows] == [LONG, *others[1:]]
    assert dropped(figures) == {"nearly the same": 1}


def test_what_is_near_is_found_exactly_as_by_comparing_all_with_all():
    import numpy as np

    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice([*"abcdefghij"], size=rng.integers(3, 60))) for _ in range(60)]
    for _ in range(240):  # Others, with a word or two changed or added.
        text = texts[rng.integers(len(texts))].split()
        for _ in range(rng.integers(1, 3) if len(text) > 40 else 1):
            text[rng.integers(len(text))] = "x" if rng.random() < 0.5 else "y z"
        texts.append(" ".join(text))
    keys = [*dict.fromkeys(texts)]

    def runs(key):
        words = key.split()
        return {tuple(words[at : at + 5]) for at in range(max(1, len(words) - 4))}

    prompts, found, expected = Prompts(keys), set(), set()
    counts = {}
    for key in keys:
        for one in runs(key):
            counts[one] = counts.get(one, 0) + 1
    own = {key: {one for one in runs(key) if counts[one] <= 20} for key in keys}
    for at, key in enumerate(keys):
        found |= {(key, other) for other in prompts.near(key)}
        expected |= {
            (key, o) for o in keys[:at] if own[key] and 5 * len(own[key] & own[o]) >= 4 * len(own[key] | own[o])
        }
        prompts.add(key)
    assert len(expected) > 50 and found == expected


def test_nothing_of_a_test_is_trained_on_not_even_inside_a_longer_prompt(pool):
    names = [f"{first}{second}" for first in "abcdefgh" for second in "klmnop"]
    train = [asked(f"{TEMPLATE}Who ruled {name}?", "a king") for name in names]
    leaks = [asked("CAPITAL of France", "Paris"), asked(f"{TEMPLATE}{LONG} Think first.", "another answer")]
    tests = [
        {"Question": "Capital of France?", "Final answer": "?"},
        {"Question": LONG, "Final answer": "7"},
        {"Question": f"{TEMPLATE}Who ruled Zembla?", "Final answer": "a king"},
    ]
    rows, figures, _ = pool({"train.jsonl": train + leaks, "gaia.jsonl": tests}, "--against", "gaia.jsonl")
    assert len(rows) == 48 and dropped(figures) == {"in a test": 2}


def test_a_published_test_is_refused_as_training_data_and_a_test_with_a_bad_row_protects_nothing(capsys, tmp_path):
    test, bad = tmp_path / "test.jsonl", tmp_path / "bad.jsonl"
    test.write_text(json.dumps({"Question": "Where?", "Answer": "There"}))
    bad.write_text(json.dumps({"prompt": "a", "answer": "b"}) + "\n{}\n")
    out = tmp_path / "pool.jsonl"
    assert "--against" in refused(capsys, "a published test", "pool", test, "--out", out)
    refused(capsys, "1 of 2 rows are wrong", "pool", bad, "--out", out, "--against", bad)
    refused(capsys, "would be lost", "pool", bad, "--out", tmp_path / "x" / ".." / "bad.jsonl")
    assert not out.exists()


def played(path, prompt, said):
    """A file of attempts at a task: answer and success of each."""
    records = []
    for seed, (answer, success) in enumerate(said):
        one = families.an_episode(reward=success, seed=seed)
        records.append(Record("x", replace(one, attempt=replace(one.attempt, task=Task(prompt, "l"), answer=answer))))
    write(path, records)


@pytest.mark.parametrize(("said", "disputed"), [
    ([("5", 0.0), ("5.0", 0.0), ("5", 0.0), (None, 0.0)], True),
    ([("5", 0.0), ("5", 0.0), ("6", 0.0), ("7", 0.0)], False),
    ([("5", 0.0)] * 3, False),
    ([("5", 0.0)] * 3 + [("5", None)] * 3, False),
    ([(None, 0.0)] * 8, False),
    ([("", 0.0)] * 8, False),
    ([("5", 0.0)] * 7 + [("5", 1.0)], False),
    ([("5", 0.0)] * 7 + [("6", 1.0)], True),
], ids=["agreed", "spread", "few", "broken", "silent", "empty", "right-once", "another-right"])  # fmt: skip
def test_a_label_is_disputed_where_attempts_agree_on_another_answer(pool, tmp_path, said, disputed):
    played(tmp_path / "played.jsonl", "Odd?", said)
    rows, figures, _ = pool({"a.jsonl": [asked("odd", "l"), asked("Even?", "l")]}, "--attempts", "played.jsonl")
    assert dropped(figures) == ({"disputed": 1} if disputed else {})
    assert [row.prompt for row in rows] == (["Even?"] if disputed else ["odd", "Even?"])


@pytest.mark.parametrize("content", ["", "\n", '{"prompt": "Odd?"}\n'], ids=["empty", "blank", "tasks"])
def test_a_file_of_attempts_without_episodes_is_refused(content, tmp_path, capsys):
    tasks, whole, empty, out = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl", "out.jsonl"))
    tasks.write_text(json.dumps(asked("Odd?", "l")))
    played(whole, "Odd?", [("5", 0.0)])
    empty.write_text(content)
    message = refused(capsys, "holds no episode", "pool", tasks, "--out", out, "--attempts", whole, empty)
    assert f"--attempts: {empty}" in message
    assert not out.exists()


def test_of_curated_tasks_those_stay_that_fit_and_what_is_held_out_stays_held_out(pool, tmp_path, capsys):
    files = {"a.jsonl": [asked(f"What is {n}?", str(n)) for n in range(40)]}
    rows, *_ = pool(files)
    held_out = {task.prompt for task in load_tasks("pool.jsonl", "eval")}
    train = load_tasks("pool.jsonl", "train")
    rated = tuple(Rated(at, train[at].id, prompt_digest(train[at].prompt), 1, 8) for at in (0, 3))
    Curated("palaestra/SearchQA-v0", "train", rated, {}).write(tmp_path / "fit.json")
    rows, figures, _ = pool(files, "--curated", "fit.json")
    assert {row.prompt for row in rows} == held_out | {train[0].prompt, train[3].prompt}
    assert {task.prompt for task in load_tasks("pool.jsonl", "eval")} == held_out
    assert dropped(figures) == {"unfit": 40 - len(rows)}
    (tmp_path / "other.jsonl").write_text(json.dumps(asked("Other?", "1")))
    refused(capsys, "no task of --curated", "pool", "other.jsonl", "--out", "b.jsonl", "--curated", "fit.json")


def test_a_pool_is_read_again_as_it_was_written_and_pooling_it_changes_nothing(pool, tmp_path):
    verl = {"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "A?"}],
            "reward_model": {"ground_truth": "1"}, "extra_info": {"index": 0, "split": "train"}}  # fmt: skip
    files = {
        "a.jsonl": [verl],
        "b.jsonl": [asked("B?", "2", id="0"), asked("C?", ["3", "4"], id="1")],
        "c.jsonl": [{"question": "D?", "golden_answers": ["5", "6"], "id": "0"}],
        "d.jsonl": [{"problem": "E?", "answer": 7, "id": 0}, {"problem": "F?", "answer": 8, "id": 1}],
    }
    rows, *_ = pool(files)
    assert [(row.prompt, row.answer) for row in rows] == [
        ("A?", "1"), ("B?", "2"), ("C?", ["3", "4"]), ("D?", "5"), ("E?", 7), ("F?", 8)
    ]  # fmt: skip
    assert rows[0].data["system"] == "S" and rows[3].data["aliases"] == ["6"]
    assert len({row.id for row in rows}) == 6
    (tmp_path / "pool.jsonl").rename(tmp_path / "first.jsonl")
    assert run_again(tmp_path) == (tmp_path / "first.jsonl").read_text()


def run_again(folder):
    assert main(["pool", str(folder / "first.jsonl"), "--out", str(folder / "second.jsonl")]) == 0
    return (folder / "second.jsonl").read_text()


def test_where_nothing_is_left_nothing_is_written(pool, tmp_path):
    _, figures, said = pool({"a.jsonl": [asked("A?", "1"), asked("a", "2")]}, status=1)
    assert figures["kept"] == 0 and "nothing was kept" in said and not (tmp_path / "pool.jsonl").exists()


def test_tasks_whose_reward_needs_no_answer_are_pooled_without_one():
    rows = [PoolRow("a", Task(prompt, None), False) for prompt in ("Sort.", "sort", "Search.")]
    assert [row.task.prompt for row in pooled(rows).rows] == ["Sort.", "Search."]
