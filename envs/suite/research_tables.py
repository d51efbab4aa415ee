"""Generated research questions: the agent must search for the name of a city, and a file has a table about cities.

A task needs the search (which city?), the file (its row) and a computation. The table is drawn from a number, so a task
holds that number instead of the file. Left out: the tools, and the reward (`research`).
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from palaestra.envs.suite.demonstrations import filled, pattern_of
from palaestra.envs.suite.search_qa_questions import LookupPlan, chain_for
from palaestra.envs.suite.search_qa_world import WorldName, draw_world
from palaestra.episode import Task

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
THINGS = ("visitors", "barrels", "letters", "passengers", "births", "wagons")
ROWS = 14
LEAST, MOST = 1000, 9999
_PHRASES = (
    ("person", "birthplace"), ("work", "scene"), ("organisation", "seat"), ("event", "place"),
)  # fmt: skip
"""Relations that lead to a city."""


@dataclass(frozen=True, slots=True)
class ComputationTemplate:
    """A question that needs a computation, and its program, in which `row` holds the city's numbers by month."""

    question: str
    answer: Callable[[Sequence[int], Sequence[int]], str]
    """Function of the twelve numbers and the indices of the two months."""
    program: str


FAMILIES = (
    ComputationTemplate("How many {thing} does it give for {place} in the whole year?",
           lambda row, months: str(sum(row)), "sum(row.values())"),
    ComputationTemplate("By how much do its {thing} for {place} differ between {first} and {second}?",
           lambda row, months: str(abs(row[months[0]] - row[months[1]])), "abs(row['{first}'] - row['{second}'])"),
    ComputationTemplate("What is the average of its {thing} for {place} from {first} to {second}, "
           "rounded to one decimal?",
           lambda row, months: f"{sum(row[months[0]:months[1] + 1]) / (months[1] - months[0] + 1):.1f}",
           "'%.1f' % (sum(list(row.values())[months.index('{first}'):months.index('{second}') + 1]) / "
           "(months.index('{second}') - months.index('{first}') + 1))"),
)  # fmt: skip
_OPENING = "The file {file} comes with this question: a row for a city, a column for a month. "
_LOADS = {
    "csv": "import csv\nrows = [dict(one) for one in csv.DictReader(open('{file}'))]",
    "json": "import json\nrows = json.load(open('{file}'))",
}


def draw(world_name: WorldName, rng: np.random.Generator) -> Task:
    """Draw a question that needs several tools."""
    world = draw_world(*world_name)
    kind, relation = _PHRASES[rng.integers(len(_PHRASES))]
    entities, cities = world.entities[kind], world.entities["city"]
    subject = entities[int(rng.integers(len(entities)))]
    city = subject.facts[relation]
    others = [cities[at].name for at in rng.permutation(len(cities))[:ROWS].tolist() if cities[at] is not city]
    names = [city.name, *others[: ROWS - 1]]
    names = [names[at] for at in rng.permutation(len(names)).tolist()]
    number, thing = int(rng.integers(2**31)), THINGS[rng.integers(len(THINGS))]
    family = FAMILIES[rng.integers(len(FAMILIES))]
    months = sorted(rng.choice(12, size=2, replace=False).tolist())
    file = f"{thing}.{('csv', 'json')[rng.integers(2)]}"
    phrase = next(entry.phrase for entry in world.relations(kind) if entry.name == relation).format(s=subject.name)
    words = {"thing": thing, "place": phrase, "first": MONTHS[months[0]], "second": MONTHS[months[1]], "file": file}
    answer = family.answer(table_of(number, names)[city.name], months)
    data = {"file": file, "table": number, "cities": names, "world": list(world_name)}
    return Task((_OPENING + family.question).format(**words), answer, data=data)


def table_of(number: int, cities: Sequence[str]) -> dict[str, list[int]]:
    """Return a table by its number: for each city, the numbers of the twelve months."""
    rng = np.random.default_rng(number)
    return {city: rng.integers(LEAST, MOST + 1, size=len(MONTHS)).tolist() for city in cities}


def file_of(name: str, number: int, cities: Sequence[str]) -> bytes:
    """Return a table as a JSON file if `name` ends with .json, otherwise as a CSV file."""
    rows = [{"city": city, **dict(zip(MONTHS, row, strict=True))} for city, row in table_of(number, cities).items()]
    if name.endswith(".json"):
        return json.dumps(rows, indent=1).encode()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["city", *MONTHS])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def read_question(text: str) -> tuple[LookupPlan, Callable[[str], str]] | None:
    """Return the lookups that lead to the city of a generated question, and a function from the city to the program.

    Return None for any other question.
    """
    for family in FAMILIES:
        if match := pattern_of(_OPENING + family.question, ".+?").fullmatch(text):
            plan = chain_for(match["place"])
            if plan is not None:
                return plan, partial(_program, match["file"], filled(family.program, match.groupdict()))
    return None


def _program(file: str, expression: str, city: str) -> str:
    """Return the program that computes the answer for a city."""
    load = _LOADS[file.rpartition(".")[2]].format(file=file)
    return (
        f"{load}\nmonths = {list(MONTHS)!r}\nrow = next(one for one in rows if one['city'] == {city!r})\n"
        f"row = {{month: int(row[month]) for month in months}}\nprint({expression})"
    )
