"""Questions about a web site that the agent visits with a browser; the answer is `depth` clicks from the home page.

A task:      What is the head of the department Kemu?
An episode:  <tool_call>{"name": "find", "arguments": {"text": "Kemu"}}</tool_call>
             3: - [6:link Kemu]
             <tool_call>{"name": "click", "arguments": {"number": 6}}</tool_call>
             [1:link Home] ... # Kemu / head | Momu / building | Goka ...
             <tool_call>{"name": "find", "arguments": {"text": "head"}}</tool_call>
             3: head | Momu
             Answer: Momu

The site is drawn from the task (`web_nav_world`) and served in this process. Files with WebWalkerQA's columns
(question, answer, root_url, info) are played on the network, if the browser's options allow it. The answers in these
files are sentences, so their `success` is the token F1. For a generated question it is 1 for an exact match, else 0.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv
from palaestra.envs.browser.site import Site
from palaestra.envs.core.backends import Where
from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import published
from palaestra.envs.data.rows import Row, list_names, read_rows
from palaestra.envs.rewards.answer import MARK, final_answer, reading
from palaestra.envs.rewards.quotation import exact_match, token_f1
from palaestra.envs.suite.demonstrations import Plan, call, follow, next_turn, number_of, question_of, replies_of
from palaestra.envs.suite.two_hop import NAMES
from palaestra.envs.suite.web_nav_world import AMOUNTS, DEPARTMENT, LISTED, LISTS, Institute
from palaestra.envs.tools.browser import WebBrowser, in_browser
from palaestra.episode import Attempt, Message
from palaestra.errors import UnknownTask, UsageError

HOST = "institute.test"
DEEPEST = 4
"""A department's fact is one click away, what its lists show two, other facts of an entry three, or four where it is on
the second page of its list."""
SIZES = range(2, 31)
WEBWALKER = ("question", "answer", "root_url")
"""Columns of WebWalkerQA, in any case; `info` may hold its hop, difficulty and source pages."""


class FactLocation(NamedTuple):
    """Location of a fact: the links that lead to it, and its relation."""

    relation: str
    department: str
    kind: str = ""
    entry: str = ""

    def __str__(self) -> str:
        inside = f"{self.entry} ({self.kind} of the department {self.department})"
        return f"the {self.relation} of {inside if self.kind else f'the department {self.department}'}"


QUESTIONS = ("What is {}?", "Find {}.")
SUMS = ("What do {} and {} add up to?", "Add up {} and {}.")
_PLACE = r"the (\w+) of (?:(\w[\w ]*) \((\w+) of )?the department (\w+)\)?"
_ASKED = [re.compile(re.escape(one).replace(r"\{\}", _PLACE)) for one in (*QUESTIONS, *SUMS)]


class SiteBrowser(WebBrowser):
    """Browser that shows the site of the task."""

    def sites(self, task: Task) -> Mapping[str, Site]:
        """Return the generated site, or no site for a question of WebWalkerQA, whose site is on the network."""
        return {HOST: site_of(task)} if "world" in task.data else {}

    def home(self, task: Task) -> str:
        """Return the address of the home page."""
        return str(task.data.get("root_url", f"http://{HOST}/"))


class WebNav(ToolEnv):
    """Answer a question about a web site."""

    system = (
        "The browser stands on the site's home page. "
        "End with Answer: VALUE, written as on the site, without other words."
    )
    max_turns = 32
    chance = 0.03
    """Success rate of guessing: a name is one of 64."""
    parts = {"success": RewardPart(), "f1": RewardPart(weight=0.0)}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        depth: int | str = "1-3",
        size: int = 8,
        sources: int = 1,
        browser: Where = "text",
    ) -> None:
        """`depth` is how many clicks away answers stand, 1 to 4, or a range such as "2-4". `size` is how many
        departments there are, and entries on a page of a list; `sources` how many pages a question is about, 1 or 2:
        the facts of two are added up. `browser` is "text" or "chromium". `tasks` takes WebWalkerQA too.
        """
        super().__init__(split, tasks)
        self.depths, self.size, self.sources = _range(depth), size, sources
        if size not in SIZES:
            raise UsageError(f"size is {size!r}; expected {SIZES[0]} to {SIZES[-1]}")
        if sources not in (1, 2):
            raise UsageError(f"sources is {sources!r}; expected 1 or 2")
        self.toolkits = in_browser(browser, SiteBrowser)

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a site, and one or two facts in it."""
        data = {"world": int(rng.integers(2**31)), "size": self.size}
        site, facts = Institute(data["world"], self.size), list[tuple[FactLocation, str]]()
        depth = int(rng.integers(self.depths[0], self.depths[1] + 1))
        while len(facts) < self.sources:
            fact = _draw(site, depth, rng, adds=self.sources > 1)
            if fact not in facts:
                facts.append(fact)
        templates = QUESTIONS if self.sources == 1 else SUMS
        prompt = templates[rng.integers(len(templates))].format(*(place for place, _ in facts))
        values = [value for _, value in facts]
        answer = values[0] if self.sources == 1 else str(sum(map(int, values)))
        return Task(prompt=prompt, answer=answer, data={**data, "depth": depth})

    def read_tasks(self, path: str, split: str) -> Sequence[Task] | None:
        """Read a file with WebWalkerQA's columns; return None for any other file."""
        first = next(read_rows(path)[1], None)
        if first is None or "root_url" not in map(str.lower, first.columns):
            return None
        return published(path, split, _walked, lambda task: task)

    def reward(self, attempt: Attempt) -> Mapping[str, float]:
        """Score the value, alone or after "Answer:"."""
        answer, expected = final_answer(attempt.answer), str(attempt.task.answer)
        f1 = token_f1(answer, expected)
        return {"success": f1 if "root_url" in attempt.task.data else float(exact_match(answer, expected)), "f1": f1}

    def explain(self, attempt: Attempt) -> str:
        """Return what was read from the answer, and the rule that compares it."""
        how = "token F1" if "root_url" in attempt.task.data else "compared as words"
        return reading(final_answer(attempt.answer), "the last Answer: or else the whole answer", how)


