"""WebShop: what the orders hold decides; the script buys by what it sees; no other way leads to a reward."""

import json
from functools import partial

import numpy as np
import pytest
import worlds
from checked import success

import palaestra
from palaestra.envs import TextEnv
from palaestra.envs.suite.web_shop import WebShop, demonstrate
from palaestra.envs.suite.web_shop_goods import draw_catalogue, fit, type_fit
from palaestra.episode import Attempt
from palaestra.errors import TaskFileError, UsageError

ID = "palaestra/WebShop-v0"


def play(env, stop="never"):
    """Play by the script to the end, or up to a turn that says `stop`; what the last step returned."""
    result, rng = (), np.random.default_rng(0)
    while not any(result[2:4]):
        text = demonstrate(env.attempt.messages, rng)
        if stop in text:
            break
        result = env.step(text)
    return result


@pytest.fixture
def env():
    env = TextEnv(WebShop())
    env.reset(seed=0)
    return env


@pytest.fixture
def task(env):
    return env.tasks[0]


@pytest.fixture
def right(task):
    """What should be ordered."""
    goal, products = task.data["goal"], draw_catalogue(task.data["world"]).products.values()
    for product in products:
        chosen = dict(zip(product.options, goal["options"], strict=True))
        line = {**product.plain(), "chosen": chosen, "quantity": goal["quantity"]}
        offered = all(value in product.options[name] for name, value in chosen.items())
        if offered and fit(line, goal) == 1.0:
            return {"customer": "x", "lines": [line], "address": goal["address"]}
    raise AssertionError("nothing in the shop fits")


def parts(task, *orders):
    return worlds.judged(WebShop(), Attempt(task, (), "Done.", (), 1, final={"orders": list(orders)}))[1]


def changed(order, address=None, **line):
    return {**order, "lines": [{**order["lines"][0], **line}], "address": address or order["address"]}


def test_the_script_buys_what_is_asked_for_and_saying_so_buys_nothing():
    assert success(ID, demonstrate, 12, split="eval") == 1.0
    assert success(ID, partial(demonstrate, tool_rate=0.0), 12, split="eval") == 0.0


def test_the_right_order_succeeds_and_every_departure_from_it_fails_and_is_paid_less(task, right):
    goal, (line,) = task.data["goal"], right["lines"]
    assert parts(task, right) == {"success": 1.0, "match": 1.0}
    asked = len(goal["attributes"]) + len(goal["options"]) + 1
    wrong_size = changed(right, chosen={**line["chosen"], "size": "tiny"})
    dear = changed(right, price=goal["most"] + 1)
    plain = changed(right, attributes=[goal["attributes"][0]], bullets=[])
    for order in (wrong_size, dear, plain):
        assert parts(task, order) == {"success": 0.0, "match": pytest.approx((asked - 1) / asked)}
    assert parts(task, changed(right, title="Kemu lamp", query="other")) == {"success": 0.0, "match": 0.0}
    assert parts(task, changed(right, address={**right["address"], "city": "Roma"})) == {"success": 0.0, "match": 1.0}
    nothing = {"success": 0.0, "match": 0.0}
    everything = {**right, "lines": [line, line]}
    for orders in ([], [right, right], [everything], [changed(right, quantity=goal["quantity"] + 1)]):
        assert parts(task, *orders) == nothing


def test_the_type_counts_as_webshop_counts_it():
    goal = {"title": "red wool winter jacket for tall slim men and boys", "query": "jacket", "category": "a › b › c"}
    longer = {**goal, "title": f"{goal['title']} everywhere"}

    def of(title, query="", category="", goal=goal):
        return type_fit({"title": title, "query": query, "category": category}, goal)

    assert of("a blue jacket") == 0.5  # One word of ten.
    assert of("a blue jacket", query="jacket") == of("a blue jacket", category="x › c › b") == 1.0
    assert of("a blue jacket", category="x › c") == 0.5
    assert of("a wool jacket for me") == 1.0
    assert of("a blue jacket", query="jacket", goal=longer) == 0.1  # One word of eleven.
    assert of("a lamp", query="jacket", category="a › b › c") == 0.0


