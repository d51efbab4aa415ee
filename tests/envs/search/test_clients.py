"""Clients of search servers, on answers as those servers give them; and servers that are dead, slow, or lie."""

import asyncio
import json

import httpx
import pytest

from palaestra.envs import Task
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.http import HttpSearch
from palaestra.envs.search.index import Document
from palaestra.envs.search.opening import INDEXES
from palaestra.envs.search.remembered import Remembered
from palaestra.envs.search.retrieve import RetrieveClient
from palaestra.envs.search.server import application
from palaestra.envs.tools.search import Search
from palaestra.errors import Broken, ToolError, UsageError

KEY = "sk-very-secret-key"
PAGE = {"title": "Cats", "text": "Cats purr.", "url": "http://cats.test/"}


def streamed(answer):
    """A transport of these answers, whose bodies come as those of a network do."""

    async def respond(request):
        given = answer(request)
        given = await given if asyncio.iscoroutine(given) else given
        return httpx.Response(given.status_code, headers=given.headers, stream=httpx.ByteStream(given.content))

    return httpx.MockTransport(respond)


def client(answer, mapping="serper", **options):
    """A client, and the requests that it made; `answer` takes a request."""
    asked = []

    def respond(request):
        asked.append(request)
        return answer(request)

    made = HttpSearch("http://search.test", mapping, transport=streamed(respond), **options)
    return made, asked


def found(index, *queries, k=3):
    return asyncio.run(index.search_many(queries, k))


def sent(request):
    return json.loads(request.content)


LINK = PAGE["url"]
RECORDED = {
    "searxng": {"query": "cats", "results": [{"title": "Cats", "url": LINK, "content": "Cats purr.", "engine": "x"}]},
    "serper": {"organic": [{"title": "Cats", "link": LINK, "snippet": "Cats purr.", "position": 1}], "credits": 1},
    "tavily": {"results": [{"title": "Cats", "url": LINK, "content": "Cats purr.", "score": 0.9}]},
    "brave": {"web": {"results": [{"title": "Cats", "url": LINK, "description": "Cats purr."}]}, "type": "search"},
}


@pytest.mark.parametrize("kind", RECORDED)
def test_web_engines_are_asked_and_understood_as_they_are(kind, monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", KEY)
    index, asked = client(lambda request: httpx.Response(200, json=RECORDED[kind]), kind, key_env="KEY_OF_TEST")
    (hit,) = found(index, "cats & dogs")[0]
    assert (hit.id, hit.title, hit.text, hit.url) == (PAGE["url"], "Cats", "Cats purr.", PAGE["url"])
    request = asked[0]
    assert "cats & dogs" in (
        request.url.params.get("q"),
        request.content and (sent(request).get("q") or sent(request).get("query")),
    )
    headers = {"serper": "x-api-key", "brave": "x-subscription-token"}
    expected = KEY if kind in headers else f"Bearer {KEY}"
    assert request.headers[headers.get(kind, "authorization")] == expected
    assert ("authorization" in request.headers) == (kind not in headers)
    index.close()


def test_elasticsearch_answers_several_queries_in_one_trip_and_gives_documents():
    def answer(request):
        if request.method == "GET":
            assert request.url.raw_path == b"/_doc/a%2F..%2Fb"
            return httpx.Response(200, json={"_id": "a/../b", "found": True, "_source": PAGE})
        assert request.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in request.content.splitlines()]
        wanted = [line["query"]["multi_match"]["query"] for line in lines[1::2]]
        hits = [{"hits": {"hits": [{"_id": f"of {query}", "_score": 2.5, "_source": PAGE}]}} for query in wanted]
        return httpx.Response(200, json={"responses": hits})

    index, asked = client(answer, "elasticsearch")
    assert [[hit.id for hit in hits] for hits in found(index, "one", "two")] == [["of one"], ["of two"]]
    assert len(asked) == 1
    assert asyncio.run(index.get("a/../b")) == Document("a/../b", "Cats", "Cats purr.", PAGE["url"])
    index.close()


