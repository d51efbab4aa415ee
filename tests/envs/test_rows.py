"""Rows of CSV files, and files of which nobody knows what they are."""

import pytest

from palaestra.cli import main
from palaestra.envs.data.rows import named
from palaestra.envs.data.task_files import read_tasks
from palaestra.errors import TaskFileError


@pytest.fixture
def saved(tmp_path):
    """Write text to a file."""

    def write(text, name="tasks.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return str(path)

    return write


def test_a_table_of_text_is_read_and_its_empty_cells_are_nothing(saved):
    path = saved('\ufeffprompt,answer,level,split\r\n"Find, please,\n""x"".",4,,train\r\n\r\nb,5,hard,test\r\n')
    file = read_tasks(path)
    first, second = file.tasks
    assert (first.prompt, first.answer, first.data["level"]) == ('Find, please,\n"x".', "4", None)
    assert (second.prompt, second.answer, second.id) == ("b", "5", "tasks.csv:2")
    assert file.splits == ("train", "eval")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it holds no task"),
        ("prompt,answer\n", "it holds no task"),
        ("question,answer\na,b\n", "row 1 has no 'prompt'; found 'question', 'answer'"),
        ("prompt,answer\na,b\na,b,c\n", "row 2 has 3 cells; expected 2, as the header has"),
        ("prompt,answer\na,b\nc\n", "row 2 has 1 cells; expected 2"),
        ("prompt,answer\n,b\n", "row 1 column 'prompt' is null"),
        ("prompt,prompt\na,b\n", "the column 'prompt' is there twice"),
        ('prompt,answer\n"a,b\n', "it cannot be read as CSV"),
    ],
)
def test_a_table_of_text_that_is_wrong_is_refused_in_words(saved, text, said):
    with pytest.raises(TaskFileError) as caught:
        read_tasks(saved(text))
    assert said in str(caught.value)


def test_a_published_table_of_text_is_read_by_every_environment(saved, capsys):
    rows = "".join(f"{n},Find {n}.,{n}\n" for n in range(30))
    assert main(["data", saved(f"id,problem,answer\n{rows}", "aime.csv"), "--env", "code-math"]) == 0
    assert "30 tasks" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tasks.txt", "tasks", "tasks.yaml"])
def test_a_file_of_something_else_is_one_line_and_not_one_for_each_row(saved, capsys, name):
    text = "prompt: a\nanswer: b\n" * 20
    assert main(["data", saved(text, name)]) == 1
    out = capsys.readouterr().out
    assert "expected a .jsonl, .json, .csv or .parquet file" in out
    assert "line" not in out.partition("expected")[2]
    assert read_tasks(saved('{"prompt": "a"}\n', name)).tasks


def test_of_many_columns_it_is_said_how_many_more_there_are():
    assert named(["a", "b"]) == "'a', 'b'"
    assert named([*"abcdefghij"]).endswith("'h' and 2 more")
