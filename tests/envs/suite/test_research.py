"""Research: a task needs its tools, published files are read with what comes with them, answers are checked by rule."""

import base64
import json
from functools import partial

import pytest
import worlds
from demonstrated import play
from fake_server import FakeServer, Reply

from palaestra.envs import TextEnv
from palaestra.envs.core.toolkit import tools_of
from palaestra.envs.rewards.gaia import same_answer, same_or_equal
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.index import Document
from palaestra.envs.suite.research import Research, demonstrate
from palaestra.envs.suite.research_tables import FAMILIES, file_of, table_of
from palaestra.episode import Attempt, Task
from palaestra.errors import TaskFileError, UsageError

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def test_search_and_the_file_lead_to_every_answer_and_guessing_does_not():
    env, guess = TextEnv(Research("eval")), partial(demonstrate, tool_rate=0.0)
    for index in range(6):
        info = play(env, demonstrate, task=index)
        assert [call.name for call in info["attempt"].calls] == ["search", "python"]
        assert info["parts"]["success"] == 1.0
    assert sum(play(env, guess, task=index)["parts"]["success"] for index in range(60)) <= 1
    asked = " ".join(env.tasks[index].prompt for index in range(60))
    assert all(family.question.partition("{")[0] in asked for family in FAMILIES)


def test_no_prompt_is_in_both_splits_and_none_names_the_city():
    train, held_out = ([env.tasks[at] for at in range(200)] for env in map(TextEnv, map(Research, ("train", "eval"))))
    assert not {task.prompt for task in train} & {task.prompt for task in held_out}
    for task in train:
        assert not any(f" {city} " in task.prompt or f" {city}?" in task.prompt for city in task.data["cities"])


def test_both_kinds_of_files_hold_the_table():
    table = table_of(7, ("Teza", "Sopa"))
    rows = json.loads(file_of("x.json", 7, ("Teza", "Sopa")))
    assert {row.pop("city"): list(row.values()) for row in rows} == table
    header, *lines = file_of("x.csv", 7, ("Teza", "Sopa")).decode().split()
    assert header.startswith("city,January")
    assert [line.split(",") for line in lines] == [[city, *map(str, row)] for city, row in table.items()]


@pytest.mark.parametrize(("expected", "right", "wrong"), [
    ("17", ("17", "17.0", "$17", " 17% "), ("17 km", "1 7", "seventeen", "17, 18", "")),
    ("1234.5", ("1,234.5", "$1234.50"), ("1234,5", "12345")),
    ("red, green", ("red,green", "Red; GREEN"), ("green, red", "red", "red, green, blue", "red, green.")),
    ("3; b", ("3.0,B",), ("3; c", "4; b")),
    ("St. Petersburg", ("st petersburg", "St.Petersburg!"), ("Petersburg", "Saint Petersburg")),
    ("inf", ("inf", "INF"), ("word", "1e999")),
    ("!", ("!",), ("?", "", "...")),
    ("Right", ("right",), (None, "", "x" * 20_000)),
])  # fmt: skip
def test_answers_are_compared_by_the_rules_of_gaia(expected, right, wrong):
    assert all(same_answer(text, expected) for text in right)
    assert not any(same_answer(text, expected) for text in wrong)


def test_mathematics_is_compared_as_mathematics():
    assert same_or_equal("0.5", r"\frac{1}{2}")
    assert not same_or_equal("0.25", r"\frac{1}{2}")


def hidden(text, key):
    """As xbench publishes it."""
    coded = bytes(one ^ key[at % len(key)] for at, one in enumerate(text.encode()))
    return base64.b64encode(coded).decode()


