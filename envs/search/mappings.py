"""Mappings for `http`: for each kind of search server, how to ask it and how to read its answers, as plain data.

A user's own mapping is a dict of the same form. In a request, "{query}", "{k}", "{vector}" and "{id}" are replaced by
values, if one of them is a whole text. A path into an answer is names joined by dots; if there are several paths, they
are tried in order. Left out: filters, languages and the like; copy a mapping and add what the server takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from palaestra.errors import UsageError

Path = str | tuple[str, ...]
_PARTS = {"id", "title", "text", "url", "score"}


@dataclass(frozen=True, slots=True)
class Form:
    """A mapping: how to send queries to one kind of server, and how to read its answers."""

    path: str = ""
    """Path after the server's address."""
    method: str = "POST"
    """HTTP method; a GET sends `body` as parameters."""
    body: Any = None
    """Body of a request. If one request holds several queries, "{each}" in it is the list of the filled
    `each` values."""
    each: Any = None
    """Template for one query, if a request holds several: a value, or a list of lines if `body` is None."""
    answers: str = ""
    """Path to the list of answers, one for each query, if a request holds several queries."""
    results: str = ""
    """Path to the list of results, within an answer."""
    hit: Mapping[str, Path] = field(default_factory=dict)
    """Paths to id, title, text, url and score, within a result."""
    get: str = ""
    """Path after the server's address of a document, by its "{id}"; empty if the server returns no documents."""
    got: str = ""
    """Path to the document in that answer; the document has the form of a result."""
    key_header: str = "Authorization"
    """Name of the header that sends the key; Authorization sends it as a Bearer token."""
    max_results: int = 100
    """Maximum number of results that a server returns."""

    @property
    def batch(self) -> int:
        """Return the maximum number of queries in one request."""
        return 1 if self.each is None else 64


MAPPINGS: Mapping[str, Form] = {
    "searxng": Form(
        "/search", "GET", {"q": "{query}", "format": "json"}, results="results",
        hit={"id": "url", "title": "title", "text": "content", "url": "url", "score": "score"},
    ),
    "serper": Form(
        "/search", body={"q": "{query}", "num": "{k}"}, results="organic",
        hit={"id": "link", "title": "title", "text": "snippet", "url": "link"}, key_header="X-API-KEY",
    ),
    "tavily": Form(
        "/search", body={"query": "{query}", "max_results": "{k}"}, results="results",
        hit={"id": "url", "title": "title", "text": "content", "url": "url", "score": "score"}, max_results=20,
    ),
    "brave": Form(
        "/res/v1/web/search", "GET", {"q": "{query}", "count": "{k}"}, results="web.results",
        hit={"id": "url", "title": "title", "text": "description", "url": "url"}, key_header="X-Subscription-Token",
        max_results=20,
    ),
    "elasticsearch": Form(
        "/_msearch",
        each=[{}, {"size": "{k}", "query": {"multi_match": {"query": "{query}", "fields": ["title^2", "text"]}}}],
        answers="responses", results="hits.hits",
        hit={"id": "_id", "title": "_source.title", "text": ("_source.text", "_source.contents"), "url": "_source.url",
             "score": "_score"},
        get="/_doc/{id}",
    ),
    "qdrant": Form(
        "/points/query/batch", body={"searches": "{each}"},
        each={"query": "{vector}", "limit": "{k}", "with_payload": True},
        answers="result", results="points",
        hit={"id": "id", "title": "payload.title", "text": ("payload.text", "payload.contents"), "url": "payload.url",
             "score": "score"},
        get="/points/{id}", got="result", key_header="api-key",
    ),
}  # fmt: skip
"""Mappings by name. The address of Elasticsearch (or OpenSearch) must include the index, that of Qdrant the
collection."""


def form_of(mapping: "str | Form | Mapping[str, Any]") -> Form:
    """Return the mapping of this name, or a user's own mapping as a checked `Form`."""
    if isinstance(mapping, Form):
        return mapping
    if isinstance(mapping, str):
        if mapping in MAPPINGS:
            return MAPPINGS[mapping]
        raise UsageError(f"no mapping is named {mapping!r}; expected {', '.join(MAPPINGS)}, or a dict of your own")
    names = sorted(each_field.name for each_field in fields(Form))
    if unknown := [str(name) for name in mapping if name not in names]:
        close = get_close_matches(unknown[0], names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"a mapping has no {unknown[0]!r}; {hint}known: {', '.join(names)}")
    form = Form(**mapping)
    if not isinstance(form.hit, Mapping) or not form.hit.get("text") or set(form.hit) - _PARTS:
        raise UsageError(
            f"hit of a mapping is {form.hit!r}; expected paths to text, and to any of id, title, url, score"
        )
    if form.method not in ("GET", "POST") or (form.body is None and form.each is None):
        raise UsageError("a mapping needs the method GET or POST, and a body (or each) that holds '{query}'")
    if (form.each is None) != (not form.answers):
        raise UsageError("a mapping for several queries in one trip has both each and answers, another one neither")
    return form


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return the template with the values in place of their names."""
    if isinstance(template, str):
        return values.get(template, template)
    if isinstance(template, Mapping):
        return {name: fill(item, values) for name, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, values) for item in template]
    return template


def names_in(template: Any) -> set[str]:
    """Return all texts in a template; some of them are names that `fill` replaces by values."""
    if isinstance(template, str):
        return {template}
    if isinstance(template, Mapping):
        return set().union(*map(names_in, template.values()))
    return set().union(*map(names_in, template)) if isinstance(template, list | tuple) else set()


def at(value: Any, path: Path) -> Any:
    """Return the value at the first path that has one, or None."""
    for dotted in (path,) if isinstance(path, str) else path:
        result = value
        for name in dotted.split(".") if dotted else ():
            result = result.get(name) if isinstance(result, Mapping) else None
        if result is not None:
            return result
    return None
