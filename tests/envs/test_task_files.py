"""Tasks from files: every dialect is read, every bad row and file is named, and any environment plays what is sound."""

import contextlib
import json
import os
import re
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import gymnasium
import pyarrow
import pyarrow.parquet
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import given as for_all
from hypothesis import strategies as st

import palaestra
from palaestra import Start, Task, UsageError
from palaestra.cli import main
from palaestra.envs.data import rows, task_files
from palaestra.envs.data.task_files import load_tasks, read_tasks
from palaestra.errors import TaskFileError

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "How many?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 7, "question": "How many"},
}
SKYRL = {
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}],
    "env_class": "search",
    "reward_spec": {"method": "rule", "ground_truth": {"target": ["4", "four"]}},
}
NAMES = ("prompt", "answer", "id", "split", "extra_info", "index", "reward_model", "ground_truth", "role", "content")
SUFFIXES = (".jsonl", ".json", ".parquet")


@pytest.fixture
def lines(tmp_path):
    """Write rows as JSON lines, or text as it is."""

    def write(*given, name="tasks.jsonl"):
        path = tmp_path / name
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in given)
        path.write_bytes(text.encode() + b"\n")
        return str(path)

    return write


@pytest.fixture
def table(tmp_path):
    """Write rows as parquet."""

    def write(given, schema=None, name="tasks.parquet"):
        made = given if isinstance(given, pyarrow.Table) else pyarrow.Table.from_pylist(given, schema)
        pyarrow.parquet.write_table(made, tmp_path / name)
        return str(tmp_path / name)

    return write


def numbered(count, **more):
    return [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), **more} for n in range(count)]


def only(path):
    """The single task of a file, whichever split it fell into."""
    (task,) = read_tasks(path).tasks
    return task


# Dialects


@pytest.mark.parametrize(
    ("row", "answer", "task_id", "data"),
    [
        ({"prompt": "How many?", "answer": 4, "level": 2}, 4, "f.jsonl:1", {"level": 2}),
        (VERL, "4", "7", {name: value for name, value in VERL.items() if name != "prompt"}),
        (
            SKYRL, {"target": ["4", "four"]}, "f.jsonl:1",
            {"env_class": "search", "reward_spec": SKYRL["reward_spec"], "system": "Be brief."},
        ),
        ({"prompt": "How many?", "solution": "$4$", "id": 12}, "$4$", "12", {"solution": "$4$", "id": 12}),
        ({"prompt": "How many?", "ground_truth": ["4"], "task_id": "a"}, ["4"], "a", None),
        ({"prompt": "How many?", "answer": None, "solution": "4"}, "4", "f.jsonl:1", None),
        (
            {"prompt": "How many?", "answer": "long", "reward_model": {"ground_truth": "4"}}, "4", "f.jsonl:1",
            {"answer": "long", "reward_model": {"ground_truth": "4"}},
        ),
        ({"prompt": "How many?", "reward_model": "skywork"}, None, "f.jsonl:1", {"reward_model": "skywork"}),
    ],
    ids=["own", "verl", "skyrl", "trl-solution", "trl-ground-truth", "null-is-absent", "judged-first", "no-answer"],
)  # fmt: skip
def test_the_columns_of_trl_verl_and_skyrl_are_read(lines, row, answer, task_id, data):
    task = only(lines(row, name="f.jsonl"))
    assert (task.prompt, task.answer, task.id) == ("How many?", answer, task_id)
    if data is not None:
        assert task.data == data


def test_the_same_rows_are_the_same_tasks_in_every_format(lines, table):
    given = [{**VERL, "prompt": [{"role": "user", "content": f"{n}?"}], "extra_info": {"index": n}} for n in range(600)]
    expected = read_tasks(lines(*given)).tasks
    assert len(expected) == 600
    assert read_tasks(table(given)).tasks == expected
    assert read_tasks(lines(json.dumps(given, indent=1), name="tasks.json")).tasks == expected
    assert read_tasks(lines(*given, name="tasks.json")).tasks == expected


