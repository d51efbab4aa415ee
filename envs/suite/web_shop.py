"""Buy what is asked for in a web shop: search, choose options, fill forms. Only the contents of the orders count.

A task:      Buy a kettle: waterproof, foldable; red, large; for at most $45.00. Take 2. Ship to ...
An episode:  <tool_call>{"name": "type", "arguments": {"number": 3, "text": "kettle waterproof foldable"}}</tool_call>
             ... submit the form, click on a result, choose, add to the cart, check out ...
             Done.

`success` is 1 if exactly the requested thing was ordered, with everything as asked. `match` is WebShop's reward for the
bought product (`web_shop_goods.fit`); it is 0 unless one line with the right quantity was ordered. Its weight is small,
so that a partly right purchase is not worth aiming for. The shop is drawn from the task (`web_shop_site`).
`products=FILE` and `tasks=FILE` use WebShop's own catalogue and goals; these goals have no address and no quantity.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv
from palaestra.envs.browser.site import Site
from palaestra.envs.core.backends import Where
from palaestra.envs.data.rows import require_file
from palaestra.envs.suite.demonstrations import Plan, call, follow, next_turn, number_of, question_of, replies_of
from palaestra.envs.suite.two_hop import NAMES
from palaestra.envs.suite.web_shop_files import holds_goals, read_catalogue, read_goals
from palaestra.envs.suite.web_shop_goods import draw_catalogue, fit, money
from palaestra.envs.suite.web_shop_site import ADDRESS, ShopSite
from palaestra.envs.tools.browser import WebBrowser, in_browser
from palaestra.episode import Attempt, Message
from palaestra.errors import UnknownTask, UsageError

HOST = "shop.test"
PROMPT = (
    "Buy a {kind}: {attributes}; {options}; for at most {most}. Take {quantity}. "
    "Ship to {name}, {street}, {city}."
)  # fmt: skip
_ASKED = re.compile(
    r"Buy an? (?P<kind>[\w ]+): (?P<attributes>[\w, ]+); (?P<options>[\w, ]+); for at most \$(?P<most>[\d.]+)\. "
    r"Take (?P<quantity>\d+)\. Ship to (?P<name>[^,]+), (?P<street>[^,]+), (?P<city>[^,.]+)\."
)


class ShopBrowser(WebBrowser):
    """Browser that shows the shop of the task."""

    def sites(self, task: Task) -> Mapping[str, Site]:
        """Return a new shop for this episode."""
        products = task.data.get("products")
        return {HOST: ShopSite(read_catalogue(products) if products else draw_catalogue(int(task.data["world"])))}

    def home(self, task: Task) -> str:
        """Return the address of the home page, with the search form."""
        return f"http://{HOST}/"

    def final(self) -> Mapping[str, Any]:
        """Return the orders of all customers."""
        shop = self.served[HOST]
        assert isinstance(shop, ShopSite)
        return {"orders": shop.orders}


class WebShop(ToolEnv):
    """Buy a product in a web shop."""

    system = "Use the browser to buy what is asked for, exactly that and nothing else. Then say Done."
    max_turns = 48
    parts = {"success": RewardPart(weight=0.8), "match": RewardPart(weight=0.2)}  # noqa: RUF012
    ceiling = 0.2  # Reward of the right product with a wrong address.

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        products: str | None = None,
        browser: Where = "text",
    ) -> None:
        """`products` is a file with the columns of WebShop's catalogue, and `tasks` one with those of its goals, or of
        tasks. `browser` is "text" or "chromium".
        """
        super().__init__(split, tasks)
        if products is not None and tasks is None:
            raise UsageError("products names a catalogue, and there are no goals for it; expected tasks=FILE, too")
        self.products = None if products is None else require_file(products)
        self.toolkits = in_browser(browser, ShopBrowser)

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a shop, and a goal that one of its products fits."""
        world = int(rng.integers(2**31))
        products = [*draw_catalogue(world).products.values()]
        product = products[rng.integers(len(products))]
        attributes = [product.attributes[at] for at in rng.permutation(len(product.attributes))[:2]]
        options = [values[rng.integers(len(values))] for values in product.options.values()]
        max_price, quantity = -(-product.price // 500) * 500, int(rng.integers(1, 4))
        first, last, street, city = (NAMES[at] for at in rng.integers(len(NAMES), size=4))
        address = dict(zip(ADDRESS, (f"{first} {last}", f"{street} {rng.integers(1, 99)}", city), strict=True))
        prompt = PROMPT.format(
            kind=product.query, attributes=", ".join(attributes), options=", ".join(options), most=money(max_price),
            quantity=quantity, **address,
        )  # fmt: skip
        goal = {
            "title": product.query, "query": product.query, "category": "", "attributes": attributes,
            "options": options, "most": max_price, "quantity": quantity, "address": address,
        }  # fmt: skip
        return Task(prompt=prompt, data={"world": world, "goal": goal})

    def read_tasks(self, path: str, split: str) -> Sequence[Task] | None:
        """Read WebShop's goals for the catalogue in `products`; return None for any other file."""
        if not holds_goals(path):
            return None
        if self.products is None:
            raise UsageError(f"{path} holds goals of WebShop; expected products=FILE, the catalogue they are about")
        return read_goals(path, split, self.products)

    def reward(self, attempt: Attempt) -> Mapping[str, float]:
        """Return the scores of the orders: `success` and `match`."""
        goal, orders = attempt.task.data["goal"], attempt.final["orders"]
        lines = [line for order in orders for line in order["lines"]]
        if len(lines) != 1 or lines[0]["quantity"] != goal.get("quantity", 1):
            return {"success": 0.0}
        match = fit(lines[0], goal)
        there = goal.get("address") in (None, orders[0]["address"])
        return {"success": float(match == 1.0 and there), "match": match}

    def explain(self, attempt: Attempt) -> str:
        """Return a text that lists the orders."""
        lines = [
            f"{line['quantity']} {line['title']} ({', '.join(line['chosen'].values())}) at {money(line['price'])} to "
            + ", ".join(order["address"].values())
            for order in attempt.final["orders"]
            for line in order["lines"]
        ]
        return "ordered: " + ("; ".join(lines) or "nothing")


_RESULT = re.compile(r"\[(\d+):link ([^\]]+)\] \| \$([\d.]+)")
_LIST = re.compile(r"\[(\d+):select [^\]]*; options: ([^\]]*)\]")


def _shopping(wish: Mapping[str, str]) -> Plan:
    """Search, open the results that are cheap enough, and buy the first that fits."""
    attributes, options = wish["attributes"].split(", "), wish["options"].split(", ")
    home = yield call("find", text="Search")
    query = f"{wish['kind']} {' '.join(attributes)}"
    yield call("type", number=number_of(home, "field", "Search"), text=query)
    results = yield call("click", number=number_of(home, "button", "Go"))
    while True:
        for number, title, price in _RESULT.findall(results):
            if title.endswith(wish["kind"]) and float(price) <= float(wish["most"]):
                page = yield call("click", number=int(number))
                choices = [_choice(page, value) for value in options]
                if set(attributes) <= set(re.findall(r"^- (.+)$", page, re.MULTILINE)) and None not in choices:
                    return (yield from _buy(page, [choice for choice in choices if choice], wish))
                yield call("back")
        results = yield from follow("Next page")


def _choice(page: str, value: str) -> str | None:
    """Return the call that chooses an option on a product's page; None if the page does not offer it."""
    if f":radio {value} (" in page:
        return call("click", number=number_of(page, "radio", value))
    for number, values in _LIST.findall(page):
        if value in values.split(" | "):
            return call("select", number=int(number), option=value)
    return None


def _buy(page: str, choices: Sequence[str], wish: Mapping[str, str]) -> Plan:
    """Choose the options of the product, add it to the cart and place the order."""
    for choice in choices:  # noqa: UP028  (`yield from` would send the replies to the list.)
        yield choice
    yield call("type", number=number_of(page, "field", "Quantity"), text=wish["quantity"])
    yield call("click", number=number_of(page, "button", "Add to cart"))
    form = yield from follow("Checkout")
    for name in ADDRESS:
        yield call("type", number=number_of(form, "field", name.capitalize()), text=wish[name])
    yield call("click", number=number_of(form, "button", "Place order"))
    return "Done."


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: search, choose, order. With probability 1 - tool_rate, say that it is done."""
    prompt, replies = question_of(messages), replies_of(messages)
    match = _ASKED.fullmatch(prompt)
    if match is None:
        raise UnknownTask(prompt)
    plays = messages[-1]["role"] == "tool" or rng.random() < tool_rate
    return (next_turn(_shopping(match.groupdict()), replies) if plays else None) or "Done."
