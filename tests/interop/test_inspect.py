"""inspect evaluates an environment of palaestra: its tools are called, its reward is the score, BROKEN is an error."""

import json

import lookup_world
import pytest


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
