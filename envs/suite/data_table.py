r"""Questions about a shop's files, a CSV and a SQLite database in the folder where the agent's Python runs.

A task:      Files of the shop Amber Gate: ... How many units of rake were ordered in March?
An episode:  <tool_call>{"name": "python", "arguments": {"code": "import csv, ...\norders = list(...)"}}
             {'number': '1000', 'day': '2025-02-07', 'customer': '113', 'product': 'rake', 'quantity': '8'} ...
             <tool_call>{"name": "python", "arguments": {"code": "sum(int(row['quantity'] or 0) for ..."}}
             41
             Answer: 41

Variables stay from call to call, so an agent reads the files only once. The answers are computed from the rows of which
the files are made (`data_table_world`), outside the sandbox, so an agent's program cannot find them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from palaestra.envs import Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.rewards.answer import MARK, final_answer, reading
from palaestra.envs.rewards.mathematics import settled
from palaestra.envs.rewards.quotation import exact_match
from palaestra.envs.rewards.structure import holds_mathematics
from palaestra.envs.suite.data_table_world import CATEGORIES, CITIES, MONTHS, PRODUCTS, OrderTables, draw_world
from palaestra.envs.suite.demonstrations import call, question_of, replies_of, solution_of
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt, Message

_FIRST = (
    "Amber", "Blue", "Clay", "Dusk", "Elm", "Fern", "Gold", "Iron", "Jade", "Lime", "Moss", "North", "Old", "Pine",
)  # fmt: skip
_LAST = ("Arch", "Bridge", "Corner", "Ferry", "Gate", "Harbour", "Lantern", "Mill", "Orchard", "Pier", "Quarry", "Well")
SHOPS = [f"{first} {last}" for first in _FIRST for last in _LAST]
_INTRODUCTION = (
    "Files of the shop {shop}: orders.csv lists orders (without a quantity where one was cancelled), "
    "shop.db (SQLite) has the tables products and customers. "
)
_PARAMETERS: Mapping[str, Sequence[str]] = {
    "product": PRODUCTS, "month": MONTHS, "city": CITIES, "category": CATEGORIES,
}  # fmt: skip


@dataclass(frozen=True)
class TableQuestionTemplate:
    """A question template with its answer from the world's rows, and a program that finds the answer in the files."""

    question: str
    answer: Callable[[OrderTables, Mapping[str, str]], object]
    """Function of the world and the values of the question. It returns None if two answers are right."""
    program: str


def _largest(amounts: Iterable[tuple[str, int]]) -> str | None:
    """Return the name with the largest sum of amounts; None if there is none or two names share the largest."""
    sums: Counter[str] = Counter()
    for name, amount in amounts:
        sums[name] += amount
    best = sums.most_common(2)
    return best[0][0] if best and (len(best) == 1 or best[0][1] > best[1][1]) else None


def _median(world: OrderTables, product: str) -> float | None:
    quantities = [quantity for order, quantity, _ in world.paid() if order.product == product]
    return median(quantities) if quantities else None


_PRICES = "price = dict(shop.execute('select name, price from products where category = ?', ('{category}',)))\n"
_PEOPLE = "people = dict(shop.execute('select id, name from customers where city = ?', ('{city}',)))\n"
_MINE = "mine = [row for row in orders if int(row['customer']) in people]\n"
_AMOUNT = "int(row['quantity']) * price[row['product']]"
FAMILIES = (
    TableQuestionTemplate(
        "How many units of {product} were ordered in {month}?",
        lambda world, values: sum(
            units for order, units, _ in world.paid()
            if (order.product, order.month) == (values["product"], values["month"])
        ),
        "sum(int(row['quantity'] or 0) for row in orders\n"
        "    if row['product'] == '{product}' and months[int(row['day'][5:7]) - 1] == '{month}')",
    ),
    TableQuestionTemplate(
        "What did the orders of {category} products come to in {month}?",
        lambda world, values: sum(
            price for order, _, price in world.paid()
            if (world.categories[order.product], order.month) == (values["category"], values["month"])
        ),
        _PRICES + f"sum({_AMOUNT} for row in orders if row['quantity'] and row['product'] in price\n"
        "    and months[int(row['day'][5:7]) - 1] == '{month}')",
    ),
    TableQuestionTemplate(
        "Which customer from {city} spent the most?",
        lambda world, values: _largest(
            (world.customers[order.customer][0], price) for order, _, price in world.paid()
            if world.city(order) == values["city"]
        ),
        _PEOPLE + _MINE + "price = dict(shop.execute('select name, price from products'))\nspent = Counter()\n"
        f"for row in mine:\n    if row['quantity']: spent[people[int(row['customer'])]] += {_AMOUNT}\n"
        "print(max(spent, key=spent.get))",
    ),
    TableQuestionTemplate(
        "In which month did {category} products earn the most?",
        lambda world, values: _largest(
            (order.month, price) for order, _, price in world.paid()
            if world.categories[order.product] == values["category"]
        ),
        _PRICES + "earned = Counter()\nfor row in orders:\n    if row['quantity'] and row['product'] in price:\n"
        f"        earned[months[int(row['day'][5:7]) - 1]] += {_AMOUNT}\nprint(max(earned, key=earned.get))",
    ),
    TableQuestionTemplate(
        "On how many different days were there orders, cancelled ones too, from customers in {city}?",
        lambda world, values: len({order.day for order in world.orders if world.city(order) == values["city"]}),
        _PEOPLE + _MINE + "len(set(row['day'] for row in mine))",
    ),
    TableQuestionTemplate(
        "How many orders of customers in {city} were cancelled?",
        lambda world, values: sum(
            order.quantity is None for order in world.orders if world.city(order) == values["city"]
        ),
        _PEOPLE + _MINE + "sum(not row['quantity'] for row in mine)",
    ),
    TableQuestionTemplate(
        "What is the median quantity of {product} in an order?",
        lambda world, values: _median(world, values["product"]),
        "median(int(row['quantity']) for row in orders if row['quantity'] and row['product'] == '{product}')",
    ),
    TableQuestionTemplate(
        "What do {category} products cost on average, to two decimals?",
        lambda world, values: f"{mean(world.prices_in(values['category'])):.2f}",
        _PRICES + "round(mean(price.values()), 2)",
    ),
)  # fmt: skip


