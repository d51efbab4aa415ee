"""The tools `search`, `open` and `find`: what an agent is told, its budgets, branches, and what it may write."""

import asyncio
import pickle

import pytest

from palaestra.envs import Task, TextEnv, ToolEnv
from palaestra.envs.core.tool import tool
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.index import Document
from palaestra.envs.search.remembered import Remembered
from palaestra.envs.tools.search import Search, with_search
from palaestra.errors import Broken, ToolError, UsageError
from palaestra.formats import ParsedCall, hermes

ANIMALS = EmbeddedIndex.of(
    [Document(f"d{number}", f"Animal {number}", f"Animal {number} lives in region {number}.") for number in range(40)]
    + [Document("long", "Whales", "\n".join(f"Fact {number} of whales." for number in range(2000)))]
    + [Document("wide", "Squids", "fact of squids " * 100_000)]
)


class Sparing(Search):
    """Few calls."""

    max_calls = 2


class Hosted(Search):
    """Another name and another length."""

    snippet_chars = 40

    @tool(name="web_search")
    async def search(self, query: str) -> str:
        """Search the web."""
        return await self.run_search(query)


def opened(kit=Search, index=ANIMALS):
    class World(ToolEnv):
        """Find animals."""

        max_turns = 20

        def __init__(self, split="train", tasks=None):
            super().__init__(split, tasks)
            self.toolkits = with_search(index, kit)

        def task(self, rng):
            return Task(f"Find animal {rng.integers(10**6)}.")

        def reward(self, attempt):
            return float(attempt.final["search"]["opened"] == ["d7"])

    env = TextEnv(World())
    env.reset(seed=0)
    return env


def told(env, name, **arguments):
    return env.step(hermes.render([ParsedCall(name, arguments)]))[0]


def test_results_are_numbered_and_a_number_stays_with_its_document():
    env = opened()
    first = told(env, "search", query="animal 7", topn=2)
    assert "[1] Animal 7\nAnimal 7 lives in region 7." in first
    assert "[3]" not in first
    assert "[3] Animal 9" in told(env, "search", query="number 9", topn=1)
    assert "[1] Animal 7" in told(env, "search", query="7", topn=1)
    assert told(env, "open", id=1) == told(env, "open", id="[1]") == told(env, "open", id="d7")
    assert env.step("done")[1] == 1.0


def test_a_long_document_is_read_in_windows_and_searched():
    env = opened()
    told(env, "search", query="whales")
    assert "lines 1-" in told(env, "open", id="1")
    assert told(env, "open", id="1", line=900, lines=2).endswith(
        "lines 900-901 of 2000\nFact 899 of whales.\nFact 900 of whales."
    )
    assert "1235: Fact 1234 of whales." in told(env, "find", pattern="fact  1234")
    told(env, "open", id="wide")
    assert "the document goes on: 1500000 characters in all" in told(env, "find", pattern="goes on")


@pytest.mark.parametrize(
    "query", ["a AND (", "title:", '"foo', "foo^", "-", "\0", "\\", "*", "the of", "\ud800 x", "x " * 900]
)
def test_no_query_is_wrong_syntax(query):
    shown = told(opened(), "search", query=query)
    assert "Error" not in shown or "expected some words" in shown


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("search", {"query": " "}, "the query is empty"),
        ("search", {"query": "x " * 100_000}, "at most 2000 are searched for"),
        ("open", {"id": "9"}, "there is no document '9'"),
        ("open", {"id": "d1", "line": 5}, "the lines are 1 to 1"),
        ("open", {"id": "d1", "line": -(10**30)}, "the lines are 1 to 1"),
        ("find", {"pattern": "x"}, "no document is open"),
    ],
)
def test_the_agents_mistakes_are_told(name, arguments, words):
    assert words in told(opened(), name, **arguments)


def test_budgets_are_kept_and_names_can_be_changed():
    env = opened(Sparing)
    told(env, "search", query="animal")
    told(env, "open", id="d1")
    assert "no call is left: max_calls is 2" in told(env, "search", query="animal")
    assert "[1] Whales\nFact 0 of whales." in told(opened(Hosted), "web_search", query="whales")


class Stuck:
    """A server that never answers."""

    waits, version = True, "1"

    async def search_many(self, queries, k):
        await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"call_seconds": 0.05}, Broken, "gave no answer within 0.05 s"),
        ({"max_seconds": 0.05}, ToolError, "answer now"),
    ],
)
def test_a_server_that_never_answers_breaks_the_episode_unless_the_agents_own_time_is_over(settings, error, words):
    kit = type("Kit", (Search,), settings)(Stuck())
    kit.start(Task(""), None)
    for _ in range(2 if error is ToolError else 1):
        with pytest.raises(error, match=words):
            asyncio.run(kit.run_search("x"))


def test_settings_that_turn_out_wrong_in_a_call_are_not_the_agents_mistake():
    class Wrong(Stuck):
        async def search_many(self, queries, k):
            raise UsageError("the key is wrong")

    kit = Search(Wrong())
    kit.start(Task(""), None)
    with pytest.raises(Broken, match="the key is wrong"):
        asyncio.run(kit.run_search("x"))


def test_an_index_goes_to_another_process():
    copied = pickle.loads(pickle.dumps(Search(Remembered(ANIMALS)).index))
    assert copied.index.search("animal 7", 3) == ANIMALS.search("animal 7", 3)


def test_a_branch_goes_on_where_it_began_and_leaves_the_other_alone():
    env = opened()
    told(env, "search", query="animal 7", topn=1)
    told(env, "open", id="1")
    kept = env.snapshot()
    told(env, "search", query="animal 9", topn=1)
    env.restore(kept)
    assert "1: Animal 7" in told(env, "find", pattern="animal")
    assert "there is no document '2'" in told(env, "open", id="2")
    assert "[2] Animal 8" in told(env, "search", query="animal 8", topn=1)