def site_of(task: Task) -> Institute:
    """Return the site of a generated task."""
    return Institute(int(task.data["world"]), int(task.data["size"]))


def _range(depth: int | str) -> tuple[int, int]:
    low, _, high = str(depth).partition("-")
    if low.isdecimal() and (high or low).isdecimal() and 1 <= int(low) <= int(high or low) <= DEEPEST:
        return int(low), int(high or low)
    raise UsageError(f'depth is {depth!r}; expected 1 to {DEEPEST}, or a range such as "2-{DEEPEST}"')


def _draw(site: Institute, depth: int, rng: np.random.Generator, adds: bool) -> tuple[FactLocation, str]:
    """Draw a fact that is `depth` clicks away, and its location. With `adds`, the fact is a number to add up."""
    at = int(rng.integers(site.size))
    kind = "" if depth == 1 else list(LISTS)[rng.integers(len(LISTS))]
    relations = list(LISTS[kind] if kind else DEPARTMENT)
    if kind:
        relations = relations[:1] if depth == 2 else relations[1:]
    if adds:
        relations = [relation for relation in relations if relation in AMOUNTS]
    relation = relations[rng.integers(len(relations))]
    entry = int(rng.integers(site.size)) + (site.size if depth == DEEPEST else 0) if kind else 0
    name = site.entries(at, kind)[entry] if kind else ""
    return FactLocation(relation, site.department(at), kind, name), site.fact(relation, at, kind, entry)


def _walked(row: Row) -> tuple[str, Task]:
    """Return the default split and the task of a row of WebWalkerQA. Raise `ValueError` if the row is not valid."""
    cells = {name.lower(): value for name, value in row.columns.items()}
    texts = [cells.get(name) for name in WEBWALKER]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"has the columns {list_names(row.columns)}; expected texts in {list_names(WEBWALKER)}")
    question, answer, root = (str(text).strip() for text in texts)
    if not root.startswith(("http://", "https://")):
        raise ValueError(f"has the root_url {root[:80]!r}; expected an address that begins with http:// or https://")
    prompt = f"{question}\nThe answer stands on pages that can be reached from {root}"
    task_id = str(cells.get("id") or f"{row.number}")
    return split_of(question), Task(prompt, answer, task_id, {"root_url": root, "info": cells.get("info")})


def _walk(places: Sequence[FactLocation]) -> Plan:
    """Follow the links that the question names, and "Next page" if an entry is not on the first. Return the answer."""
    values = []
    for at, place in enumerate(places):
        for label in ("Home" if at else "", place.department, place.kind.capitalize()):
            if label:
                yield from follow(label)
        row = ""
        if place.entry:
            while f":link {place.entry}]" not in (row := (yield call("find", text=place.entry))):
                yield from follow("Next page")
        if place.relation not in LISTED:
            if row:
                yield call("click", number=number_of(row, "link", place.entry))
            row = yield call("find", text=place.relation)
        values.append(row.rpartition(" | ")[2].strip())
    return f"{MARK} {values[0] if len(values) == 1 else sum(map(int, values))}"


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: find the links that the question names, then the fact. With probability 1 - tool_rate, guess."""
    question = question_of(messages)
    match = next((match for pattern in _ASKED if (match := pattern.fullmatch(question))), None)
    if match is None:
        raise UnknownTask(question)
    turn = None
    if messages[-1]["role"] == "tool" or rng.random() < tool_rate:
        cells = [cell or "" for cell in match.groups()]
        places = [
            FactLocation(cells[at], cells[at + 3], cells[at + 2], cells[at + 1]) for at in range(0, len(cells), 4)
        ]
        turn = next_turn(_walk(places), replies_of(messages))
    return turn or f"{MARK} {NAMES[rng.integers(len(NAMES))]}"