class TableFiles(Python):
    """Python in the folder with the shop's files."""

    def files(self, task: Task) -> Mapping[str, bytes]:
        """Return the files of the task's world; no files if the task comes from a user's file and has no world."""
        return draw_world(int(task.data["world"])).files() if "world" in task.data else {}


class DataTable(ToolEnv):
    """Answer a question about data files."""

    system = (
        "The files lie in the folder where your Python code runs. "
        "End with Answer: VALUE, a number without its unit, or a customer's or a month's name, without other words."
    )
    max_turns = 10
    chance = 0.08  # Months, and small counts: guessing what is most common.

    def __init__(self, split: str = "train", tasks: str | None = None, sandbox: Where = "local") -> None:
        """`sandbox` is where programs run."""
        super().__init__(split, tasks)
        self.toolkits = in_sandbox(sandbox, TableFiles)

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a world, and a question with exactly one answer in it."""
        answer = None
        while answer is None:
            number = int(rng.integers(2**31))
            family = FAMILIES[rng.integers(len(FAMILIES))]
            parameters = {name: values[int(rng.integers(len(values)))] for name, values in _PARAMETERS.items()}
            answer = family.answer(draw_world(number), parameters)
        prompt = _INTRODUCTION.format(shop=SHOPS[rng.integers(len(SHOPS))]) + family.question.format(**parameters)
        return Task(prompt=prompt, answer=str(answer), data={"world": number})

    def reward(self, attempt: Attempt) -> float:
        """Compare the value, alone or after "Answer:". The form of numbers and the case of names do not matter."""
        answer, expected = _value(attempt.answer) or "", str(attempt.task.answer)
        if holds_mathematics(expected):
            return float(settled(answer, expected) is True)
        return float(exact_match(answer, expected))

    def explain(self, attempt: Attempt) -> str:
        """Return what was read from the answer, and the rule that compares it."""
        how = "text and as numbers" if holds_mathematics(str(attempt.task.answer)) else "words"
        return reading(_value(attempt.answer), "the last Answer: or else the whole answer", f"compared as {how}")


def _value(text: str | None) -> str | None:
    """Return the final value of an answer without Markdown marks; None if there is none."""
    value = final_answer(text)
    return None if value is None else value.strip(" *`")


_FIRST_PROGRAM = (
    "import csv, sqlite3\nfrom collections import Counter\nfrom statistics import mean, median\n"
    f"months = {MONTHS!r}\norders = list(csv.DictReader(open('orders.csv')))\nshop = sqlite3.connect('shop.db')\n"
    "print(orders[0])\nprint(shop.execute('select sql from sqlite_master').fetchall())"
)


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: read the files, compute, answer. With probability 1 - tool_rate, guess at once."""
    replies = replies_of(messages)
    templates = ((_INTRODUCTION + family.question, family.program) for family in FAMILIES)
    program = solution_of(question_of(messages), templates, r"[\w ]+")
    if not replies and rng.random() >= tool_rate:
        return f"{MARK} {rng.integers(1, 500)}"
    if len(replies) >= 2:
        return f"{MARK} {replies[-1]}"
    return call("python", code=program if replies else _FIRST_PROGRAM)