def test_the_content_decides_before_the_suffix_and_one_of_them_must_say(table, lines, capsys):
    assert only(table([{"prompt": "a", "answer": "b"}], name="tasks.jsonl")).answer == "b"
    for name in ("tasks.txt", "tasks", "tasks.yaml"):
        assert only(lines({"prompt": "a"}, name=name)).prompt == "a"
        assert main(["data", lines("prompt: a\nanswer: b\n" * 20, name=name)]) == 1
        out = capsys.readouterr().out
        assert "expected a .jsonl, .json, .csv or .parquet file" in out
        assert "line" not in out.partition("expected")[2], "one line, and not one for each row"


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_no_fault(tmp_path):
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "\xc3\xa4"}\r\n\r\n \r\n{"prompt": "b"}')
    found = [(task.prompt, task.id) for task in read_tasks(path).tasks]
    assert found == [("ä", "windows.jsonl:1"), ("b", "windows.jsonl:4")]
    path = tmp_path / "windows.csv"
    path.write_bytes(
        b'\xef\xbb\xbfprompt,answer,level,split\r\n"Find, please,\n""x"".",4,,train\r\n\r\nb,5,hard,test\r\n'
    )
    first, second = read_tasks(path).tasks
    assert (first.prompt, first.answer, first.data["level"]) == ('Find, please,\n"x".', "4", None)
    assert (second.prompt, second.answer, second.id) == ("b", "5", "windows.csv:2")
    assert read_tasks(path).splits == ("train", "eval")


