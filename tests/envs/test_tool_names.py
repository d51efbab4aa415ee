"""Tools keep apart where two toolkits have one name, and every text that mentions a tool follows its name."""

import pytest

from palaestra.envs import Task, TextEnv, ToolEnv, Toolkit, offer, tool
from palaestra.envs.core.toolkit import tools_of
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.index import Document
from palaestra.envs.tools.browser import WebBrowser, in_browser
from palaestra.envs.tools.search import Search, with_search
from palaestra.errors import EnvironmentDefect, UsageError


class Desk(ToolEnv):
    system = "Use {Search.search}, then {Search.open}; {WebBrowser.open} opens pages. Write {x.y} as it is."

    def __init__(self, *toolkits):
        super().__init__()
        self.toolkits = toolkits

    def task_set(self, split):
        return [Task(prompt="Start with {Search.search}.", answer="yes")]

    def reward(self, attempt):
        return 1.0


def opened(*toolkits):
    env = TextEnv(Desk(*toolkits))
    messages = env.reset(seed=0)[1]["messages"]
    described = {schema["function"]["name"]: schema["function"]["description"] for schema in env.schemas}
    return env, described, messages


INDEX = EmbeddedIndex.of([Document("a", "Oslo", "Oslo lies in Norway.")])


def test_search_and_browser_work_together_as_they_come():
    env, described, messages = opened(*with_search(INDEX, Search), *in_browser("text", WebBrowser))
    assert {"search", "search_open", "browser_open", "search_find", "browser_find", "click"} <= set(described)
    assert "open" not in described
    assert "read one with search_open." in described["search"]
    assert messages[0]["content"].startswith("Use search, then search_open; browser_open opens pages. Write {x.y} as")
    assert messages[1]["content"] == "Start with search."
    assert "read one of the results with search_open first" in env.step(env.call("search_find", pattern="x"))[0]
    env.step(env.call("search", query="Oslo"))
    assert "Norway" in env.step(env.call("search_open", id="1"))[0]
    assert "no page is open" in env.step(env.call("browser_find", text="x"))[0]
    final = env.step("done")[4]["attempt"].final
    assert final == {"search": {"found": ["a"], "opened": ["a"]}, "browser": {"visited": []}}
    env.close()


def test_a_prefix_or_a_rename_in_one_argument_tells_them_apart_too():
    _, described, messages = opened(
        *with_search(INDEX, offer(Search, rename={"open": "read"})),
        *in_browser("text", offer(WebBrowser, prefix="page_")),
    )
    assert {"search", "read", "find", "page_open", "page_find", "page_click"} <= set(described)
    assert "read one with read." in described["search"]
    assert "Use search, then read; page_open opens" in messages[0]["content"]


def test_a_clause_about_a_tool_that_is_not_offered_is_left_out_and_a_text_of_the_author_is_refused():
    tools = tools_of(offer(Search, allow=["search"]))
    assert list(tools) == ["search"]
    searching = type("Searching", (Desk,), {"system": ""})
    env = TextEnv(searching(*with_search(INDEX, offer(Search, hide=["open", "find"]))))
    env.reset(seed=0)
    assert env.schemas[0]["function"]["description"] == "Search for documents. Results are numbered."
    with pytest.raises(EnvironmentDefect, match=r"mentions \{Search.open\}, a tool that is not offered"):
        opened(*with_search(INDEX, offer(Search, hide=["open"])))


class Counter(Toolkit):
    @tool
    def count(self) -> int:
        """Count."""
        return 1


@pytest.mark.parametrize(
    ("options", "says"),
    [({"hide": ["cuont"]}, "is 'count' meant"), ({"rename": {"count": "a b"}}, "it is no name of a tool")],
)
def test_names_that_cannot_be_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        tools_of(offer(Counter, **options))


def test_tools_of_one_name_without_a_namespace_are_an_error_that_names_the_way_out():
    with pytest.raises(EnvironmentDefect, match=r"offer\(Counter, rename="):
        type("Twice", (Desk,), {"toolkits": (Counter, Counter)})
