"""The tools `search`, `open` and `find` on an index: find documents, read one through a window, look for words in it.

Results are short and numbered: "[3] Title", then the part that fits the query. A document keeps its number for the
whole episode; `open` takes this number, or the document's id. Left out: the engines (`envs.search`), and web pages
(`browser`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from palaestra.envs.core.backends import Where
from palaestra.envs.core.tool import tool
from palaestra.envs.core.toolkit import Toolkit
from palaestra.envs.core.window import find, view, wrapped
from palaestra.envs.search.index import Document, Hit, Index
from palaestra.envs.search.opening import INDEXES
from palaestra.envs.search.remembered import Remembered
from palaestra.envs.search.words import content_words, passage
from palaestra.envs.tools.budgets import BudgetedToolkit, BudgetUsage
from palaestra.episode import Task
from palaestra.errors import Broken, ToolError, UsageError

T = TypeVar("T")
_LATER_SECONDS = 60.0
"""Outer timeout of a call in seconds, longer than any inner one."""
_TITLE_CHARS = 120


def with_search(search: Where | Index, *toolkits: Callable[..., Toolkit]) -> tuple[Callable[[], Toolkit], ...]:
    """Return factories of these toolkits with this index, for an environment's `self.toolkits`. They share a cache."""
    if isinstance(search, str | Mapping):
        INDEXES.read(search)
    elif not isinstance(search, Remembered):
        search = Remembered(search)
    return tuple(partial(kit, search) for kit in toolkits)


@dataclass(frozen=True, slots=True)
class _Page:
    """The document that is open."""

    id: str
    heading: str
    lines: tuple[str, ...]

    def __deepcopy__(self, memo: object) -> "_Page":
        return self


