"""inspect evaluates an environment of palaestra: its tools are called, its reward is the score, BROKEN is an error."""

import json
from pathlib import Path

import lookup_world
import pytest
from commands import run
from foreign_harness import played, trained, words_are_found_and_judged

from palaestra.episode import Ending
from palaestra.errors import UsageError
from palaestra.record import read

WORDS = {"task": f"{Path(__file__).parent}/inspect_words.py@words"}


def answered(messages, tools, tool_choice, config):
    from inspect_ai.model import ModelOutput, ModelUsage

    text, arguments = lookup_world.turn([message.text for message in messages])
    assert [tool.name for tool in tools] == ["look_up"]
    if arguments is None:
        output = ModelOutput.from_content("mockllm", text)
    else:
        output = ModelOutput.for_tool_call("mockllm", "look_up", json.loads(arguments))
    output.usage = ModelUsage()  # Else it counts tokens with a table that it fetches.
    return output


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """inspect allows one evaluation at a time in a process."""
    import inspect_ai
    from inspect_ai.model import get_model

    from palaestra.interop.inspect_task import environment

    (log,) = inspect_ai.eval(
        environment(lookup_world.ENV_ID, tasks=12),
        model=get_model("mockllm/model", custom_outputs=answered),
        epochs=2,
        fail_on_error=False,
        display="none",
        log_dir=str(tmp_path_factory.mktemp("logs")),
        log_format="json",
    )
    return log


def test_an_environment_is_evaluated_and_a_broken_episode_is_an_error_and_no_score(log):
    assert log.status == "success"
    samples = log.samples
    assert len(samples) == 24
    for sample in samples:
        gone = lookup_world.is_gone(lookup_world.number_of(sample.input[-1].text))
        if gone:
            assert "the server is gone" in sample.error.message
            assert not sample.scores
        else:
            assert sample.error is None
            assert sample.scores["reward"].value == {"reward": 1.0, "success": 1.0}
            assert [message.role for message in sample.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert any(sample.error for sample in samples)
    (score,) = [score for score in log.results.scores if score.name == "success"]
    assert score.metrics["mean"].value == 1.0


def test_a_sample_that_a_limit_of_time_ends_is_cut_scored_and_closed(monkeypatch, tmp_path):
    import anyio
    import inspect_ai

    from palaestra.interop import inspect_task

    class Hangs:
        async def generate(self, *_):
            await anyio.sleep_forever()

    closed, close = [], inspect_task.NativeEpisode.close
    monkeypatch.setattr(inspect_task.NativeEpisode, "close", lambda self: closed.append(self.ending) or close(self))
    monkeypatch.setattr(inspect_task, "get_model", Hangs)
    how = {"time_limit": 1, "display": "none", "log_dir": str(tmp_path), "log_format": "json"}
    (log,) = inspect_ai.eval(inspect_task.environment(lookup_world.ENV_ID, tasks=1), model="mockllm/model", **how)
    (sample,) = log.samples
    assert (sample.error, sample.limit.type) == (None, "time")
    assert sample.scores["reward"].value == {"reward": 0.0, "success": 0.0}
    assert closed == ["", "length_limit"], "the first is that of the task's samples"


def test_a_log_comes_back_as_episodes_and_episodes_leave_as_a_log(log, tmp_path, capsys):
    from inspect_ai.log import convert_eval_logs, read_eval_log

    convert_eval_logs(log.location, "eval", str(tmp_path))
    (packed,) = tmp_path.glob("*.eval")
    files = []
    for number, source in enumerate((log.location.removeprefix("file://"), packed)):
        files.append(tmp_path / f"{number}.jsonl")
        status, out, err = run(capsys, "import", source, "--from", "inspect", "--out", files[-1])
        assert status == 0, out + err
    records, unpacked = (list(read(file)) for file in files)
    assert [record.episode.attempt for record in records] == [record.episode.attempt for record in unpacked]
    assert {record.env_id for record in records} == {lookup_world.ENV_ID}
    assert sum(record.episode.ending is Ending.BROKEN for record in records) == sum(bool(s.error) for s in log.samples)
    assert {record.episode.reward for record in records} == {1.0, None}
    (solved, *_) = [record.episode.attempt for record in records if record.episode.reward]
    assert [call.name for call in solved.calls] == ["look_up"]
    status, out, err = run(capsys, "rescore", files[0], "--reward", lookup_world.ENV_ID)
    assert status == 0, out + err
    assert "0 │" in next(line for line in out.splitlines() if "lower now" in line)
    for command in (("view", files[0], "--out", tmp_path / "page.html"), ("analyse", files[0])):
        status, out, err = run(capsys, *command)
        assert status == 0, out + err
    status, out, err = run(capsys, "export", files[0], "--to", "inspect", "--out", tmp_path / "again.json")
    assert status == 0, out + err
    again = read_eval_log(str(tmp_path / "again.json"))
    assert [sample.error is None for sample in again.samples] == [sample.error is None for sample in log.samples]
    for before, after in zip(log.samples, again.samples, strict=True):
        assert [m.text for m in after.messages] == [m.text for m in before.messages] or before.error


def test_a_task_of_inspect_is_played_here_and_its_scorer_is_the_reward(capsys, model):
    words_are_found_and_judged(capsys, model, "foreign/Inspect-v0", **WORDS)


def test_a_wrong_answer_to_a_task_of_inspect_is_graded_and_no_fault():
    (episode, *_) = played("foreign/Inspect-v0", lambda messages, rng: "black", **WORDS)
    assert (episode.ending, episode.reward, episode.parts["success"]) == (Ending.ANSWERED, 0.0, 0.0)


def test_a_step_is_trained_in_a_task_of_inspect(train_a_step):
    trained(train_a_step("foreign/Inspect-v0", **WORDS))


def test_a_file_of_no_task_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UsageError, match="inspect opens no task"):
        played("foreign/Inspect-v0", task=str(tmp_path / "empty.py"))
