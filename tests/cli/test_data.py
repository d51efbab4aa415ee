"""`palaestra data`: what a file of tasks holds, which rows are wrong, and what an environment misses in it."""

import json

import gymnasium
import pytest
from commands import refused, run

import palaestra
from palaestra.envs import Task, ToolEnv, Toolkit, tool


@pytest.fixture
def said(capsys, tmp_path):
    """Write rows to a file and look at it; the exit status and what was printed."""

    def look(rows, *arguments, name="tasks.jsonl"):
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        status, out, err = run(capsys, "data", path, *arguments)
        return status, " ".join(out.split()), err

    return look


@pytest.fixture
def world():
    """Register a class for a test."""
    ids = []

    def register(cls):
        globals()[cls.__name__] = cls
        ids.append(f"test/{cls.__name__}-v0")
        palaestra.register(ids[-1], f"{__name__}:{cls.__name__}")
        return ids[-1]

    yield register
    for env_id in ids:
        gymnasium.registry.pop(env_id, None)


def numbered(count, **more):
    return [{"prompt": f"What is {n:03} + 1?", "answer": str(n + 1), **more} for n in range(count)]


def test_a_sound_file_is_shown_as_it_is_read(said):
    rows = numbered(100, data_source="sums", extra_info={"split": "train"})
    rows[3]["level"] = 2
    status, out, _ = said(rows)
    assert status == 0
    assert "100 tasks, " in out
    assert "answer column 'answer'" in out
    assert "id the file's name and the row" in out
    assert "all rows say train: about one prompt in five is held out, by its hash" in out
    assert "data data_source, extra_info, level (in 1%)" in out
    assert "prompts of 16 to 16 characters, in the middle 16" in out
    assert 'The first task id tasks.jsonl:1 prompt What is 000 + 1? answer "1"' in out
    assert "note" not in out


@pytest.mark.parametrize(
    ("rows", "remark"),
    [
        (numbered(9) + numbered(2), "2 of the prompts repeat an earlier one; 9 are different"),
        ([*numbered(1), {"prompt": "What is 000 + 1?", "answer": "2"}], "prompts with more than one answer: 1"),
        ([{"prompt": "a", "answer": ""}], "empty answers: 1; an empty answer may be right there"),
        ([{"prompt": "a"}], "no task has an answer"),
        (
            [{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}],
            "system messages: 1, kept in Task.data['system']; the agent gets the environment's own",
        ),
        (numbered(3, split="test"), "no task is for 'train'"),
    ],
    ids=["repeated", "contradicting", "empty", "unanswered", "system", "one-split"],
)
def test_what_is_odd_but_not_wrong_is_a_note(said, rows, remark):
    status, out, _ = said(rows)
    assert status == 0
    assert remark in out


def test_wrong_rows_are_listed_and_the_exit_status_is_1(said):
    status, out, err = said([*numbered(2), *({"prompt": n} for n in range(60))])
    assert (status, err) == (1, "")
    assert "60 of 62 rows are wrong line 3 column 'prompt' is the number 0; expected text" in out
    assert "line 52 " in out
    assert " and 10 more with --env ENV-ID it is read by that environment" in out
    status, out, _ = said([])
    assert status == 1
    assert "it holds no task" in out


def test_what_is_no_file_is_a_wrong_request(capsys, tmp_path):
    for path in (tmp_path, tmp_path / "absent.jsonl"):
        refused(capsys, "the task file", "data", path)


def test_no_text_of_a_file_reaches_the_terminal_as_a_command(capsys, tmp_path):
    nasty = "\x1b[2J\r\x07"
    rows = [{"prompt": nasty + "a", "answer": nasty, "id": nasty + "b", nasty: nasty}]
    for bad in ([], [{nasty: 1}], [{"prompt": [{"role": nasty, "content": "a"}]}]):
        path = tmp_path / "nasty.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows + bad), encoding="utf-8")
        _, out, _ = run(capsys, "data", path, "--env", "calculator")
        assert len(out) > 100
        assert not {"\x1b", "\r", "\x07"} & set(out)


def test_a_long_prompt_is_cut_for_the_eye(said):
    _, out, _ = said([{"prompt": "word " * 1000, "answer": "a"}])
    assert "[... 5,000 characters in all]" in out
    assert len(out) < 2000


class Base(ToolEnv):
    """An environment with fixed limits and no tasks of its own."""

    max_turns = 3

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


