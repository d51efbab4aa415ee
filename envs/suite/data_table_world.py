"""The shop that questions of `data_table` are about: orders in a CSV file, products and customers in a SQLite database.

A world is drawn from one number, so a task holds that number instead of files. Left out: the questions.
"""

import csv
import io
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

YEAR = 2025
MONTHS = ("January", "February", "March", "April", "May", "June")
CITIES = ("Arlen", "Brim", "Corvo", "Dunmere", "Esk", "Farrow")
CATEGORIES = ("kitchen", "garden", "office")
PRODUCTS = ("kettle", "ladle", "rake", "trowel", "stapler", "folder", "pan", "hose", "lamp")
FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kay", "Leo", "Mia", "Noa", "Oto")
LAST = ("Abbot", "Brook", "Carver", "Dale", "Ellery", "Frost", "Gale", "Hale")
CUSTOMERS = 24
ORDERS = 160
MOST_UNITS = 60
"""Largest number of units of an order; together with CANCELLED_SHARE it makes amounts hard to guess."""
CANCELLED_SHARE = 0.2


class OrderRow(NamedTuple):
    """One line of orders.csv. A cancelled order has no quantity."""

    number: int
    day: str
    customer: int
    product: str
    quantity: int | None

    @property
    def month(self) -> str:
        return MONTHS[int(self.day[5:7]) - 1]


@dataclass(frozen=True)
class OrderTables:
    """The rows of all files of one shop."""

    prices: dict[str, int]
    categories: dict[str, str]
    customers: dict[int, tuple[str, str]]
    """Name and city of each customer, by number."""
    orders: tuple[OrderRow, ...]

    def paid(self) -> Iterator[tuple[OrderRow, int, int]]:
        """Yield each order that was not cancelled, with its quantity and its total price."""
        for order in self.orders:
            if order.quantity is not None:
                yield order, order.quantity, order.quantity * self.prices[order.product]

    def city(self, order: OrderRow) -> str:
        return self.customers[order.customer][1]

    def prices_in(self, category: str) -> list[int]:
        return [price for name, price in self.prices.items() if self.categories[name] == category]

    def files(self) -> dict[str, bytes]:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(OrderRow._fields)
        writer.writerows(self.orders)  # None is written as nothing.
        database = sqlite3.connect(":memory:")
        try:
            database.execute("create table products (name text primary key, category text, price integer)")
            database.execute("create table customers (id integer primary key, name text, city text)")
            rows = [(name, self.categories[name], price) for name, price in self.prices.items()]
            database.executemany("insert into products values (?, ?, ?)", rows)
            people = [(number, *person) for number, person in self.customers.items()]
            database.executemany("insert into customers values (?, ?, ?)", people)
            database.commit()
            return {"orders.csv": text.getvalue().encode(), "shop.db": database.serialize()}
        finally:
            database.close()


@lru_cache(maxsize=256)
def draw_world(number: int) -> OrderTables:
    rng = np.random.default_rng(number)
    prices = {name: int(rng.integers(3, 90)) for name in PRODUCTS}
    categories = {name: CATEGORIES[at % len(CATEGORIES)] for at, name in enumerate(rng.permutation(PRODUCTS).tolist())}
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    people = rng.permutation(len(names))[:CUSTOMERS].tolist()
    homes = rng.integers(len(CITIES), size=CUSTOMERS).tolist()
    customers = {101 + at: (names[who], CITIES[home]) for at, (who, home) in enumerate(zip(people, homes, strict=True))}
    columns = (
        rng.integers(1, len(MONTHS) + 1, size=ORDERS).tolist(),
        rng.integers(1, 29, size=ORDERS).tolist(),
        rng.integers(CUSTOMERS, size=ORDERS).tolist(),
        rng.integers(len(PRODUCTS), size=ORDERS).tolist(),
        rng.integers(1, MOST_UNITS + 1, size=ORDERS).tolist(),
        (rng.random(ORDERS) < CANCELLED_SHARE).tolist(),
    )
    orders = tuple(
        OrderRow(1000 + at, f"{YEAR}-{month:02}-{day:02}", 101 + who, PRODUCTS[what], None if cancelled else quantity)
        for at, (month, day, who, what, quantity, cancelled) in enumerate(zip(*columns, strict=True))
    )
    return OrderTables(prices, categories, customers, orders)
