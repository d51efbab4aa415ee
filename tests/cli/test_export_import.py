"""Episodes leave in the forms of other projects, and dialogues and evaluations of others come back as episodes."""

import json
from dataclasses import replace

import numpy as np
import pytest
from commands import refused, run

from palaestra.episode import Call, Ending, Opening, Status, TokenRow
from palaestra.record import Record, read, write


@pytest.fixture
def recorded(tmp_path, capsys):
    """A file of six episodes of a demonstrator, of which the fourth thought aloud and the last is BROKEN."""
    status, out, err = run(capsys, "collect", "two-hop", "--tasks", "6", "--out", tmp_path / "played.jsonl")
    assert status == 0, out + err
    records = list(read(tmp_path / "played.jsonl"))
    thinking = records[3].episode
    messages = [dict(message) for message in thinking.attempt.messages]
    messages[2]["content"] = f"<think>\nI look it up.\n</think>\n{messages[2]['content']}"
    records[3] = with_attempt(records[3], messages=tuple(messages))
    records[5] = replace(
        records[5], episode=replace(records[5].episode, ending=Ending.BROKEN, reward=None, parts={}, fault="gone")
    )
    write(tmp_path / "played.jsonl", records)
    return tmp_path / "played.jsonl"


def with_attempt(record: Record, **changes) -> Record:
    return replace(record, episode=replace(record.episode, attempt=replace(record.episode.attempt, **changes)))


def exported(capsys, path, form):
    out = path.with_suffix(f".{form}")
    status, said, err = run(capsys, "export", path, "--to", form, "--out", out)
    assert status == 0, said + err
    return out


def imported(capsys, path, form, *more):
    out = path.with_name(f"{path.name}.back.jsonl")
    status, said, err = run(capsys, "import", path, "--from", form, "--out", out, *more)
    assert status == 0, said + err
    return list(read(out))


def test_what_leaves_as_messages_comes_back_as_it_was(recorded, capsys):
    before = [record for record in read(recorded) if record.episode.ending is not Ending.BROKEN]
    path = exported(capsys, recorded, "messages")
    after = imported(capsys, path, "messages")
    assert len(after) == len(before) == 5
    for old, new in zip(before, after, strict=True):
        assert (new.env_id, new.agent, new.episode.start.task) == (old.env_id, old.agent, old.episode.start.task)
        assert new.episode.attempt.messages == old.episode.attempt.messages
        assert [(call.name, call.text) for call in new.episode.attempt.calls] == [
            (call.name, call.text) for call in old.episode.attempt.calls
        ]
        assert new.episode.attempt.task.answer == old.episode.attempt.task.answer
        assert (new.episode.reward, new.episode.parts, new.episode.tools) == (
            old.episode.reward,
            old.episode.parts,
            old.episode.tools,
        )
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[3]["messages"][2]["reasoning_content"] == "I look it up."
    assert "think" not in str(lines[3]["messages"][2]["content"])
    for command in (("replay",), ("rescore", "--reward", "two-hop")):
        status, out, err = run(capsys, command[0], f"{path}.back.jsonl", *command[1:])
        assert status == 0, out + err


def test_a_log_holds_broken_episodes_as_errors_and_they_come_back_broken(recorded, capsys):
    path = exported(capsys, recorded, "inspect")
    samples = json.loads(path.read_text("utf-8"))["samples"]
    assert [bool(sample["error"]) for sample in samples] == [False] * 5 + [True]
    assert samples[5]["scores"] == {}
    after = [record.episode for record in imported(capsys, path, "inspect")]
    assert [episode.reward for episode in after] == [1.0] * 5 + [None]
    assert (after[5].ending, after[5].fault) == (Ending.BROKEN, "gone")
    old = [record.episode.attempt.messages for record in read(recorded)]
    assert [episode.attempt.messages for episode in after] == old


def test_tokens_leave_as_they_were_sampled_and_never_beside_texts(recorded, capsys, tmp_path):
    rows = (TokenRow(np.arange(6, dtype=np.int32), np.arange(6) > 3, np.zeros(6, np.float32), np.zeros(6, np.int32)),)
    records = [replace(record, episode=replace(record.episode, rows=rows)) for record in read(recorded)]
    write(tmp_path / "tokens.jsonl", records)
    lines = exported(capsys, tmp_path / "tokens.jsonl", "trl").read_text("utf-8").splitlines()
    assert len(lines) == 5
    assert json.loads(lines[0]) == {"input_ids": [0, 1, 2, 3, 4, 5], "assistant_masks": [0, 0, 0, 0, 1, 1]}
    write(tmp_path / "mixed.jsonl", [records[0], *list(read(recorded))[1:]])
    refused(capsys, "some have none", "export", tmp_path / "mixed.jsonl", "--to", "trl", "--out", tmp_path / "x")