class Search(BudgetedToolkit):
    """Searches an index. A subclass changes settings: `class Mine(Search): max_calls = 4`."""

    namespace = "search"
    most_results: int = 10
    """Maximum number of results of one search, whatever number the agent requests."""
    snippet_chars: int = 400
    """Maximum characters of each result that are shown."""
    window_tokens: int = 1024
    """Tokens of an open document that are shown at once."""
    query_chars: int = 2000
    """Maximum characters of a query."""
    document_chars: int = 400_000
    """Maximum characters of a document that can be read."""

    _hits: dict[str, Hit]
    """Documents in the results of the episode, by id, in the order of their numbers."""
    _numbers: dict[str, int]
    _opened: list[str]
    _page: _Page | None

    def __init__(self, search: Where | Index) -> None:
        """`search` is a backend of `palaestra.envs.search.opening`, or an index of your own."""
        if isinstance(search, str | Mapping):
            search = INDEXES.remembered(search)
        self.index = search if isinstance(search, Remembered) else Remembered(search)
        if not self.index.waits:
            self.never_waits()

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Begin an episode without results. The first episode of the process checks the server."""
        self.index.check()
        self._begin({}, [], None, BudgetUsage())

    def final(self) -> Mapping[str, Any]:
        """Return the ids of the documents that were found, in the order of their numbers, and of those opened."""
        return {"search": {"found": list(self._hits), "opened": list(self._opened)}}

    def snapshot(self) -> Any:
        """Return the results, the opened documents, the open page, and the budgets."""
        return tuple(self._hits.items()), tuple(self._opened), self._page, self.usage

    def restore(self, state: Any) -> None:
        """Continue from a snapshot."""
        hits, opened, page, usage = state
        self._begin(dict(hits), list(opened), page, usage)

    @tool(timeout=_LATER_SECONDS)
    async def search(self, query: str, topn: int = 5) -> str:
        """Search for documents. Results are numbered; read one with {Search.open}.

        Args:
            query: the words to search for.
            topn: how many results.
        """
        return await self.run_search(query, topn)

    @tool(timeout=_LATER_SECONDS)
    async def open(self, id: str, line: int = 1, lines: int | None = None) -> str:
        """Read a document that search has found.

        Args:
            id: its number in the results, or its id.
            line: the line to begin at.
            lines: how many lines; as many as fit if not given.
        """
        return await self.run_open(id, line, lines)

    @tool(timeout=_LATER_SECONDS)
    async def find(self, pattern: str) -> str:
        """Find the lines of the open document that hold some words.

        Args:
            pattern: the words, as they stand there; in any case.
        """
        return await self.run_find(pattern)

    # The work of the tools, for a subclass whose tools have other names or descriptions.

    async def run_search(self, query: str, topn: int = 5) -> str:
        """Search, and return the results as text."""
        clean_query = " ".join(query.split())
        if not clean_query:
            raise ToolError("the query is empty; expected some words")
        if len(clean_query) > self.query_chars:
            raise ToolError(f"the query has {len(clean_query)} characters; at most {self.query_chars} are searched for")
        number = max(1, min(topn, self.most_results))
        hits = (await self._within(lambda: self.index.search_many([clean_query], number)))[0]
        if not hits:
            return f"nothing was found for {clean_query[:80]!r}; try other words"
        words = content_words(clean_query)
        return "\n\n".join(self._result(hit, words) for hit in hits)

    async def run_open(self, id: str, line: int = 1, lines: int | None = None) -> str:
        """Open a document, and return a window of it."""
        id = self._id(id)
        page = self._page
        if page is None or page.id != id:
            page = await self._within(lambda: self._read(id))
        else:
            self.admit()
        window_text = view(page.lines, line, self.window_tokens, None if lines is None else line + lines - 1)
        self._page = page
        if id not in self._opened:
            self._opened.append(id)
        return f"{page.heading}\n{window_text}"

    async def run_find(self, pattern: str) -> str:
        """Return the numbered lines of the open document that contain a text."""
        if self._page is None:
            raise ToolError(f"no document is open; read one of the results with {self.name_of('open')} first")
        self.admit()
        return f"{self._page.heading}\n{find(self._page.lines, pattern)}"

    # Private methods.

    def _begin(self, hits: dict[str, Hit], opened: list[str], page: _Page | None, usage: BudgetUsage) -> None:
        self._hits, self._opened, self._page, self.usage = hits, opened, page, usage
        self._numbers = {id: number for number, id in enumerate(hits, 1)}

    async def _within(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a request to the index within the budgets."""

        async def ask(seconds: float) -> T:
            try:
                if not self.index.waits:
                    return await work()
                async with asyncio.timeout(seconds):
                    return await work()
            except UsageError as error:  # It is about settings, which no agent can choose.
                raise Broken(f"the search of {type(self).__name__} cannot be used: {error}") from error
            except TimeoutError:
                raise self.late(seconds, "the search", self.index.trouble) from None

        return await self.within_budget(ask)

    async def _read(self, id: str) -> _Page:
        """Return a document as lines. If the index cannot return it, use the passage that the search has shown."""
        hit = self._hits.get(id)
        try:
            document: Document | Hit = await self.index.get(id)
        except ToolError:
            if hit is None:
                raise
            document = hit
        number = f"[{self._numbers[id]}] " if hit else ""
        lines = wrapped(document.text[: self.document_chars])
        if len(document.text) > self.document_chars:
            lines.append(f"(the document goes on: {len(document.text)} characters in all)")
        return _Page(id, f"{number}{_heading(document)}", tuple(lines))

    def _id(self, text: str) -> str:
        """Return the id of the document with this result number, or the text itself as an id."""
        number = text.strip().strip("[]#")
        if number.isdecimal() and 0 < int(number[:9]) <= len(self._hits):
            return list(self._hits)[int(number) - 1]
        return text.strip()

    def _result(self, hit: Hit, words: list[str]) -> str:
        """Return the text of a result for the agent. A new document gets the next number."""
        number = self._numbers.get(hit.id)
        if number is None:
            number = self._numbers[hit.id] = len(self._numbers) + 1
            self._hits[hit.id] = hit
        snippet = _line(passage(hit.text, words, self.snippet_chars))
        return f"[{number}] {_heading(hit)}\n{snippet}"


def _heading(document: Document | Hit) -> str:
    return f"{_line(document.title, _TITLE_CHARS)}{f' ({document.url})' if document.url else ''}"


def _line(text: str, chars: int = 10_000) -> str:
    """Return the text on one line, cut to `chars` characters."""
    if "  " in text or not text.isprintable():  # This check takes a tenth of the time of a split.
        text = " ".join(text.split())
    return text if len(text) <= chars else f"{text[: chars - 4]} ..."
