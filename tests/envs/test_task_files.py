"""Tasks from files: every dialect is read, every bad row is named, and no prompt is in both splits."""

import contextlib
import json
import os
import re
from pathlib import Path

import gymnasium
import pyarrow
import pyarrow.parquet
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import given as for_all
from hypothesis import strategies as st

import palaestra
from palaestra import EnvironmentDefect, Start, Task, UsageError
from palaestra.envs import ToolEnv
from palaestra.envs.core.tasks import split_of
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
            SKYRL,
            {"target": ["4", "four"]},
            "f.jsonl:1",
            {"env_class": "search", "reward_spec": SKYRL["reward_spec"], "system": "Be brief."},
        ),
        ({"prompt": "How many?", "solution": "$4$", "id": 12}, "$4$", "12", {"solution": "$4$", "id": 12}),
        ({"prompt": "How many?", "ground_truth": ["4"], "task_id": "a"}, ["4"], "a", None),
        ({"prompt": "How many?", "answer": None, "solution": "4"}, "4", "f.jsonl:1", None),
        ({"prompt": "How many?", "answer": "long", "reward_model": {"ground_truth": "4"}}, "4", "f.jsonl:1", None),
        ({"prompt": "How many?", "reward_model": "skywork"}, None, "f.jsonl:1", {"reward_model": "skywork"}),
    ],
    ids=["own", "verl", "skyrl", "trl-solution", "trl-ground-truth", "null-is-absent", "judged-first", "no-answer"],
)
def test_the_columns_of_trl_verl_and_skyrl_are_read(lines, row, answer, task_id, data):
    task = only(lines(row, name="f.jsonl"))
    assert (task.prompt, task.answer, task.id) == ("How many?", answer, task_id)
    if data is not None:
        assert task.data == data


def test_an_answer_that_was_not_taken_stays_in_the_data(lines):
    task = only(lines({"prompt": "a", "answer": "the whole derivation", "reward_model": {"ground_truth": "4"}}))
    assert task.data["answer"] == "the whole derivation"
    assert "answer" not in only(lines({"prompt": "a", "answer": "4"})).data


def test_the_same_rows_are_the_same_tasks_in_every_format(lines, table):
    given = [{**VERL, "prompt": [{"role": "user", "content": f"{n}?"}], "extra_info": {"index": n}} for n in range(600)]
    expected = read_tasks(lines(*given)).tasks
    assert len(expected) == 600
    assert read_tasks(table(given)).tasks == expected
    assert read_tasks(lines(json.dumps(given, indent=1), name="tasks.json")).tasks == expected
    assert read_tasks(lines(*given, name="tasks.json")).tasks == expected


def test_the_content_decides_before_the_suffix(table):
    assert only(table([{"prompt": "a", "answer": "b"}], name="tasks.jsonl")).answer == "b"


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_no_fault(tmp_path):
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "\xc3\xa4"}\r\n\r\n \r\n{"prompt": "b"}')
    assert [(task.prompt, task.id) for task in read_tasks(path).tasks] == [
        ("ä", "windows.jsonl:1"),
        ("b", "windows.jsonl:4"),
    ]


def test_what_json_does_not_know_comes_out_of_a_table_as_text(table):
    import datetime
    import decimal

    row = {
        "prompt": "a",
        "answer": decimal.Decimal("1.5"),
        "day": datetime.date(2026, 1, 2),
        "deep": [{"at": datetime.datetime(2026, 1, 2, 3), "long": datetime.timedelta(minutes=1)}],
        "half": 0.5,
    }
    task = only(table([row]))
    assert task.answer == "1.5"
    assert task.data == {
        "day": "2026-01-02",
        "deep": [{"at": "2026-01-02T03:00:00", "long": 60.0}],
        "half": 0.5,
    }