def test_qdrant_is_asked_with_vectors(monkeypatch):
    import numpy as np

    monkeypatch.setattr(
        "palaestra.envs.search.http.Embedder.queries", lambda self, texts: np.ones((len(texts), 2), np.float32)
    )

    def answer(request):
        assert sent(request)["searches"][1] == {"query": [1.0, 1.0], "limit": 3, "with_payload": True}
        points = {"points": [{"id": 7, "score": 0.5, "payload": PAGE}]}
        return httpx.Response(200, json={"result": [points, points], "status": "ok"})

    index, _ = client(answer, "qdrant", embedding={"model": "any"})
    assert [hits[0].id for hits in found(index, "one", "two")] == ["7", "7"]
    index.close()
    with pytest.raises(UsageError, match="which model makes them"):
        client(answer, "qdrant")


def test_a_mapping_of_ones_own_is_a_dict_and_a_wrong_one_is_refused():
    own = {"path": "/find", "body": {"ask": {"words": "{query}"}, "n": "{k}"}, "results": "out.docs",
           "hit": {"text": ["body", "abstract"], "title": "head"}}  # fmt: skip
    docs = [{"abstract": "A text.", "head": 12}, {"head": None}, 5, {"body": "B", "head": "b"}]
    index, asked = client(lambda request: httpx.Response(200, json={"out": {"docs": docs}}), own)
    assert [(hit.title, hit.text) for hit in found(index, "x", k=9)[0]] == [("12", "A text."), ("b", "B")]
    assert sent(asked[0]) == {"ask": {"words": "x"}, "n": 9}
    index.close()
    for wrong, words in (
        (own | {"result": "x"}, "did you mean 'results'"),
        (own | {"hit": {"title": "x"}}, "expected paths to text"),
        ("google", "no mapping is named"),
        (own | {"each": 1}, "both each and answers"),
    ):
        with pytest.raises(UsageError, match=words):
            client(None, wrong)