def test_what_json_does_not_know_comes_out_of_a_table_as_text(table):
    deep = [{"at": datetime(2026, 1, 2, 3), "long": timedelta(minutes=1)}]
    row = {"prompt": "a", "answer": Decimal("1.5"), "day": date(2026, 1, 2), "deep": deep, "half": 0.5}
    task = only(table([row]))
    assert task.answer == "1.5"
    assert task.data == {"day": "2026-01-02", "deep": [{"at": "2026-01-02T03:00:00", "long": 60.0}], "half": 0.5}
    prompts = pyarrow.array(["a"]).dictionary_encode()
    maps = pyarrow.array([[("x", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    assert only(table(pyarrow.table({"prompt": prompts, "answer": maps}))).answer == {"x": 1}


# Bad rows


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"promt": "a"}', "has no 'prompt'; found 'promt'; is 'promt' meant?"),
        ("{}", "has no 'prompt'; found no column"),
        ('{"prompt": null}', "column 'prompt' is null; expected text, or a list of messages"),
        ('{"prompt": 12}', "column 'prompt' is the number 12; expected text, or a list of messages"),
        ('{"prompt": "  "}', "column 'prompt' is the text '  '; expected text that is not empty"),
        ('{"prompt": {"role": "user"}}', "column 'prompt' is an object (role)"),
        ('{"prompt": ["a"]}', "column 'prompt', message 1, is the text 'a'; expected {\"role\""),
        ('{"prompt": [{"role": "user", "content": null}]}', "message 1, content is null; expected text"),
        ('{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}', "content is a list of 1; expected text"),
        ('{"prompt": [{"role": "assistant", "content": "a"}]}', "is a dialogue (assistant); expected one user"),
        ('{"prompt": [{"role": "\\u001b[2J", "content": "a"}]}', r"is a dialogue (\x1b[2J)"),
        (json.dumps({**SKYRL, "system": "Other."}), "has a column 'system' and a system message"),
        ('{"prompt": "a", "id": 1.5}', "column 'id' is the number 1.5; expected text or a whole number"),
        ('{"prompt": "a", "extra_info": {"split": 3}}', "column 'extra_info.split' is the number 3"),
        ("7", "is the number 7; expected an object"),
        ("{'prompt': 'a'}", "is no JSON: Expecting property name enclosed in double quotes at column 2"),
        ('{"prompt": "a"}{"prompt": "b"}', "is no JSON: Extra data at column 16"),
        ('{"prompt": "a", "x": NaN}', "holds NaN, which is no JSON; expected a finite number or null"),
        ('{"prompt": "a", "x": 1e999}', "holds the number 1e999, which is too large"),
        ('{"prompt": "a", "x": ' + "9" * 5000 + "}", "holds a number that is too long"),
        ('{"prompt": "a", "x": "\\ud83d"}', "holds half of a surrogate pair"),
        ('{"prompt": "a", "prompt": "b"}', "has the column 'prompt' twice"),
        ('{"prompt": ' + "[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_bad_row_names_its_line_what_was_found_and_what_was_expected(lines, line, said):
    path = lines('{"prompt": "What is 1? \\ud83d\\ude00"}', "", line)
    with pytest.raises(TaskFileError) as caught:
        load_tasks(path)
    assert str(caught.value).startswith(f"{path}: 1 of 2 rows are wrong\n  line 3 ")
    assert said in str(caught.value)


def test_all_bad_rows_are_counted_and_the_first_are_shown_in_order(lines):
    path = lines(*(f'{{"prompt": {n}}}' for n in range(400)), *numbered(100))
    with pytest.raises(TaskFileError) as caught:
        load_tasks(path)
    error = caught.value
    assert (error.count, len(error.faults)) == (400, task_files.MAX_FAULTS)
    shown = str(error).splitlines()
    assert shown[0].endswith("400 of 500 rows are wrong")
    assert [line.split()[1] for line in shown[1:6]] == ["1", "2", "3", "4", "5"]
    assert shown[6] == f"  and 395 more; 'palaestra data {path} --env ID' lists them"


def test_a_row_without_what_other_rows_have_is_wrong(lines):
    with pytest.raises(TaskFileError, match=r"line 2 has no answer; other rows have one in 'answer'.*'anwser' meant"):
        load_tasks(lines({"prompt": "a", "answer": "x"}, {"prompt": "b", "anwser": "x"}))
    with pytest.raises(TaskFileError) as caught:
        load_tasks(lines({"prompt": "a"}, {"prompt": "b", "split": "train"}, {"prompt": 3}))
    assert caught.value.faults[0] == "line 1 has no split; other rows have one in 'split'"
    assert caught.value.faults[1].startswith("line 3 ")  # In the order of the file.


def test_an_id_is_used_once_and_an_index_that_starts_anew_is_none(lines):
    with pytest.raises(TaskFileError, match="line 3 has the id '1' of line 1"):
        load_tasks(lines({"prompt": "a", "id": 1}, {"prompt": "b", "id": 2}, {"prompt": "c", "task_id": "1"}))
    given = [{"prompt": f"{n}", "extra_info": {"index": n % 2}} for n in range(4)]  # Put together from two sources.
    assert [task.id for task in read_tasks(lines(*given, name="x")).tasks] == ["x:1", "x:2", "x:3", "x:4"]
    assert [task.id for task in read_tasks(lines(*given[:2])).tasks] == ["0", "1"]


def test_bad_rows_of_a_table_are_named(table):
    schema = pyarrow.schema([("prompt", pyarrow.string()), ("x", pyarrow.float64()), ("image", pyarrow.binary())])
    columns = [["a", "b", "c", None], [1.0, float("nan"), 1.0, 1.0], [None, None, b"\x89PNG", None]]
    with pytest.raises(TaskFileError) as caught:
        load_tasks(table(pyarrow.table(columns, schema=schema)))
    assert list(caught.value.faults) == [
        "row 2 column 'x' holds nan; expected a finite number or null",
        "row 3 column 'image' holds bytes; expected text, numbers, lists or objects (images are not read)",
        "row 4 column 'prompt' is null; expected text, or a list of messages",
    ]
    broken = pyarrow.array([b"good", b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    with pytest.raises(TaskFileError, match=r"1 of 2 rows are wrong\n  row 2 cannot be read: .*utf-8"):
        load_tasks(table(pyarrow.table({"prompt": broken})))


def test_a_line_or_a_list_longer_than_the_limit_is_named(lines, monkeypatch):
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(rows, "MAX_LIST_BYTES", 10)
    with pytest.raises(TaskFileError) as caught:
        load_tasks(lines('{"prompt": "' + "a" * 5000 + '"}', {"prompt": 1}))
    assert caught.value.faults[0] == "line 1 is longer than MAX_LINE_BYTES, 1,000 bytes"
    assert caught.value.faults[1].startswith("line 2 column 'prompt' is the number 1")
    with pytest.raises(TaskFileError, match="MAX_LIST_BYTES, 10 bytes; write one object a line"):
        load_tasks(lines('[{"prompt": "a"}]', name="tasks.json"))


# Bad files


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", b"", "it holds no task"),
        ("latin.jsonl", '{"prompt": "ä"}'.encode("latin-1"), "line 1 is no UTF-8: byte 13 is 0xe4"),
        ("wide.jsonl", '{"prompt": "a"}'.encode("utf-16"), "it is UTF-16; save it as UTF-8"),
        ("packed.jsonl.gz", b"\x1f\x8b\x08\x00", "it is compressed with gzip"),
        ("list.json", b'[{"prompt": "a"},\n {"prompt": }]', "it is no JSON: Expecting value at line 2, column 13"),
        ("list.json", b'[\n"\xff"]', "it is no UTF-8: byte 4 is 0xff"),
        ("list.json", b'[{"prompt": NaN}]', "it holds NaN"),
        ("list.json", b"[" * 100_000, "it is nested too deeply"),
        ("list.json", b'["a"]', "entry 1 is the text 'a'; expected an object"),
        ("no.parquet", b'{"prompt": "a"}', "it is no whole parquet file"),
        ("no.jsonl", b"PAR1 and nothing more", "it is no whole parquet file"),
        ("no.pq", b"", "it is no whole parquet file"),
        ("header.csv", b"prompt,answer\n", "it holds no task"),
        ("other.csv", b"question,answer\na,b\n", "row 1 has no 'prompt'; found 'question', 'answer'"),
        ("long.csv", b"prompt,answer\na,b\na,b,c\n", "row 2 has 3 cells; expected 2, as the header has"),
        ("null.csv", b"prompt,answer\n,b\n", "row 1 column 'prompt' is null"),
        ("twice.csv", b"prompt,prompt\na,b\n", "the column 'prompt' is there twice"),
        ("quote.csv", b'prompt,answer\n"a,b\n', "it cannot be read as CSV"),
    ],
)
def test_a_file_that_is_no_file_of_tasks_is_refused_in_words(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskFileError, match=re.escape(said)):
        load_tasks(tmp_path / name)


def test_a_table_that_is_cut_off_or_damaged_anywhere_is_refused(table):
    path = table([{**VERL, "prompt": f"{n}?"} for n in range(300)])
    whole = Path(path).read_bytes()
    for length in range(4, len(whole), 97):
        Path(path).write_bytes(whole[:length])
        with pytest.raises(TaskFileError):
            load_tasks(path)
    for at in range(4, len(whole), 61):
        Path(path).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(TaskFileError):  # Not every bit matters, but nothing else may be raised.
            assert len(read_tasks(path).tasks) == 300


def test_a_table_of_something_else_is_refused(table):
    for content, said in (
        ([{"price": 1, "city": "Rome"}], "has no 'prompt'; found 'price', 'city'"),
        ([dict.fromkeys("abcdefghij", 1)], "'h' and 2 more"),
        (pyarrow.table([["a"], ["b"]], names=["prompt", "prompt"]), "the column 'prompt' is there twice"),
        (pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), "it holds no task"),
    ):
        with pytest.raises(TaskFileError, match=said):
            load_tasks(table(content))


def test_what_is_no_file_is_refused_at_once(tmp_path):
    made = {"absent": str, "folder": os.mkdir, "loop": lambda path: os.symlink(path, path), "pipe": os.mkfifo}
    for kind, make in made.items():
        make(path := str(tmp_path / kind))
        for name in (path, path + "\0"):
            for read in (load_tasks, lambda name: gymnasium.make("test/Inline-v0", tasks=name)):
                with pytest.raises(UsageError, match="the task file"):
                    read(name)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)


@for_all(st.lists(ROWS.map(json.dumps).map(str.encode) | st.binary(max_size=40), max_size=6), st.sampled_from(SUFFIXES))
def test_no_file_whatever_is_in_it_raises_anything_else(tmp_path_factory, written, suffix):
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(b"[" * (suffix == ".json") + b"\n".join(written))
    with contextlib.suppress(TaskFileError):
        assert read_tasks(path).tasks


# In an environment


def test_any_environment_plays_the_tasks_of_a_file_which_is_not_read_before(lines):
    path = lines(*numbered(50, answer="yes"))
    tasks = load_tasks(path)
    prompts = {task.prompt for task in tasks}
    env = gymnasium.make("test/Inline-v0", tasks=path)
    assert {env.reset(seed=seed)[0] for seed in range(30)} <= prompts
    env.reset(seed=0, options={"task": 3})
    *_, info = env.step("yes")
    assert (info["attempt"].task, info["parts"]) == (tasks[3], {"success": 1.0})
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    palaestra.register("test/FromFile-v0", "worlds:Inline", tasks=path)
    for one in (again, gymnasium.make("test/FromFile-v0")):
        assert one.reset(seed=1)[0] in prompts
    with pytest.raises(UsageError, match="tasks is a list; expected the path"):
        gymnasium.make("test/Inline-v0", tasks=[Task("a")])
    wrong = gymnasium.make("test/Inline-v0", tasks=lines({"prompt": 1}))
    with pytest.raises(TaskFileError, match="line 1 column 'prompt' is the number 1"):
        wrong.reset(seed=0)


def test_a_vector_environment_reads_its_file_once(lines, monkeypatch, arena):
    path, read = lines(*numbered(40)), []
    monkeypatch.setattr(task_files, "read_rows", lambda name: read.append(name) or rows.read_rows(name))
    opened = arena("test/Inline-v0", 8, tasks=path)
    assert opened.task_count > 8
    for slot in range(8):
        opened.begin(slot, Start(task=slot, seed=slot))
    asked = [event.messages[0]["content"] for event in opened.recv(8)]
    assert read == [path]
    assert asked == [task.prompt for task in load_tasks(path)[:8]]


def test_a_published_table_of_text_is_read_by_every_environment(lines, capsys):
    text = "\n".join(f"{n},Find {n}.,{n}" for n in range(30))
    assert main(["data", lines(f"id,problem,answer\n{text}", name="aime.csv"), "--env", "code-math"]) == 0
    assert "30 tasks" in capsys.readouterr().out


def test_an_option_of_reset_that_nobody_reads_is_refused():
    env, vector = gymnasium.make("test/Inline-v0"), gymnasium.make_vec("test/Inline-v0", num_envs=2)
    for one, options, said in (
        (env, {"tasks": 3}, "is 'task' meant"),
        (env, {"reset_mask": [True]}, "expected 'task'"),
        (env, {3: 4}, "has no 3"),
        (vector, {"task": [1, 2]}, "is 'tasks' meant"),
        (vector, {"resetmask": [True, False]}, "is 'reset_mask' meant"),
    ):
        with pytest.raises(UsageError, match=said):
            one.reset(options=options)
    vector.close()


def test_a_missing_library_names_the_extra(monkeypatch, table):
    path = table([{"prompt": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(palaestra.MissingExtra, match=r"needs pyarrow.*pip install 'palaestra\[data\]'"):
        load_tasks(path)


def test_two_hop_refuses_tasks_without_the_facts_that_it_searches(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"What is 1 + {n}?", "answer": str(1 + n), "split": ("train", "eval")[n]} for n in range(2)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match="without 'facts'"):
        palaestra.arena("palaestra/TwoHop-v0", 1, tasks=str(path))
