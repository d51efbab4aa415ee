"""DataTable: the files hold what the answers were computed from, and each question has one answer."""

import contextlib
import csv
import io
import sqlite3
from collections import Counter

import pytest
from demonstrated import play
from worlds import judged

from palaestra.envs import TextEnv
from palaestra.envs.suite.data_table import FAMILIES, DataTable, demonstrate
from palaestra.envs.suite.data_table_world import CITIES, ORDERS, PRODUCTS, draw_world
from palaestra.episode import Attempt


def test_every_family_is_asked_and_found_out_in_the_files():
    """A program that only sees the files comes to the answer that was computed without them."""
    env = TextEnv(DataTable("eval"))
    try:
        infos = [play(env, demonstrate, seed) for seed in range(16)]
        assert [(info["parts"]["success"], len(info["attempt"].calls)) for info in infos] == [(1.0, 2)] * 16
    finally:
        env.close()
    asked = " ".join(env.tasks[index].prompt for index in range(120))
    assert all(family.question.partition("{")[0] in asked for family in FAMILIES)


def test_a_world_and_its_files_hold_the_same():
    world = draw_world(5)
    files = world.files()
    rows = list(csv.reader(io.StringIO(files["orders.csv"].decode())))
    assert rows[0] == ["number", "day", "customer", "product", "quantity"]
    assert [tuple(row) for row in rows[1:]] == [
        tuple("" if cell is None else str(cell) for cell in order) for order in world.orders
    ]
    assert len(rows) == ORDERS + 1
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(files["shop.db"])
        products = {name: (kind, price) for name, kind, price in database.execute("select * from products")}
        people = {number: (name, city) for number, name, city in database.execute("select * from customers")}
    assert products == {name: (world.categories[name], price) for name, price in world.prices.items()}
    assert people == world.customers
    assert any(order.quantity is None for order in world.orders)


@pytest.mark.parametrize(("family", "name", "values", "share"), [
    ("How many orders", "city", CITIES, 0.22), ("What is the median", "product", PRODUCTS, 0.12),
])  # fmt: skip
def test_an_amount_is_hard_to_guess(family, name, values, share):
    (family,) = (one for one in FAMILIES if one.question.startswith(family))
    answers = Counter(family.answer(draw_world(number), {name: value}) for number in range(60) for value in values)
    assert answers.most_common(1)[0][1] < share * answers.total()


def test_worlds_differ_and_repeat():
    assert draw_world(1) != draw_world(2)
    draw_world.cache_clear()
    first = draw_world(1)
    draw_world.cache_clear()
    assert draw_world(1) == first


@pytest.mark.parametrize(("expected", "right", "wrong"), [
    ("1200", ("Answer: 1,200", "1200", "Answer: 1200.0"), ("12000", "about 1200", "")),
    ("17.50", ("Answer: 17.5", "**Answer:** 17.50", "Answer: **17.5**"), ("17", "17.51")),
    ("35.33", ("Answer: 35.330",), ("-35.33", "3533", "35,33", "3.533")),
    ("42.00", ("Answer: 42", "Answer: 42%"), ("-42.00", "4200", "420000%", "0.42")),
    ("Ada Frost", ("Answer: ada frost", "Ada Frost."), ("Ada", "Ada Frost or Ben Hale", None)),
])  # fmt: skip
def test_an_answer_may_be_written_in_another_form(expected, right, wrong):
    env = DataTable()
    task = TextEnv(env).tasks[0]
    task = type(task)(prompt=task.prompt, answer=expected, id="x", data=task.data)
    for texts, reward in ((right, 1.0), (wrong, 0.0)):
        for text in texts:
            assert judged(env, Attempt(task, (), text, (), 1))[0] == reward, text