def test_maps_and_dictionary_columns_are_read(table):
    schema = pyarrow.schema(
        [
            ("prompt", pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
            ("answer", pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        ]
    )
    made = pyarrow.table([pyarrow.array(["a"]).dictionary_encode().cast(schema[0].type), [[("x", 1)]]], schema=schema)
    assert only(table(made)).answer == {"x": 1}


# Bad rows


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"promt": "a"}', "has no 'prompt'; found 'promt'; is 'promt' meant?"),
        ('{"question": "a"}', "has no 'prompt'; found 'question'"),
        ("{}", "has no 'prompt'; found no column"),
        ('{"prompt": null}', "column 'prompt' is null; expected text, or a list of messages"),
        ('{"prompt": 12}', "column 'prompt' is the number 12; expected text, or a list of messages"),
        ('{"prompt": "  "}', "column 'prompt' is the text '  '; expected text that is not empty"),
        ('{"prompt": []}', "column 'prompt' is an empty list"),
        ('{"prompt": {"role": "user"}}', "column 'prompt' is an object (role)"),
        ('{"prompt": ["a"]}', "column 'prompt', message 1, is the text 'a'; expected {\"role\""),
        ('{"prompt": [{"role": "user", "content": null}]}', "message 1, content is null; expected text"),
        ('{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}', "content is a list of 1; expected text"),
        ('{"prompt": [{"role": "assistant", "content": "a"}]}', "is a dialogue (assistant); expected one user"),
        (
            json.dumps({"prompt": [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]}),
            "is a dialogue (user, assistant, user); expected one user message",
        ),
        ('{"prompt": [{"role": "\\u001b[2J", "content": "a"}]}', r"is a dialogue (\x1b[2J)"),
        (json.dumps({**SKYRL, "system": "Other."}), "has a column 'system' and a system message"),
        ('{"prompt": "a", "id": 1.5}', "column 'id' is the number 1.5; expected text or a whole number"),
        ('{"prompt": "a", "id": true}', "column 'id' is true; expected text or a whole number"),
        ('{"prompt": "a", "split": "holdout"}', "column 'split' is the text 'holdout'; expected train, or eval"),
        ('{"prompt": "a", "extra_info": {"split": 3}}', "column 'extra_info.split' is the number 3"),
        ("[1, 2]", "is a list of 2; expected an object"),
        ("7", "is the number 7; expected an object"),
        ("{'prompt': 'a'}", "is no JSON: Expecting property name enclosed in double quotes at column 2"),
        ('{"prompt": "a"', "is no JSON"),
        ('{"prompt": "a"}{"prompt": "b"}', "is no JSON: Extra data at column 16"),
        ('{"prompt": "a", "x": NaN}', "holds NaN, which is no JSON; expected a finite number or null"),
        ('{"prompt": "a", "x": -Infinity}', "holds -Infinity"),
        ('{"prompt": "a", "x": 1e999}', "holds the number 1e999, which is too large"),
        ('{"prompt": "a", "x": ' + "9" * 5000 + "}", "holds a number that is too long"),
        ('{"prompt": "a", "x": "\\ud83d"}', "holds half of a surrogate pair"),
        ('{"prompt": "a", "prompt": "b"}', "has the column 'prompt' twice"),
        ('{"prompt": ' + "[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_bad_row_names_its_line_what_was_found_and_what_was_expected(lines, line, said):
    path = lines('{"prompt": "What is 1?"}', "", line)
    with pytest.raises(TaskFileError) as caught:
        load_tasks(path)
    assert str(caught.value).startswith(f"{path}: 1 of 2 rows are wrong\n  line 3 ")
    assert said in str(caught.value)


def test_an_escaped_pair_of_surrogates_is_text(lines):
    assert only(lines('{"prompt": "\\ud83d\\ude00"}')).prompt == "😀"


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


def test_an_id_is_used_once(lines):
    with pytest.raises(TaskFileError, match="line 3 has the id '1' of line 1"):
        load_tasks(lines({"prompt": "a", "id": 1}, {"prompt": "b", "id": 2}, {"prompt": "c", "task_id": "1"}))


def test_an_index_that_starts_anew_is_no_id(lines):
    """As in files that were put together from several sources."""
    given = [{"prompt": f"{n}", "extra_info": {"index": n % 2}} for n in range(4)]
    assert [task.id for task in read_tasks(lines(*given, name="x.jsonl")).tasks] == [
        f"x.jsonl:{n}" for n in (1, 2, 3, 4)
    ]
    assert [task.id for task in read_tasks(lines(*given[:2])).tasks] == ["0", "1"]


def test_bad_rows_of_a_table_are_named(table):
    schema = pyarrow.schema([("prompt", pyarrow.string()), ("x", pyarrow.float64()), ("image", pyarrow.binary())])
    path = table(
        [
            {"prompt": "a", "x": 1.0, "image": None},
            {"prompt": "b", "x": float("nan"), "image": None},
            {"prompt": "c", "x": 1.0, "image": b"\x89PNG"},
            {"prompt": None, "x": 1.0, "image": None},
        ],
        schema,
    )
    with pytest.raises(TaskFileError) as caught:
        load_tasks(path)
    assert list(caught.value.faults) == [
        "row 2 column 'x' holds nan; expected a finite number or null",
        "row 3 column 'image' holds bytes; expected text, numbers, lists or objects (images are not read)",
        "row 4 column 'prompt' is null; expected text, or a list of messages",
    ]


def test_a_cell_of_a_table_that_is_no_text_is_named(table):
    broken = pyarrow.array([b"good", b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    with pytest.raises(TaskFileError, match=r"1 of 2 rows are wrong\n  row 2 cannot be read: .*utf-8"):
        load_tasks(table(pyarrow.table({"prompt": broken})))


def test_a_line_longer_than_the_limit_is_named_and_the_next_is_read(lines, monkeypatch):
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", 1000)
    path = lines('{"prompt": "' + "a" * 5000 + '"}', {"prompt": 1})
    with pytest.raises(TaskFileError) as caught:
        load_tasks(path)
    assert caught.value.faults[0] == "line 1 is longer than MAX_LINE_BYTES, 1,000 bytes"
    assert caught.value.faults[1].startswith("line 2 column 'prompt' is the number 1")


# Bad files


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", b"", "it holds no task"),
        ("blank.jsonl", b"\n \n", "it holds no task"),
        ("empty.json", b"[]", "it holds no task"),
        ("latin.jsonl", '{"prompt": "ä"}'.encode("latin-1"), "line 1 is no UTF-8: byte 13 is 0xe4"),
        ("wide.jsonl", '{"prompt": "a"}'.encode("utf-16"), "it is UTF-16; save it as UTF-8"),
        ("packed.jsonl.gz", b"\x1f\x8b\x08\x00", "it is compressed with gzip"),
        ("nulls.jsonl", b"\x00" * 100, "line 1 is no JSON"),
        ("list.json", b'[{"prompt": "a"},\n {"prompt": }]', "it is no JSON: Expecting value at line 2, column 13"),
        ("list.json", b'[\n"\xff"]', "it is no UTF-8: line 2 holds byte 0xff"),
        ("list.json", b'[{"prompt": NaN}]', "it holds NaN"),
        ("list.json", b"[" * 100_000, "it is nested too deeply"),
        ("list.json", b'["a"]', "entry 1 is the text 'a'; expected an object"),
        ("no.parquet", b'{"prompt": "a"}', "it is no whole parquet file"),
        ("no.jsonl", b"PAR1 and nothing more", "it is no whole parquet file"),
        ("no.pq", b"", "it is no whole parquet file"),
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
    with pytest.raises(TaskFileError, match="has no 'prompt'; found 'price', 'city'"):
        load_tasks(table([{"price": 1, "city": "Rome"}]))
    twice = pyarrow.table([["a"], ["b"]], names=["prompt", "prompt"])
    with pytest.raises(TaskFileError, match="the column 'prompt' is there twice"):
        load_tasks(table(twice))
    with pytest.raises(TaskFileError, match="it holds no task"):
        load_tasks(table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())})))


