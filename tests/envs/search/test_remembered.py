"""What is remembered of an index, and how several who ask share one trip."""

import asyncio

import pytest

from palaestra.envs.search.index import Hit
from palaestra.envs.search.remembered import Remembered
from palaestra.errors import Broken


class Server:
    """Answers when told to; counts its trips."""

    waits, version = True, "1"

    def __init__(self, batch=1):
        self.batch, self.trips = batch, []
        self.open = asyncio.Event()
        self.open.set()
        self.fails = False

    async def search_many(self, queries, k):
        self.trips.append((list(queries), k))
        await self.open.wait()
        if self.fails:
            raise Broken("it is gone")
        return [[Hit(query, query, "text", 1.0)] * k for query in queries]


def test_an_answer_is_remembered_by_version_query_and_number():
    async def run():
        server = Server()
        index = Remembered(server)
        for _ in range(3):
            await index.search_many(["a", "b", "a"], 1)
        assert sorted(server.trips) == [(["a"], 1), (["b"], 1)]
        await index.search_many(["a"], 2)
        server.version = "2"
        await index.search_many(["a"], 1)
        assert len(server.trips) == 4
        assert (index.misses, index.hits) == (4, 4)  # Of one question twice in one breath, one counts.

    asyncio.run(run())


def test_what_is_not_wanted_for_longest_goes_first():
    async def run():
        server = Server()
        index = Remembered(server, entries=2)
        for query in "abacab":
            await index.search_many([query], 1)
        assert [queries[0] for queries, _ in server.trips] == ["a", "b", "c", "b"]
        silent = Remembered(server, entries=0)
        await silent.search_many(["z"], 1)
        await silent.search_many(["z"], 1)
        assert [queries[0] for queries, _ in server.trips[4:]] == ["z", "z"]

    asyncio.run(run())


def test_those_who_ask_at_once_share_a_question_and_a_trip():
    async def run():
        alone, together = Server(), Server(batch=3)
        for server in (alone, together):
            index = Remembered(server)
            answers = await asyncio.gather(*(index.search_many([query], 1) for query in "aabbcdd"))
            assert [hits[0][0].id for hits in answers] == list("aabbcdd")
        assert sorted(alone.trips) == [([query], 1) for query in "abcd"]
        assert together.trips == [(["a", "b", "c"], 1), (["d"], 1)]

    asyncio.run(run())


def test_one_who_gives_up_takes_the_answer_from_nobody():
    async def run():
        server = Server()
        server.open.clear()
        index = Remembered(server)
        first, second = (asyncio.ensure_future(index.search_many(["a"], 1)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0)
        server.open.set()
        assert (await second)[0][0].id == "a"
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(server.trips) == 1

    asyncio.run(run())


def test_a_failure_is_told_to_all_who_asked_and_is_not_remembered():
    async def run():
        server = Server()
        server.fails = True
        index = Remembered(server)
        told = await asyncio.gather(*(index.search_many(["a"], 1) for _ in range(2)), return_exceptions=True)
        assert [type(one) for one in told] == [Broken, Broken]
        server.fails = False
        assert (await index.search_many(["a"], 1))[0]

    asyncio.run(run())


def test_several_event_loops_may_ask_one_index():
    index = Remembered(Server())
    for query in "ab":
        index.index.open = asyncio.Event()
        index.index.open.set()
        assert asyncio.run(index.search_many([query], 1))[0][0].id == query
