"""The site that questions of `web_nav` are about: an institute with departments, their lists, and the entries in them.

    /                           menu, departments
    /d/3                        a department: a table of facts, its four lists
    /d/3/people?page=2          a list in pages: a table with one fact of each entry
    /d/3/people/11              an entry: a table of its facts
    /about, /news, /news/1      pages that no question is about

Every fact and name is a hash of the world's number and its place in the site. So a page is made when it is requested,
and a task holds the number instead of pages. In a list, two neighbouring entries have nearly the same name. Left out:
the questions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from html import escape

import numpy as np

from palaestra.envs.browser.site import SiteRequest, SiteResponse
from palaestra.envs.suite.two_hop import NAMES

LIST_PAGES = 2
"""Number of pages of a list."""
_MONTHS = ("January", "March", "April", "May", "July", "August", "October", "December")
NameDraw = Callable[[int], str]
"""Function that turns a hash into a value."""


def _amount(number: int) -> str:
    return str(number % 970 + 12)


def _name(number: int) -> str:
    return NAMES[number % len(NAMES)]


def _room(number: int) -> str:
    return f"{'ABCDEFGH'[number % 8]}{number // 8 % 890 + 101}"


def _day(number: int) -> str:
    return f"{number % 28 + 1} {_MONTHS[number // 28 % 8]} {number // 224 % 9 + 2021}"


DEPARTMENT: Mapping[str, NameDraw] = {"head": _name, "building": _name, "town": _name, "budget": _amount}
"""Facts of a department, by relation."""
LISTS: Mapping[str, Mapping[str, NameDraw]] = {
    "people": {"grant": _amount, "room": _room, "mentor": _name, "bonus": _amount},
    "events": {"fee": _amount, "day": _day, "host": _name, "attendance": _amount},
    "products": {"price": _amount, "code": _room, "maker": _name, "stock": _amount},
    "documents": {"length": _amount, "shelf": _room, "author": _name, "circulation": _amount},
}
"""Facts of the entries of each list, by relation. The list itself shows the first one."""
LISTED = frozenset(next(iter(facts)) for facts in LISTS.values())
AMOUNTS = frozenset(name for facts in (DEPARTMENT, *LISTS.values()) for name, draw in facts.items() if draw is _amount)
"""Relations whose facts are numbers that can be summed."""


def _hash(*place: object) -> int:
    return int.from_bytes(blake2b("/".join(map(str, place)).encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=4096)
def _names(*place: object) -> Sequence[str]:
    """Return all names, in a random order that this place determines."""
    return [NAMES[at] for at in np.random.default_rng(_hash(*place)).permutation(len(NAMES))]


@dataclass(frozen=True)
class Institute:
    """The generated site, an implementation of `Site`. It has no state, because its number determines all pages."""

    number: int
    size: int
    """Number of departments, and of entries on a page of a list."""

    def __deepcopy__(self, memo: object) -> "Institute":
        return self

    @property
    def name(self) -> str:
        return _names(self.number)[-1]

    def department(self, at: int) -> str:
        return _names(self.number)[at]

    def entries(self, department: int, kind: str) -> list[str]:
        """Return the names of a list's entries. Each shares its first part with a neighbour."""
        firsts, lasts = _names(self.number, department, kind), _names(self.number, department, kind, "last")
        count = self.size * LIST_PAGES
        if kind == "people":
            return [f"{firsts[at // 2]} {lasts[at]}" for at in range(count)]
        numbers = [_hash(self.number, department, kind, at // 2) % 80 + 11 for at in range(count)]
        word = {"events": "talk", "products": "lamp", "documents": "report"}[kind]
        return [f"{firsts[at // 2]} {word} {number + at % 2}" for at, number in enumerate(numbers)]

    def fact(self, relation: str, department: int, kind: str = "", entry: int = 0) -> str:
        """Return a fact of a department, or of an entry of one of its lists."""
        draws = LISTS[kind] if kind else DEPARTMENT
        return draws[relation](_hash(self.number, department, kind, entry, relation))

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return the page of an address."""
        steps = request.path.strip("/").split("/")
        try:
            match steps:
                case [""]:
                    return self._home()
                case ["about"]:
                    return self._page("About", "<p>We moved here some years ago.</p>")
                case ["news"]:
                    return self._page("News", "<ul><li><a href='/news/1'>Archive</a></li></ul>")
                case ["news", "1"]:
                    return self._page("Archive", "<p>The archive is closed.</p>")
                case ["d", at]:
                    return self._department(_within(at, self.size))
                case ["d", at, kind] if kind in LISTS:
                    return self._list(
                        _within(at, self.size), kind, _within(request.query.get("page", "1"), LIST_PAGES + 1)
                    )
                case ["d", at, kind, entry] if kind in LISTS:
                    return self._entry(_within(at, self.size), kind, _within(entry, self.size * LIST_PAGES))
        except ValueError:
            pass
        return SiteResponse("<h1>404 Not Found</h1><p><a href='/'>Home</a></p>", 404)

    def _page(self, title: str, body: str) -> SiteResponse:
        menu = "<nav><a href='/'>Home</a> <a href='/about'>About</a> <a href='/news'>News</a></nav>"
        title = escape(title)
        return SiteResponse(f"<!doctype html><title>{title}</title>{menu}<h1>{title}</h1>{body}")

    def _home(self) -> SiteResponse:
        return self._page(
            f"{self.name} Institute", _links((f"/d/{at}", self.department(at)) for at in range(self.size))
        )

    def _department(self, at: int) -> SiteResponse:
        facts = {relation: self.fact(relation, at) for relation in DEPARTMENT}
        lists = _links((f"/d/{at}/{kind}", kind.capitalize()) for kind in LISTS)
        return self._page(self.department(at), _table(facts) + lists)

    def _list(self, at: int, kind: str, page: int) -> SiteResponse:
        if page < 1:
            raise ValueError("pages are counted from 1")
        first, names = next(iter(LISTS[kind])), self.entries(at, kind)
        rows = [
            f"<tr><td><a href='/d/{at}/{kind}/{entry}'>{names[entry]}</a></td>"
            f"<td>{self.fact(first, at, kind, entry)}</td></tr>"
            for entry in range(self.size * (page - 1), self.size * page)
        ]
        head = f"<tr><th>name</th><th>{first}</th></tr>"
        more = f"<p><a href='/d/{at}/{kind}?page={page + 1}'>Next page</a></p>" if page < LIST_PAGES else ""
        title = f"{kind.capitalize()} of {self.department(at)}"
        return self._page(title, f"<table>{head}{''.join(rows)}</table>{more}")

    def _entry(self, at: int, kind: str, entry: int) -> SiteResponse:
        facts = {relation: self.fact(relation, at, kind, entry) for relation in LISTS[kind]}
        return self._page(self.entries(at, kind)[entry], _table(facts) + _links([(f"/d/{at}", self.department(at))]))


def _within(text: str, end: int) -> int:
    """Return the number in a text. Raise `ValueError` if the text is no number below `end`."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < end):
        raise ValueError(f"there is no {text!r} here")
    return int(text)


def _links(entries: Iterable[tuple[str, str]]) -> str:
    return "<ul>" + "".join(f"<li><a href='{href}'>{escape(text)}</a></li>" for href, text in entries) + "</ul>"


def _table(facts: Mapping[str, str]) -> str:
    return (
        "<table>"
        + "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        + "</table>"
    )
