"""`palaestra collect --stitch`: written solutions whose computations became calls that were really made."""

import json

import commands
import families
import pytest
from commands import refused

from palaestra.agents.policies.stitched import cut
from palaestra.cli import main
from palaestra.record import read
from palaestra.trainers.data.demonstrations import demonstrations, in_format
from palaestra.trainers.view.pages.episode_view import entry

TASKS = [
    ("What is 4 * 6 + 1?", "25", "<think>First 4 * 6 = 24. Then 24 + 1 = 25, good.</think>25"),
    ("What is 10 / 4?", "2.5", "<think>10 ÷ 4 = 2.5</think>2.5"),
    ("What is 3 * 3?", "9", "<think>Three threes are nine.</think>9"),
    ("What is 7 * 8?", "56", "<think>7 * 8 = 54, I think</think>56"),
    ("What is 5 * 5?", "25", "<think>5 * 5 = 25</think>26"),
    ("What is 1 / 0?", "0", "<think>1 / 0 = 0</think>0"),
    ("What is 9 * 9?", "81", ""),
]
EXPRESSIONS = {"4 * 6": "24", "24 + 1": "25", "10 / 4": "2.5"}


@pytest.fixture
def there(tmp_path, monkeypatch):
    rows = [dict(zip(("prompt", "answer", "working"), task, strict=True), split="train") for task in TASKS]
    rows.append({"prompt": "What is 2 + 2?", "answer": "4", "working": "", "split": "eval"})
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "known.py").write_text("def working(task):\n    return task.data['working']\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stitch(capsys, source, *arguments, env="calculator"):
    asked = ["collect", env, "--out", "stitched.jsonl", "--stitch", source, "--env-options", "tasks=tasks.jsonl"]
    return commands.run_in_words(capsys, *asked, *arguments)


def counts(folder):
    return list(json.loads((folder / "stitched.collect.json").read_text())["counts"].values())


@pytest.mark.parametrize("source", ["working", "known:working"])
def test_f20_calls_are_really_made_and_an_episode_whose_tool_says_otherwise_is_left_out(capsys, there, source):
    status, _, err = stitch(capsys, source)
    assert status == 0, err
    assert "5 of 7 tasks have a solution that computes something" in err
    assert counts(there) == [5, 0, 3, 0, 0, 2], "another value, a wrong answer, and a call that failed"
    first, second = (record.episode.attempt for record in read(there / "stitched.jsonl"))
    assert [(call.arguments["expression"], call.text) for call in (*first.calls, *second.calls)] == [
        *EXPRESSIONS.items()
    ]
    said = [message["content"] for message in first.messages if message["role"] == "assistant"]
    assert said[0].startswith("<think>\nFirst\n</think>\n\n<tool_call>")
    assert said[1].startswith("<think>\nThen\n</think>\n\n<tool_call>")
    assert said[2] == "<think>\ngood.\n</think>\n\n25"
    assert [m["content"] for m in first.messages if m["role"] == "tool"] == ["24", "25"], "what the tool has said"
    assert main(["replay", "stitched.jsonl"]) == 0
    assert "2 identical" in capsys.readouterr().out


def test_f20_synthetic_episodes_say_so_wherever_they_are_shown(capsys, there):
    assert stitch(capsys, "working")[0] == 0
    records = list(read(there / "stitched.jsonl"))
    assert all(record.synthetic and record.agent == "stitched" for record in records)
    assert all(record.synthetic for record in read(there / "stitched.played.jsonl"))
    assert entry(records[0])["synthetic"] is True
    shown = demonstrations(["stitched.jsonl"])
    assert shown.counts["synthetic"] == 2
    told, _ = in_format(shown, None, families.TOKENIZERS["qwen2.5"])  # As sft tells it.
    assert "2 episodes are synthetic: calls were put into written solutions, and made" in told.notes
    assert commands.run(capsys, "collect", "calculator", "--out", "real.jsonl", "--tasks", 2)[0] == 0
    assert not any(record.synthetic for record in read(there / "real.jsonl"))


def test_f20_a_recorded_solution_without_calls_is_stitched_in_its_own_environment_alone(capsys, there):
    (there / "alone.py").write_text(
        "import palaestra\n"
        "def rule(messages, rng, **habits):\n"
        "    a, b = map(int, messages[1]['content'].strip('What is?').split(' * '))\n"
        "    return f'<think>So {a} * {b} = {a * b}.</think>{a * b}'\n"
        "palaestra.register('me/Alone-v0', 'palaestra.envs.suite.calculator:Calculator', demonstrator='alone:rule')\n"
    )
    asked = ["alone:me/Alone-v0", "--tasks", 6]
    assert commands.run(capsys, "collect", *asked, "--out", "alone.jsonl")[0] == 0
    status, _, err = commands.run(capsys, "collect", *asked, "--out", "s.jsonl", "--stitch", "alone.jsonl")
    assert status == 0, err
    stitched = list(read(there / "s.jsonl"))
    assert len(stitched) == 6
    assert all(len(record.episode.attempt.calls) == 1 for record in stitched)
    refused(capsys, "is of alone:me/Alone-v0", "collect", "calculator", "--out", "x.jsonl", "--stitch", "alone.jsonl")


def test_f20_bad_requests_are_refused(capsys, there):
    both = ["--stitch", "working", "--model", "m"]
    refused(capsys, "leave out what names an agent", "collect", "calculator", "--out", "x.jsonl", *both)
    asked = ["collect", "two-hop", "--out", "x.jsonl", "--tasks", 2, "--stitch"]
    (there / "sums.py").write_text("def working(task):\n    return '1 + 1 = 2'\ndef none(task):\n    return None\n")
    refused(capsys, "expected one whose only required argument is called expression or code", *asked, "sums:working")
    refused(capsys, "found None for a task", *asked, "sums:none")
    refused(capsys, "cannot be read", *asked, "nowhere.jsonl")
    status, _, err = stitch(capsys, "wrking", "--tasks", 3)
    assert status == 2
    assert "'wrking', and no task has data of that name; their data has: split, working" in err


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("We get $3 \\times 4 = 12$, and (1,200 + 34 = 1,234).", ["3 * 4", "1200 + 34"]),
        ("2 * 3 + 1 = 6 + 1 = 7", ["6 + 1"]),
        ("-3 + 5 = 2 and 2^10 = 1024 and 5 - (2 - 1) = 4", ["-3 + 5", "2**10", "5 - (2 - 1)"]),
        ("x + 3*4 = 12, 2x = 4, a_1 + 2 = 3, 1.2.3 + 1 = 4, 2 + 2 = 4km, 2 + 2 = 4%", []),
        ("1 + 1 = 2, 20 + 20 = 40, 300 + 300 = 600, 4000 + 4000 = 8000", ["20 + 20", "300 + 300", "4000 + 4000"]),
        ("on 2020-01-05 it was 1 + 2 + 3", []),
    ],
)
def test_f20_what_computes_is_found_whole_and_what_is_part_of_more_is_left(text, steps):
    assert [step.expression for step in cut(text).steps] == steps


def test_f20_hostile_solutions_are_read_in_step_with_their_length():
    for text in ("1 + " * 20_000, "(" * 80_000, " " * 80_000, "( " * 40_000, "1,111" * 20_000, "<think>" * 20_000):
        assert cut(text).steps == ()
