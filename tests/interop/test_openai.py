"""The real `openai` package asks a harness's address, awaited and in threads, over connections that episodes share."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "envs"))
import harness_worlds
from test_harness import BODY, episodes, wait_until


def test_the_openai_client_asks_awaited_in_a_thread_and_in_a_stream():
    import openai

    class Awaits(harness_worlds.Plain):
        async def run(self, task, model):
            client = model.client()
            assert client._client is model.client()._client, "all share one pool"
            answer = await client.responses.create(model="any", input="hello", instructions="Be brief.")
            assert answer.output_text == "yes"
            said = await client.chat.completions.create(model="any", messages=BODY["messages"])
            return said.choices[0].message.content

    class InAThread(harness_worlds.Plain):
        def run(self, task, model):
            with model.client() as client:
                assert [known.id for known in client.models.list()] == ["palaestra"]
                with pytest.raises(openai.BadRequestError) as refused:
                    client.chat.completions.create(model="any", messages=BODY["messages"], logprobs=True)
                assert refused.value.param == "logprobs"
                stream = client.chat.completions.create(model="any", messages=BODY["messages"], stream=True)
                return "".join(part.choices[0].delta.content or "" for part in stream)

    for author in (Awaits(), InAThread()):
        (episode,) = episodes(author)
        assert episode.reward == 1.0, episode.fault


def test_a_stream_of_responses_is_read_by_openai_as_the_whole_response_with_its_calls_and_usage():
    schema = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    kinds, usages = [], []

    class Streams(harness_worlds.Plain):
        async def run(self, task, model):
            client, items = model.client(), [{"role": "user", "content": task.prompt}]
            for _ in range(2):
                async with client.responses.stream(model="any", input=items, tools=[schema]) as stream:
                    kinds.append([event.type.removeprefix("response.") async for event in stream])
                    response = await stream.get_final_response()
                usages.append(response.usage.total_tokens)
                items += [item.to_dict() for item in response.output]
                calls = [item for item in response.output if item.type == "function_call"]
                items += [{"type": "function_call_output", "call_id": c.call_id, "output": "seen"} for c in calls]
            items.append({"role": "user", "content": "sure?"})
            deltas = client.responses.create(model="any", input=items, stream=True)
            said = "".join([event.delta async for event in await deltas if event.type == "response.output_text.delta"])
            return said if said == response.output_text else None

    def say(messages, rng):
        called = any(message["role"] == "tool" for message in messages)
        return "yes" if called else 'I\n<tool_call>{"name": "look", "arguments": {}}</tool_call>'

    (episode,) = episodes(Streams(), said=say)
    assert (episode.reward, episode.attempt.turns) == (1.0, 3), episode.fault
    assert [(call.name, call.text) for call in episode.attempt.calls] == [("look", "seen")]
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    message = ["output_item.added", *text, "output_item.done"]
    call = [f"function_call_arguments.{end}" for end in ("delta", "done")]
    call = ["output_item.added", *call, "output_item.done"]
    assert kinds == [["created", "in_progress", *items, "completed"] for items in ([*message, *call], message)]
    assert min(usages) > 0


REFUSED = {
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"50256": -100},
    "functions": [{"name": "look"}],
    "response_format": {"type": "json_object"},
    "n": 100,
    "max_tokens": 0,
    "temperature": 3,
}
NO_WISH = {"top_p": 1, "tool_choice": "auto", "parallel_tool_calls": True, "seed": None, "presence_penalty": 0}
WISHES = {"top_p": 0.5, "tool_choice": "required", "parallel_tool_calls": False, "seed": 7, "presence_penalty": 1}


def test_each_field_of_the_openai_client_is_followed_or_counted_or_refused_by_name(caplog):
    import openai

    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    met = {}

    class Asks(harness_worlds.Plain):
        max_turns = 100

        def run(self, task, model):
            with model.client() as client:

                def ask(**more):
                    return client.chat.completions.create(model="any", messages=BODY["messages"], tools=tools, **more)

                for name, value in REFUSED.items():
                    with pytest.raises(openai.BadRequestError) as refused:
                        ask(**{name: value})
                    assert refused.value.param == name
                    assert name in refused.value.message
                for name, value in [*NO_WISH.items(), *WISHES.items()]:
                    ask(**{name: value})
                ask(user="me", metadata={"a": "b"}, store=True)
                client.responses.create(model="any", input="hello", top_p=0.5)
                with pytest.raises(openai.BadRequestError):
                    client.responses.create(model="any", input="hello", top_logprobs=2)
                met["stop"] = ask(stop="es").choices[0].message.content
                met["choices"] = len(ask(n=3, max_completion_tokens=5, temperature=0.5).choices)
                return "yes"

    (episode,) = episodes(Asks())
    assert episode.reward == 1.0, episode.fault
    assert met == {"stop": "y", "choices": 3}
    assert episode.attempt.unfollowed == len(WISHES) + 1
    assert all(f"wish {name}, which" in caplog.text for name in WISHES)


@pytest.mark.parametrize("is_async", [True, False])
def test_closed_clients_leave_the_shared_connections_open_and_200_episodes_leave_none_behind(is_async):
    pools = set()

    class Awaits(harness_worlds.Plain):
        async def run(self, task, model):
            async with model.client() as client:
                pools.add(client._client)
                said = await client.chat.completions.create(model="any", messages=BODY["messages"])
            return said.choices[0].message.content

    class InAThread(harness_worlds.Plain):
        def run(self, task, model):
            with model.client() as client:
                pools.add(client._client)
                said = client.chat.completions.create(model="any", messages=BODY["messages"])
            return said.choices[0].message.content

    author = (Awaits if is_async else InAThread)()
    assert {episode.reward for episode in episodes(author, 8)} == {1.0}
    before = len(os.listdir("/proc/self/fd"))
    assert {episode.reward for episode in episodes(author, 200, slots=8)} == {1.0}
    assert len(pools) == (1 if is_async else 2), "one for the harnesses' loop; in threads one for each arena"
    wait_until(lambda: is_async or all(pool.is_closed for pool in pools), "they end with the arena")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 8, "no connection is left")