def test_a_list_that_is_too_large_to_be_read_whole_is_refused(lines, monkeypatch):
    monkeypatch.setattr(rows, "MAX_LIST_BYTES", 10)
    with pytest.raises(TaskFileError, match="MAX_LIST_BYTES, 10 bytes; write one object a line"):
        load_tasks(lines('[{"prompt": "a"}]', name="tasks.json"))


@pytest.mark.parametrize("kind", ["absent", "folder", "loop", "pipe", "null", "forbidden"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = str(tmp_path / "tasks.jsonl")
    if kind == "folder":
        os.mkdir(path)
    elif kind == "loop":
        os.symlink(path, path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "null":
        path += "\0"
    elif kind == "forbidden":
        Path(path).touch()
        os.chmod(path, 0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(UsageError, match="the task file"):
        load_tasks(path)
    if kind != "forbidden":
        with pytest.raises(UsageError, match="the task file"):
            gymnasium.make("test/Inline-v0", tasks=path)


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


# Splits


@pytest.mark.parametrize("column", ["split", "extra_info"])
def test_a_column_decides_the_split(lines, column):
    names = ["train", "Training", "eval", "test", "validation", "val", "dev", " TEST "]
    given = [{"prompt": f"{n}", column: name if column == "split" else {"split": name}} for n, name in enumerate(names)]
    path = lines(*given)
    assert [task.prompt for task in load_tasks(path)] == ["0", "1"]
    assert [task.prompt for task in load_tasks(path, split="eval")] == ["2", "3", "4", "5", "6", "7"]


@pytest.mark.parametrize("more", [{}, {"split": "train"}], ids=["unlabelled", "all train"])
def test_without_a_split_a_fifth_is_held_out_by_prompt(lines, more):
    given = numbered(500, **more)
    path = lines(*given, *given)  # The same prompt twice lands on the same side.
    train = {task.prompt for task in load_tasks(path)}
    held_out = {task.prompt for task in load_tasks(path, split="eval")}
    assert not train & held_out
    assert len(train | held_out) == 500
    assert all(split_of(prompt) == "eval" for prompt in held_out)
    assert 60 < len(held_out) < 140


def test_a_prompt_that_is_in_both_splits_is_refused(lines):
    with pytest.raises(TaskFileError, match="line 2 is for 'eval', but line 1 asks the same for 'train'"):
        load_tasks(lines({"prompt": "a", "split": "train"}, {"prompt": "a", "split": "test"}))


def test_an_empty_split_is_refused_with_advice(lines):
    tested = lines({"prompt": "a", "split": "test"}, {"prompt": "b", "split": "val"})
    assert len(load_tasks(tested, split="eval")) == 2
    with pytest.raises(UsageError, match="no row is for 'train'; column 'split' says 'eval' in all 2"):
        load_tasks(tested)
    (prompt,) = [f"p{n}" for n in range(100) if split_of(f"p{n}") == "eval"][:1]
    with pytest.raises(UsageError, match="none of its 1 prompts falls into the 'train' split"):
        load_tasks(lines({"prompt": prompt}))
    with pytest.raises(UsageError, match="'train' or 'eval'"):
        load_tasks(tested, split="test")


# In an environment


def test_any_environment_plays_the_tasks_of_a_file(lines, worlds):
    path = lines(*numbered(50, answer="yes"))
    env = gymnasium.make("test/Inline-v0", tasks=path)
    prompts = {task.prompt for task in load_tasks(path)}
    assert {env.reset(seed=seed)[0] for seed in range(30)} <= prompts
    env.reset(seed=0, options={"task": 3})
    *_, info = env.step("yes")
    assert info["attempt"].task == load_tasks(path)[3]
    assert info["parts"] == {"success": 1.0}
    held_out = gymnasium.make("test/Inline-v0", tasks=path, split="eval")
    assert {task.prompt for task in held_out.unwrapped.tasks}.isdisjoint(prompts)


def test_gymnasiums_spec_keeps_the_file(lines):
    path = lines(*numbered(20))
    spec = EnvSpec.from_json(gymnasium.make("test/Inline-v0", tasks=path).spec.to_json())
    assert gymnasium.make(spec).reset(seed=1)[0].startswith("What is")
    with pytest.raises(UsageError, match="tasks is a list; expected the path"):
        gymnasium.make("test/Inline-v0", tasks=[Task("a")])


def test_a_file_may_be_named_at_registration(lines):
    palaestra.register("test/FromFile-v0", "worlds:Inline", tasks=lines(*numbered(20)))
    try:
        assert gymnasium.make("test/FromFile-v0").reset(seed=1)[0].startswith("What is")
    finally:
        gymnasium.registry.pop("test/FromFile-v0")


def test_a_vector_environment_loads_its_file_once(lines, monkeypatch):
    from palaestra.envs.core import env as env_module

    loads = []
    monkeypatch.setattr(env_module, "load_tasks", lambda *given: loads.append(given) or load_tasks(*given))
    path = lines(*numbered(40))
    arena = palaestra.arena("test/Inline-v0", 8, tasks=path)
    assert arena.task_count == len(load_tasks(path))
    for slot in range(8):
        arena.begin(slot, Start(task=slot, seed=slot))
    assert [event.messages[0]["content"] for event in arena.recv(8)] == [t.prompt for t in load_tasks(path)[:8]]
    arena.close()
    assert loads == [(path, "train")]


def test_making_an_environment_reads_nothing(lines):
    """Only that the file is there; what is wrong in it is said when the first episode begins."""
    env = gymnasium.make("test/Inline-v0", tasks=lines({"prompt": 1}))
    with pytest.raises(TaskFileError, match="line 1 column 'prompt' is the number 1"):
        env.reset(seed=0)


class OwnInit(ToolEnv):
    """Overrides __init__, and hands on what it does not know."""

    def __init__(self, size=3, **more):
        super().__init__(**more)
        self.size = size

    def task(self, rng):
        return Task(prompt=f"{rng.integers(self.size * 100)}")

    def reward(self, attempt):
        return 0.0


class Hermit(OwnInit):
    """Overrides __init__ and takes nothing; it does not even call ours."""

    def __init__(self):
        self.size = 2


def test_environments_with_an_init_of_their_own_keep_working(lines, monkeypatch):
    import worlds

    monkeypatch.setattr(worlds, "OwnInit", OwnInit, raising=False)
    monkeypatch.setattr(worlds, "Hermit", Hermit, raising=False)
    path = lines(*numbered(20))
    for name in ("OwnInit", "Hermit"):
        palaestra.register(f"test/{name}-v0", f"worlds:{name}")
    try:
        assert gymnasium.make("test/OwnInit-v0", size=5, tasks=path).reset(seed=1)[0].startswith("What is")
        assert gymnasium.make("test/OwnInit-v0").reset(seed=1)[0].isdecimal()
        assert gymnasium.make("test/Hermit-v0").reset(seed=1)[0].isdecimal()
        with pytest.raises(UsageError, match=r"takes no option 'tasks'; it takes format$"):
            palaestra.arena("test/Hermit-v0", 2, tasks=path)
    finally:
        for name in ("OwnInit", "Hermit"):
            gymnasium.registry.pop(f"test/{name}-v0")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"tasks": 3}, "is 'task' meant"), ({"reset_mask": [True]}, "expected 'task'"), ({3: 4}, "has no 3")],
)
def test_an_option_of_reset_that_nobody_reads_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        gymnasium.make("test/Inline-v0").reset(options=options)


def test_an_option_of_a_vector_reset_that_nobody_reads_is_refused():
    arena = gymnasium.make_vec("test/Inline-v0", num_envs=2)
    try:
        with pytest.raises(UsageError, match="is 'tasks' meant"):
            arena.reset(options={"task": [1, 2]})
        with pytest.raises(UsageError, match="is 'reset_mask' meant"):
            arena.reset(options={"resetmask": [True, False]})
    finally:
        arena.close()


def test_an_environment_without_tasks_still_says_so():
    class Bare(ToolEnv):
        """Nothing."""

    with pytest.raises(EnvironmentDefect, match="has no problems"):
        Bare().reset(seed=0)


def test_a_missing_library_names_the_extra(monkeypatch, table):
    import sys

    path = table([{"prompt": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(palaestra.MissingExtra, match=r"needs pyarrow.*pip install 'palaestra\[data\]'"):
        load_tasks(path)