def test_an_environment_that_finds_all_it_needs_passes(said, world):
    class Sums(Base):
        @tool
        def look(self, kind: str, count: int = 1) -> str:
            """Look."""
            return self.problem.data["note"] + self.problem.data.get("absent", "")

    status, out, _ = said(numbered(30, note="n"), "--env", world(Sums))
    assert status == 0
    assert "As the agent is asked user: What is " in out
    assert "its tools and its reward find what they need" in out


class NeedsInReward(Base):
    def reward(self, attempt):
        return float(attempt.answer == attempt.task.data["accepted"])


class NeedsInTool(Base):
    @tool
    def look(self, name: str, count: int, exact: bool, words: list[str]) -> str:
        """Look."""
        return self.problem.data["accepted"]


class Shelf(Toolkit):
    def start(self, task, rng):
        self.books = task.data["accepted"]


class NeedsAtStart(Base):
    toolkits = (Shelf,)


@pytest.mark.parametrize("cls", [NeedsInReward, NeedsInTool, NeedsAtStart])
def test_a_column_that_the_environment_needs_is_named(said, world, cls, caplog):
    status, out, _ = said(numbered(30), "--env", world(cls))
    assert status == 1
    expected = "reads Task.data['accepted'], and no such column is there; the file has 'prompt', 'answer'"
    assert expected in out
    assert not caplog.records


def test_what_else_fails_in_the_environment_is_told_with_the_task(said, world):
    class Strict(Base):
        """Its reward knows numbers only."""

        def reward(self, attempt):
            return float(int(attempt.task.answer) == 1)

    status, out, _ = said(
        [{"prompt": f"{n}", "answer": "one", "id": f"t{n}"} for n in range(30)], "--env", world(Strict)
    )
    assert status == 1
    assert "task t" in out
    assert "ValueError: invalid literal for int()" in out


PUBLISHED = {
    "code-math": {"ID": "2024-I-{n}", "Problem": "Find {n}.", "Answer": "{n}"},
    "code-contest": {
        "question_content": "Print {n}.", "starter_code": "class Solution:",
        "public_test_cases": '[{{"input": "1", "output": "{n}", "testtype": "stdin"}}]',
    },
    "science": {"question": "What is {n} + 1?", "reference_answer": "{n}1"},
}  # fmt: skip


@pytest.mark.parametrize(("env_id", "row"), PUBLISHED.items(), ids=PUBLISHED)
def test_a_published_file_is_read_as_the_environment_reads_it(said, env_id, row):
    rows = [{name: value.format(n=n) for name, value in row.items()} for n in range(30)]
    status, out, err = said(rows, "--env", env_id)
    assert (status, err) == (0, "")
    assert "30 tasks, " in out
    assert "Read by the environment" in out
    assert "its tools and its reward find what they need" in out
    assert ("Begin with this code" in out) == (env_id == "code-contest")
    status, out, _ = said(rows)
    assert status == 1
    assert "has no 'prompt'" in out


def test_the_options_of_gpqa_are_tasks_of_science(capsys, tmp_path):
    rows = "".join(f"Q{n}?,a,b,c,d\n" for n in range(3))
    header = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
    (tmp_path / "gpqa.csv").write_text(header + rows)
    assert run(capsys, "data", tmp_path / "gpqa.csv", "--env", "science")[0] == 0


def test_every_row_that_the_environment_refuses_is_told_at_once(said):
    rows = [{"problem": "Unanswered?"}, {"x": 1}, *({"problem": f"{n}?"} for n in range(60))]
    status, out, _ = said([*rows, {"problem": "?", "answer": "2"}], "--env", "code-math")
    assert status == 1
    assert "line 1 ('line 1'): it has no answer" in out
    assert "line 2 has no question; expected one of the columns 'prompt', 'problem'" in out
    assert "line 62 ('line 62'): it has no answer" in out
    status, out, _ = said([{"prompt": f"{n}?", "answer": "no tests"} for n in range(9)], "--env", "code-contest")
    assert status == 1
    assert "the answer is no JSON" in out


def test_an_environment_that_takes_no_file_says_so(said, world):
    class Hermit(Base):
        def __init__(self):
            super().__init__()

        def task(self, rng):
            return Task("a")

    for env_id in (world(Hermit), "human-eval", "CartPole-v1"):
        status, _, err = said(numbered(30), "--env", env_id)
        assert status == 2
        assert "takes no file of tasks" in err