def test_what_one_branch_orders_no_other_has_ordered(env):
    play(env, stop="Checkout")
    here = env.snapshot()
    branch = env.fork(1)[0]
    assert play(branch)[4]["parts"]["success"] == 1.0
    assert env.step("Done.")[4]["attempt"].final == {"orders": []}
    env.restore(here)
    assert play(env)[4]["parts"]["success"] == 1.0


CATALOGUE = [
    {"asin": "B01", "name": "Acme Wool Jacket for Men", "query": "men's jackets", "pricing": "$19.99 to $29.99",
     "product_category": "Clothing › Men › Coats", "small_description": ["Machine wash", "Warm"],
     "full_description": "For winter.", "attributes": ["wool"],
     "customization_options": {"Size": [{"value": "Large"}, {"value": "Small"}], "Color": None}},
    {"asin": "B02", "name": "Desk lamp", "query": "lamps", "product_category": "Home › Lamps", "pricing": "",
     "small_description": "Bright", "full_description": None, "customization_options": ""},
]  # fmt: skip
GOALS = [
    {"asin": "B01", "instruction": "i want a wool jacket, machine wash, size large", "price_upper": 40.0,
     "instruction_attributes": ["wool", "machine wash"], "instruction_options": ["Large"]},
    {"asin": "B02", "instruction_text": "get me a desk lamp", "attributes": ["bright"], "goal_options": {}},
]  # fmt: skip


def saved(path, rows):
    path.write_text(json.dumps(rows))
    return str(path)


def test_published_goals_are_played_in_a_shop_of_the_published_catalogue(tmp_path):
    products, goals = saved(tmp_path / "items.json", CATALOGUE), saved(tmp_path / "goals.json", GOALS)
    env = TextEnv(WebShop(split="all", tasks=goals, products=products))
    assert [task.prompt for task in env.tasks] == [GOALS[0]["instruction"], GOALS[1]["instruction_text"]]
    goal = env.tasks[0].data["goal"]
    assert (goal["most"], goal["options"], env.tasks[1].data["goal"]["most"]) == (4000, ["Large"], None)
    env.reset(seed=0, options={"task": 0})
    page = env.step(env.call("open", url="http://shop.test/product/B01"))[0]
    assert "Acme Wool Jacket" in page
    assert "$29.99" in page


@pytest.mark.parametrize(("catalogue", "goals", "said"), [
    ([{"asin": "B01"}], GOALS, "entry 1 has the columns"), (CATALOGUE, [{**GOALS[0], "asin": "B9"}], "B9"),
    (CATALOGUE, [{**GOALS[0], "price_upper": "cheap"}], "price_upper"),
    (CATALOGUE, [{**GOALS[0], "instruction_attributes": [1]}], "list of texts"),
    ([{**CATALOGUE[0], "customization_options": [1]}], GOALS, "customization_options"),
    ([{**CATALOGUE[0], "customization_options": {"size": [1]}}], GOALS, "customization_options"),
])  # fmt: skip
def test_a_row_that_cannot_be_played_is_named(tmp_path, catalogue, goals, said):
    products, goals = saved(tmp_path / "items.json", catalogue), saved(tmp_path / "goals.json", goals)
    with pytest.raises(TaskFileError, match=said):
        TextEnv(WebShop(split="all", tasks=goals, products=products)).tasks  # noqa: B018


def test_goals_without_a_catalogue_and_a_catalogue_without_goals_are_refused(tmp_path):
    with pytest.raises(UsageError, match="products=FILE"):
        TextEnv(WebShop(split="all", tasks=saved(tmp_path / "goals.json", GOALS))).tasks  # noqa: B018
    with pytest.raises(UsageError, match="tasks=FILE"):
        WebShop(products=saved(tmp_path / "items.json", CATALOGUE))
    assert palaestra.demonstrator(ID) is demonstrate