def test_a_server_that_is_wrong_from_the_beginning_is_a_usage_error_and_its_key_is_not_shown(monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", KEY)

    def refuse(request):
        raise httpx.ConnectError("refused")

    for answer, words in (
        (lambda request: httpx.Response(401, text=f"bad key {KEY}"), "refused the key.*bad key"),
        (lambda request: httpx.Response(302, headers={"location": "/login"}), "is no such search server"),
        (lambda request: httpx.Response(404), "is no such search server"),
        (lambda request: httpx.Response(200, text="<html>turn JSON on"), "which is no JSON"),
        (lambda request: httpx.Response(200, json={"organic": "none"}), "something else than its mapping says"),
        (lambda request: httpx.Response(200, json=[1]), "something else than its mapping says"),
        (lambda request: httpx.Response(200, content=b"[" * 100_000), "which is no JSON"),
        (refuse, "no connection"),
    ):
        index, _ = client(answer, key_env="KEY_OF_TEST", patience=0.05)
        with pytest.raises(UsageError, match=words) as error:
            index.check()
        assert KEY not in str(error.value)
        index.close()
    with pytest.raises(UsageError, match="KEY_MISSING is not set"):
        client(None, key_env="KEY_MISSING")


def test_trouble_that_may_pass_is_waited_for_and_what_stays_is_broken():
    answers = iter(
        [
            httpx.Response(429, headers={"retry-after": "0.05"}),
            httpx.Response(503),
            httpx.Response(200, json={"organic": []}),
        ]
    )
    index, asked = client(lambda request: next(answers))
    assert found(index, "x") == [[]]
    assert len(asked) == 3
    index.close()

    async def slow(request):
        await asyncio.sleep(60)

    for answer, seconds, words in (
        (slow, 0.05, "gave no answer"), (lambda request: httpx.Response(500), 60.0, "answered 500"),
    ):  # fmt: skip
        index = HttpSearch("http://search.test", "serper", seconds=seconds, patience=0.1, transport=streamed(answer))
        with pytest.raises(Broken, match=words):
            found(index, "x")
        index.close()


def test_a_query_that_a_server_refuses_is_told_to_the_agent():
    index, _ = client(lambda request: httpx.Response(422, text="query too long"))
    with pytest.raises(ToolError, match=r"refused the query.*query too long"):
        found(index, "x")
    with pytest.raises(ToolError, match="gives no whole documents"):
        asyncio.run(index.get("x"))
    index.close()


# Search-R1's form, and our server of it.


def test_a_retriever_that_takes_one_query_a_request_is_asked_that_way():
    def answer(request):
        if "queries" in sent(request):
            return httpx.Response(422, json={"detail": "query: field required"})
        contents = f'"{sent(request)["query"]}"\nA passage.'
        return httpx.Response(200, json={"result": [[{"document": {"id": "5", "contents": contents}, "score": 0.5}]]})

    index = RetrieveClient("http://search.test/retrieve", transport=streamed(answer))
    hits = found(index, "one", "two")
    assert [(hit.id, hit.title, hit.text, hit.score) for (hit,) in hits] == [
        ("5", "one", "A passage.", 0.5), ("5", "two", "A passage.", 0.5),
    ]  # fmt: skip
    index.close()


@pytest.fixture(scope="module")
def served():
    return EmbeddedIndex.of([Document(f"d{number}", f"T{number}", f"text of {number}") for number in range(20)])


def test_what_we_serve_our_client_understands(served):
    index = Remembered(RetrieveClient("http://localhost", transport=httpx.ASGITransport(application(served, "t" * 16))))
    with pytest.raises(UsageError, match="wrong token"):
        index.check()
    index = RetrieveClient("http://localhost", transport=httpx.ASGITransport(application(served)))
    index.check()
    assert found(index, "7", "text", "nothing at all") == [served.search("7", 3), served.search("text", 3), []]
    assert index.batch == 64  # It was asked in Search-R1's own form.
    assert asyncio.run(index.get("d7")) == asyncio.run(served.get("d7"))
    with pytest.raises(ToolError, match="there is no document"):
        asyncio.run(index.get("../d7"))
    index.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"queries": ["7"]}', 200), (b'{"query": "7", "topk": 2}', 200), (b'{"queries": []}', 200),
        (b"{", 422), (b"[]", 422),
        (b'{"queries": "7"}', 422), (b'{"queries": [7]}', 422), (b'{"queries": ["7"], "topk": 101}', 422),
        (b'{"queries": ["\\ud800 7"], "topk": null}', 200), (b"[" * 200_000, 422), (b" " * 5_000_000, 413),
    ],
)  # fmt: skip
def test_the_server_answers_whatever_it_is_sent(served, body, status):
    async def ask():
        transport = httpx.ASGITransport(application(served))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            return await asking.post("/retrieve", content=body, headers={"content-type": "application/json"})

    answer = asyncio.run(ask())
    assert answer.status_code == status, answer.text
    assert ("result" in answer.json()) == (status == 200)


def test_strangers_are_not_answered(served):
    async def ask(headers, token=""):
        transport = httpx.ASGITransport(application(served, token))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            return (await asking.post("/retrieve", content=b'{"query": "7"}', headers=headers)).status_code

    kind = {"content-type": "application/json"}
    assert asyncio.run(ask({"content-type": "text/plain"})) == 415
    assert asyncio.run(ask(kind | {"host": "evil.test"})) == 403
    assert asyncio.run(ask(kind, "t" * 16)) == 401
    assert asyncio.run(ask(kind | {"authorization": f"Bearer {'t' * 16}", "host": "a.test"}, "t" * 16)) == 200


def test_backends_are_named_by_addresses_and_folders_too():
    assert INDEXES.read("http://localhost:8000") == ("retrieve", {"url": "http://localhost:8000"})
    assert INDEXES.read("./wiki") == ("embedded", {"path": "./wiki"})
    assert INDEXES.read({"backend": "http", "url": "u"}) == ("http", {"url": "u"})
    with pytest.raises(UsageError, match="did you mean 'hybrid'"):
        INDEXES.read("hybird")


def test_a_server_that_is_gone_is_broken_however_little_time_the_budget_leaves():
    replies = iter([httpx.Response(200, json=RECORDED["serper"])])

    def answer(request):
        if reply := next(replies, None):
            return reply
        raise httpx.ConnectError("refused")

    kit = type("Kit", (Search,), {"max_seconds": 1.0})(client(answer)[0])
    kit.start(Task(""), None)
    with pytest.raises(Broken, match="no connection"):
        asyncio.run(kit.run_search("cats"))
