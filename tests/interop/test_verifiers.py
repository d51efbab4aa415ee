"""verifiers evaluates an environment of palaestra: its tools are called, its reward counts, BROKEN is an InfraError."""

import lookup_world
import pytest
from commands import run
from foreign_harness import played, trained, words_are_found_and_judged

from palaestra.errors import UsageError

WORDS = {"environment": "verifiers_words"}


def client(cut=False):
    """A client of verifiers without a server: it solves what can be solved, or talks until its tokens run out."""
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    class Scripted(Client):
        def setup_client(self, config):
            return None

        async def to_native_tool(self, tool):
            return tool

        async def to_native_prompt(self, messages):
            return messages, {}

        async def raise_from_native_response(self, response):
            pass

        async def close(self):
            pass

        async def get_native_response(self, prompt, model, sampling_args, tools=None, **options):
            assert [tool.name for tool in tools] == ["look_up"]
            text, arguments = lookup_world.turn([str(message.content) for message in prompt])
            calls = None if arguments is None else [ToolCall(id="a", name="look_up", arguments=arguments)]
            return {"content": text, "tool_calls": None if cut else calls}

        async def from_native_response(self, response):
            message = ResponseMessage(**response, finish_reason="stop", is_truncated=cut)
            return Response(id="", created=0, model="", message=message)

    return Scripted(None)


def evaluated(**options):
    from palaestra.interop.verifiers_env import load_environment

    env = load_environment(lookup_world.ENV_ID, tasks=12)
    return env.evaluate_sync(
        client(**options),
        "scripted",
        num_examples=12,
        rollouts_per_example=2,
        save_results=False,
        state_columns=["palaestra_reward", "palaestra_parts"],
    )


def test_an_environment_is_evaluated_and_a_broken_episode_is_an_error_and_no_reward():
    outputs = evaluated()["outputs"]
    assert len(outputs) == 24
    for output in outputs:
        gone = lookup_world.is_gone(lookup_world.number_of(output["prompt"][-1]["content"]))
        if gone:
            assert "InfraError" in str(output["error"])
            assert output["palaestra_reward"] is None
        else:
            assert output["error"] is None
            assert output["reward"] == output["success"] == output["palaestra_reward"] == 1.0
            assert [message["role"] for message in output["completion"]] == ["assistant", "tool", "assistant"]
    assert any(output["error"] for output in outputs)


def test_a_turn_whose_tokens_ran_out_ends_the_episode_without_success():
    outputs = evaluated(cut=True)["outputs"]
    assert {output["reward"] for output in outputs} == {0.0}
    assert {len(output["completion"]) for output in outputs} == {1}


def test_an_environment_of_verifiers_is_played_here_and_its_rubric_is_the_reward(capsys, model):
    words_are_found_and_judged(capsys, model, "foreign/Verifiers-v0", **WORDS)


def test_a_step_is_trained_in_an_environment_of_verifiers(train_a_step):
    trained(train_a_step("foreign/Verifiers-v0", **WORDS))


def test_a_name_of_no_environment_is_refused(capsys):
    with pytest.raises(UsageError, match="opens no environment 'no-such-words'"):
        played("foreign/Verifiers-v0", environment="no-such-words")
    status, out, err = run(capsys, "check", "foreign/Verifiers-v0")
    assert status
    assert "needs the option environment" in out + err