def test_sharegpt_speaks_by_turns_also_where_calls_went_together(recorded, capsys, tmp_path):
    record = next(iter(read(recorded)))
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
    messages = list(record.episode.attempt.messages)
    messages[2:4] = [
        {"role": "assistant", "content": f"{call}\n{call}"},
        *({"role": "tool", "name": "search", "content": text} for text in ("one", "two")),
    ]
    write(tmp_path / "two.jsonl", [with_attempt(record, messages=tuple(messages))])
    (line,) = exported(capsys, tmp_path / "two.jsonl", "sharegpt").read_text("utf-8").splitlines()
    turns = json.loads(line)["conversations"]
    speakers = ["human", "function_call", "observation", "function_call", "observation", "gpt"]
    assert [turn["from"] for turn in turns] == speakers
    assert len(json.loads(turns[1]["value"])) == 2
    assert turns[2]["value"] == "one\ntwo"


def test_rows_for_verl_are_a_file_of_tasks_here(recorded, capsys):
    path = exported(capsys, recorded, "verl")
    path = path.rename(path.with_suffix(".verl.jsonl"))
    status, out, err = run(capsys, "data", path)
    assert status == 0, out + err


def test_dialogues_of_strangers_come_with_their_calls_errors_and_grades(tmp_path, capsys):
    called = {"id": "a", "function": "add", "arguments": {"n": 1}, "type": "function"}
    messages = [
        {"role": "user", "content": "attachment://x"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "no", "tool_call_id": "a", "function": "add", "error": {"type": "timeout"}},
        {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "2"}]},
    ]
    sample = {"id": 7, "epoch": 2, "target": "2", "messages": messages, "attachments": {"x": "1 + 1?"}}
    samples = [
        {**sample, "scores": {"match": {"value": value}, "unscored": {"value": float("nan")}}}
        for value in ("C", "I", {"depth": 0.5})
    ]
    samples.append({**sample, "scores": {}, "error": {"message": "the sandbox is gone"}})
    log = {"eval": {"model": "m", "task": "arith"}, "samples": samples}
    (tmp_path / "log.json").write_text(json.dumps(log), "utf-8")
    *episodes, broken = [record.episode for record in imported(capsys, tmp_path / "log.json", "inspect")]
    assert (broken.ending, broken.reward, broken.fault) == (Ending.BROKEN, None, "the sandbox is gone")
    assert [episode.parts["success"] for episode in episodes] == [1.0, 0.0, 0.5]
    assert episodes[2].parts == {"success": 0.5, "depth": 0.5}
    attempt = episodes[0].attempt
    assert (attempt.task.prompt, attempt.answer, episodes[0].start.seed) == ("1 + 1?", "2", 1)
    assert attempt.calls == (Call("add", {"n": 1}, "no", Status.TOOL_ERROR),)
    assert attempt.messages[3]["content"] == "<think>\nhm\n</think>\n2"


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"messages": [{}]}',
        '{"messages": 3}',
        "{",
        '{"messages": []}\n{"x": 1}',
        '{"messages": [], "metadata": {"reward": NaN}}',
        '{"messages": [], "metadata": {"parts": {"success": 1e999}}}',
    ],
)
def test_a_file_of_another_form_is_refused_with_its_line(content, tmp_path, capsys):
    (tmp_path / "file").write_text(content, "utf-8")
    line = f"line {1 + content.count(chr(10))}"
    arguments = ("import", tmp_path / "file", "--from", "messages", "--out", tmp_path / "out.jsonl")
    assert line in refused(capsys, "is not of the form messages", *arguments)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_command_without_a_file_is_refused(tmp_path, capsys):
    refused(capsys, "name a file to read", "import", "--from", "messages", "--out", tmp_path / "out.jsonl")
    refused(capsys, "there are no episode files", "export", "--to", "messages", "--out", tmp_path / "out.jsonl")
    assert not list(tmp_path.iterdir())


def test_each_dialogue_of_an_episode_leaves_as_a_row_of_its_own_and_its_answer_stays(recorded, capsys):
    first = next(iter(read(recorded)))
    half = len(first.episode.attempt.messages)
    context = {"role": "assistant", "content": "as before", "weight": 0}
    messages = (*first.episode.attempt.messages, {"role": "user", "content": "Again."}, context)
    messages = (*messages, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "That was it."})
    openings = (Opening(0, first.episode.tools), Opening(half, ()))
    write(recorded, [with_attempt(first, messages=messages, dialogues=openings)])
    rows = [json.loads(line) for line in exported(capsys, recorded, "messages").read_text("utf-8").splitlines()]
    assert [len(row["messages"]) for row in rows] == [half, 4]
    assert [bool(row["tools"]) for row in rows] == [True, False]
    assert [message.get("weight") for message in rows[1]["messages"]] == [None, 0, None, None]
    for form in ("trl", "verl", "sharegpt"):
        assert len(exported(capsys, recorded, form).read_text("utf-8").splitlines()) == 2
    (back,) = imported(capsys, exported(capsys, recorded, "inspect"), "inspect")
    assert back.episode.attempt.answer == first.episode.attempt.answer != "That was it."
    *_, second = imported(capsys, recorded.with_suffix(".messages"), "messages")
    assert second.episode.attempt.turns == 1
