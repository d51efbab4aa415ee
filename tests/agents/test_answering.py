"""A model of this process is asked as a served one is, and `palaestra serve rrm` lets others ask it."""

import asyncio
import threading
from contextlib import contextmanager

import families
import httpx
import pytest
import uvicorn

from palaestra.agents import answering as answering_module
from palaestra.agents.answering import Answering
from palaestra.agents.local_model import serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.cli.serve_rrm import application
from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.judge import JudgeClient
from palaestra.envs.sandboxes.remote.server import listen
from palaestra.errors import Broken, UsageError

TOKENIZER = families.TOKENIZERS["tiny"]
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the mayor of the city?"}]


def answering(slots=4):
    model = tiny_model(len(TOKENIZER), seed=7)
    model.generation_config.eos_token_id = list(range(20, 250, 9))
    return Answering(serve(model, TOKENIZER, slots=slots).agent)


@contextmanager
def listening(monkeypatch, served, **options):
    urls, servers, made, ready = [], [], uvicorn.Server, threading.Event()
    monkeypatch.setattr(uvicorn, "Server", lambda config: servers.append(made(config)) or servers[0])
    app = application(served, "rrm", **options)

    def run():
        listen(app, "127.0.0.1", 0, connections=64, ready=lambda url: (urls.append(url), ready.set()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield f"{urls[0]}/v1"
    finally:
        servers[0].should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def test_questions_together_are_answered_as_each_alone_and_none_after_the_end():
    questions = [[{"role": "user", "content": text}] for text in ("question reply", "Answer: Kemu", "word musing")]

    async def ask():
        one = answering()
        alone = [await one.complete(question, max_tokens=12) for question in questions]
        both = await asyncio.gather(*(one.complete(question, max_tokens=12) for question in questions))
        with pytest.raises(UsageError, match="longer than"):
            await one.complete([{"role": "user", "content": "word " * 9_000}], max_tokens=4)
        left = asyncio.ensure_future(one.complete(questions[0], max_tokens=12))
        left.cancel()
        assert (await one.complete(questions[0], max_tokens=12)).content == alone[0].content
        await one.aclose()
        with pytest.raises(Broken, match="has ended"):
            await one.complete(questions[0], max_tokens=12)
        return alone, both

    alone, both = asyncio.run(ask())
    assert [one.content for one in alone] == [one.content for one in both]
    assert all(one.usage.prompt_tokens and one.usage.completion_tokens for one in both)
    assert alone[0].content != alone[1].content


@pytest.mark.parametrize("where", ["submit", "poll", "answer"])
def test_an_engine_that_fails_leaves_no_question_without_an_answer(monkeypatch, where):
    """Also the question that it is given just then, those that wait, and those that come later."""
    one = answering()

    def fail(*_):
        raise RuntimeError("the engine is gone")

    if where == "answer":
        monkeypatch.setattr(answering_module, "_answer", fail)
    else:
        monkeypatch.setattr(one._agent.engine, where, fail)
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    async def ask():
        questions = [one.complete(QUESTION, max_tokens=12) for _ in range(3)]
        return await asyncio.wait_for(asyncio.gather(*questions, return_exceptions=True), 60)

    assert [type(found) for found in asyncio.run(ask())] == [Broken] * 3
    with pytest.raises(Broken, match="ended"):
        asyncio.run(one.complete(QUESTION, max_tokens=12))
    asyncio.run(one.aclose())  # The thread's error is not raised after the test, where pytest would report it.


def test_f29_the_built_in_engine_serves_a_judge_as_any_server_does(monkeypatch):
    served = answering()
    expected = asyncio.run(served.complete(QUESTION, max_tokens=30)).content
    with listening(monkeypatch, served) as url:
        judge = JudgeClient([Endpoint(EndpointConfig(url, "rrm", api_key_env=""))], lambda text: text, max_tokens=30)
        judge.check()

        async def ask():
            return await asyncio.gather(*(judge.ask(QUESTION) for _ in range(9)))

        assert asyncio.run(ask()) == [expected] * 9
        judge.close()
        post = {"messages": QUESTION}
        for body, status in (
            (b"{", 400), (b"[]", 400), ({"messages": []}, 400), ({"messages": [{"role": "tool", "content": ""}]}, 400),
            (post | {"max_tokens": 0}, 400), (post | {"temperature": "x"}, 400), (post | {"stream": True}, 400),
            (post | {"model": "gpt"}, 404), ({"messages": [{"role": "user", "content": "word " * 9_000}]}, 400),
            (b"x" * (9 * 2**20), 413), (post | {"max_tokens": 3}, 200),
        ):  # fmt: skip
            sent = {"content": body} if isinstance(body, bytes) else {"json": body}
            found = httpx.post(f"{url}/chat/completions", timeout=60, trust_env=False, **sent)
            assert found.status_code == status, (str(body)[:80], found.text)
        assert found.json()["choices"][0]["finish_reason"] in ("length", "stop")
        assert httpx.get(f"{url}/models", headers={"Host": "evil.test"}, trust_env=False).status_code == 403


def test_without_the_token_nobody_is_answered():
    async def ask(token):
        served = answering()
        transport = httpx.ASGITransport(application(served, "rrm", "t" * 16))
        async with httpx.AsyncClient(transport=transport, base_url="http://far.test") as client:
            found = await client.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 2},
                                      headers={"Authorization": f"Bearer {token}"})  # fmt: skip
        await served.aclose()
        return found.status_code

    assert [asyncio.run(ask(token)) for token in ("", "t" * 16)] == [401, 200]
