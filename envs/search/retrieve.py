"""The client of servers in the style of Search-R1: POST /retrieve, several queries in one request.

`palaestra serve search` is such a server. If a server refuses `queries`, it is asked with a single `query` in each
request. Left out: bodies other than JSON.
"""

import os
from dataclasses import replace
from typing import Any

from palaestra.envs.search.corpus import split_title
from palaestra.envs.search.http import HttpSearch
from palaestra.envs.search.index import Hit
from palaestra.envs.search.mappings import Form
from palaestra.errors import ToolError

TOKEN_ENV = "PALAESTRA_SEARCH_TOKEN"
"""Environment variable that holds the token of `palaestra serve search`, on both ends."""
_MANY = Form(
    "/retrieve",
    body={"queries": "{each}", "topk": "{k}", "return_scores": True},
    each="{query}",
    answers="result",
    hit={
        "id": ("document.id", "id", "document._id"),
        "title": ("document.title", "title"),
        "text": ("document.contents", "contents", "document.text", "text"),
        "url": ("document.url", "url"),
        "score": "score",
    },
    get="/document?id={id}",
)
_ONE = replace(
    _MANY, body={"query": "{query}", "topk": "{k}", "return_scores": True}, each=None, answers="", results="result"
)


class RetrieveClient(HttpSearch):
    """A client of a server with `/retrieve`."""

    def __init__(self, url: str, *, key_env: str = "", **options: Any) -> None:
        key_env = key_env or (TOKEN_ENV if os.environ.get(TOKEN_ENV) else "")
        super().__init__(url.rstrip("/").removesuffix("/retrieve"), _MANY, key_env=key_env, **options)
        self._settled = False

    async def _search(self, queries: list[str], k: int, patience: float) -> list[list[Hit]]:
        if not self._settled:
            try:
                hits = await super()._search(queries, k, patience)
                self._settled = True
                return hits
            except ToolError:
                self.form, self._settled = _ONE, True
        if self.form is _MANY:
            return await super()._search(queries, k, patience)
        hits = []
        for query in queries:
            hits += await super()._search([query], k, patience)
        return hits

    def _hits_of(self, results: list[Any], query: str) -> list[Hit]:
        """Return the hits. Some servers put the results into another list, and the title into the text's first line."""
        if len(results) == 1 and isinstance(results[0], list):
            results = results[0]
        hits = super()._hits_of(results, query)
        return [_with_title(hit) if hit.text.startswith('"') else hit for hit in hits]


def _with_title(hit: Hit) -> Hit:
    title, text = split_title(hit.text)
    return replace(hit, title=title, text=text)