PUBLISHED = {
    "GAIA": {"task_id": "c61d", "Question": "How many?", "Level": 2, "Final answer": "17", "file_name": "a.txt",
             "Annotator Metadata": {"Steps": "1."}},
    "HLE": {"id": "6687", "question": "How many?", "answer": "17", "answer_type": "exactMatch",
            "image": f"data:image/png;base64,{PIXEL}", "canary": "hle:3r2s"},
    "xbench": {"id": "1", "prompt": hidden("How many? 多少", b"key"), "answer": hidden("17", b"key"), "canary": "key"},
    "WebWalkerQA": {"question": "How many?", "answer": "17", "root_url": "https://a.test/", "info": {"hop": "multi"}},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_columns_are_read_and_their_files_lie_where_python_runs(name, tmp_path):
    path = tmp_path / "metadata.jsonl"
    path.write_text(json.dumps(PUBLISHED[name]))
    (tmp_path / "a.txt").write_text("hello")
    index = EmbeddedIndex.of([Document("1", "A", "b")])
    env = Research("all", tasks=str(path), search=index)
    (task,) = TextEnv(env).tasks
    assert task.prompt.startswith("How many?")
    assert task.data["benchmark"] == name
    assert ("https://a.test/" in task.prompt) == (name == "WebWalkerQA")
    for text, success in (("Answer: 17", 1.0), ("Answer: 18", 0.0)):
        assert worlds.judged(env, Attempt(task, (), text, (), 1))[0] == success
    played = TextEnv(env)
    played.reset(seed=0)
    code = '<tool_call>{"name": "python", "arguments": {"code": "import os; sorted(os.listdir())"}}</tool_call>'
    listed = {"GAIA": "a.txt", "HLE": "image.png"}.get(name)
    assert (listed or "[]") in played.step(code)[0]
    told = played.step('<tool_call>{"name": "list_files", "arguments": {}}</tool_call>')[0]
    assert (listed or "no files") in told
    played.close()


def test_multiple_choice_is_one_letter():
    row = {"question": "Which?\nA. red\nB. blue", "answer": "B", "answer_type": "multipleChoice"}
    env = Research()
    task = Task(row["question"], "B", "x", {"letters": "AB"})
    for text, success in (("Answer: B", 1.0), (r"\boxed{B}", 1.0), ("Answer: A", 0.0), ("A or B", 0.0), (None, 0.0)):
        assert worlds.judged(env, Attempt(task, (), text, (), 1))[0] == success


@pytest.mark.parametrize(("row", "said"), [
    ({"Question": "q", "Final answer": "?"}, "validation set"),
    ({"Question": "q", "Final answer": ""}, "empty text in 'Final answer'"),
    ({"Question": "q", "Final answer": "1", "file_name": "gone.pdf"}, r"'gone\.pdf'.*files=FOLDER"),
    ({"Question": "q", "Final answer": "1", "file_name": "./problems.jsonl"}, "which is not in"),
    ({"question": "Q\nA. x\nB. y", "answer": "C", "answer_type": "multipleChoice"}, "one of its options, A, B"),
    ({"question": "q", "answer": "1", "answer_type": "exactMatch", "image": "http://x/y.png"}, "data:image"),
    ({"question": "q", "answer": "1", "answer_type": "exactMatch", "image": "data:image/png;base64,%"}, "no base64"),
    ({"prompt": hidden("多少多少", b"other key"), "answer": "1", "canary": "key"}, "does not decrypt"),
    ({"question": "q", "answer": "1"}, "GAIA .* HLE .* xbench .* WebWalkerQA"),
])  # fmt: skip
def test_a_wrong_row_is_named(row, said, saved):
    first = {"question": "q", "answer": "1", "root_url": "https://a.test"}
    with pytest.raises(TaskFileError, match=said):
        _ = TextEnv(Research("all", tasks=saved(first, row))).tasks


@pytest.mark.parametrize("answer", ["17 只", "1949", "Nice", "Tokio123"])
@pytest.mark.parametrize("canary", [{"canary": "key"}, {"canary": None}, {}])
@pytest.mark.parametrize("place", [0, 1])
def test_each_row_of_xbench_is_read_as_it_is_encrypted_or_not(answer, canary, place, saved):
    """Of these answers the last three are base64 by chance, and `Nice` would even decrypt to text."""
    rows = [PUBLISHED["xbench"]]
    rows.insert(place, {"prompt": "多少?", "answer": answer, **canary})
    tasks = TextEnv(Research("eval", tasks=saved(*rows))).tasks
    assert [(task.prompt, task.answer) for task in tasks][place] == ("多少?", answer)
    assert [(task.prompt, task.answer) for task in tasks][1 - place] == ("How many? 多少", "17")


def test_a_folder_that_is_not_there_is_said_at_once():
    with pytest.raises(UsageError, match="expected the folder"):
        Research(files="/no/such/folder")


def test_a_browser_is_added_by_an_option_and_no_two_tools_share_a_name():
    env = TextEnv(Research("eval", browser="text"))
    env.reset(seed=0)
    names = [schema["function"]["name"] for schema in env.schemas]
    assert {"search", "read_document", "python", "file_reader", "open", "click", "find"} <= set(names)
    env.close()
    with pytest.raises(UsageError, match="text, chromium"):
        Research(browser="netscape")


def test_served_models_add_the_tools_that_need_them():
    served = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    names = {name for kit in Research(model=served, speech=served).toolkits for name in tools_of(kit)}
    assert {"browse", "image2text", "audio2text", "search", "python", "file_reader"} <= names
    with pytest.raises(UsageError, match="expected where a model is served"):
        Research(model={"url": "http://127.0.0.1:9"})


SIX = ("search", "browse", "python", "file_reader", "image2text", "audio2text")


@pytest.mark.parametrize("tools", [SIX, ",".join(SIX), ["python"], "search, list_files"])
def test_the_tools_that_are_named_are_offered_and_no_other_one_is_run(tools):
    with FakeServer(lambda seen: Reply({"data": []})) as server:
        served = {"base_url": server.url, "model": "m"}
        env = TextEnv(Research("eval", model=served, speech=served, browser="text", tools=tools))
        env.reset(seed=0)
        names = {schema["function"]["name"] for schema in env.schemas}
        assert names == {name.strip() for name in (tools.split(",") if isinstance(tools, str) else tools)}
        for name in ({"search", "find_in_file", "python"} - names) | {"python"}:
            told = env.step(f'<tool_call>{{"name": "{name}", "arguments": {{"code": "6 * 7"}}}}</tool_call>')[0]
            assert told.strip() == "42" if name in names else f"no tool is named '{name}'" in told
        env.close()


def test_without_names_all_tools_are_offered():
    served = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    env = Research(model=served, speech=served, browser="text")
    assert len({name for kit in env.toolkits for name in tools_of(kit)}) == 19


@pytest.mark.parametrize(("tools", "said"), [
    ("pyhton", r"'pyhton'.*did you mean 'python'"),
    ("browse,search", r"'browse', which is not offered.*need model="),
    ([], "tools names ''"),
    ("", "tools names ''"),
    ([3], "tools names 3"),
])  # fmt: skip
def test_a_tool_that_is_not_offered_is_refused_with_the_closest_one(tools, said):
    with pytest.raises(UsageError, match=said):
        Research(tools=tools)
