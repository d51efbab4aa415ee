"""The shop that `service` is about: customers, orders, stock, operations on them, and what the policy forbids.

Everything is in one plain dict, drawn from a number, so a task holds that number. An operation is performed even if the
policy forbids it, as in the programs of a real shop. Only an impossible operation is refused, such as one on an order
that does not exist. `forbids` is the policy. Left out: the wishes (`service_requests`).
"""

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from random import Random
from typing import Any

from palaestra.errors import ToolError

FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kay", "Leo", "Mia", "Noa", "Oto")
LAST = ("Abbot", "Brook", "Carver", "Dale", "Ellery", "Frost", "Gale", "Hale")
STREETS = ("Mill Lane", "Oak Street", "Pier Road", "Bridge Way", "Elm Court", "Hill Row")
PRODUCTS = ("lamp", "rug", "kettle", "chair", "clock", "vase")
COLOURS = ("red", "blue", "green", "white")
CUSTOMERS = 4
ORDERS_EACH = 3
RETURN_DAYS = {"basic": 30, "gold": 60}
LATE_DAYS = 10
VOUCHER = {"basic": 10, "gold": 20}
CHANGES = ("cancel_order", "change_address", "exchange_item", "return_item", "give_voucher", "refuse")
"""Names of the operations that change the database. The tools have the same names."""
IDENTITY, CANCEL, ADDRESS, EXCHANGE, RETURN, LATE = 1, 2, 3, 4, 5, 6
"""Numbers of the rules of the policy."""
RULES = {
    IDENTITY: "Verify the customer first: ask for e-mail and postcode, and find_customer must know both. Who cannot be "
    "verified is refused by this rule, and so is everybody who wants something done with another's order.",
    CANCEL: "Cancel only pending orders. The money goes back by itself to where it came from.",
    ADDRESS: "Change the address only of pending orders.",
    EXCHANGE: "Exchange only in pending orders, for another colour of the same product that is in stock.",
    RETURN: f"Take an item back only from delivered orders, at most {RETURN_DAYS['basic']} days after delivery, "
    f"{RETURN_DAYS['gold']} for gold customers. The customer chooses card or voucher.",
    LATE: f"Give a voucher of {VOUCHER['basic']} for an order, {VOUCHER['gold']} for gold customers, only if it is "
    f"pending for more than {LATE_DAYS} days, and once.",
}
Database = dict[str, dict[str, Any]]


class ShopDatabase:
    """The operations on a database. An impossible operation raises `ToolError` and changes nothing."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def customer(self, email: str, postcode: str) -> tuple[str, dict[str, Any]]:
        """Return the number and the record of the customer with this e-mail and postcode."""
        identity = (email.strip().lower(), postcode.replace(" ", "").lower())
        for number, record in self.database["customers"].items():
            if (record["email"], record["postcode"].lower()) == identity:
                return number, record
        raise ToolError("there is no customer with this e-mail and this postcode")

    def order(self, number: int) -> dict[str, Any]:
        record: dict[str, Any] | None = self.database["orders"].get(str(number))
        if record is None:
            raise ToolError(f"there is no order {number}")
        return record

    def product(self, name: str) -> dict[str, dict[str, int]]:
        """Return the items of a product, one for each colour, with price and stock."""
        query = name.strip().lower()
        colours = {item: entry for item, entry in self.database["stock"].items() if query in (item, item.split()[1])}
        if not colours:
            raise ToolError(f"there is no product {name[:40]!r}; there are {', '.join(PRODUCTS)}")
        return colours

    def cancel_order(self, order: int) -> str:
        record = self.order(order)
        if record["state"] == "cancelled":
            raise ToolError("it is cancelled already")
        record["state"] = "cancelled"
        for item in record["items"]:
            self.database["stock"][item]["stock"] += 1
        return self._pay_back(order, sum(record["items"].values()), record["paid_by"])

    def change_address(self, order: int, street: str) -> str:
        self.order(order)["street"] = " ".join(street.split()).strip(".,").title()
        return "done"

    def exchange_item(self, order: int, old_item: str, new_item: str) -> str:
        items = self._holding(order, old_item)
        new, stock = new_item.strip().lower(), self.database["stock"]
        if new not in stock or new in items:
            raise ToolError(f"{new_item[:40]!r} cannot be put in: it is not sold here, or is in the order already")
        old = old_item.strip().lower()
        items[new] = items.pop(old)  # Colours of a product cost the same.
        stock[old]["stock"] += 1
        stock[new]["stock"] -= 1
        return "done"

    def return_item(self, order: int, item: str, refund_to: str) -> str:
        items = self._holding(order, item)
        if refund_to not in ("card", "voucher"):
            raise ToolError(f"refund_to is {refund_to!r:.40}; expected 'card' or 'voucher'")
        record, name = self.order(order), item.strip().lower()
        record["returned"] = sorted([*record["returned"], name])
        return self._pay_back(order, items.pop(name), refund_to)

    def give_voucher(self, order: int, amount: int) -> str:
        record = self.order(order)
        if not 1 <= amount <= 100:
            raise ToolError(f"a voucher of {amount}; expected 1 to 100")
        record["compensated"] += amount
        return self._pay_back(order, amount, "voucher")

    def refuse(self, order: int, rule: int) -> str:
        if rule not in RULES:
            raise ToolError(f"there is no rule {rule}; expected 1 to {len(RULES)}")
        record = self.order(order)
        record["refused"] = sorted({*record["refused"], rule})
        return "noted"

    def _holding(self, order: int, item: str) -> dict[str, int]:
        """Return the items of an order. Raise `ToolError` if `item` is not among them."""
        items: dict[str, int] = self.order(order)["items"]
        if item.strip().lower() not in items:
            raise ToolError(f"order {order} has no {item[:40]!r}; it has {', '.join(items) or 'nothing'}")
        return items

    def _pay_back(self, order: int, amount: int, to: str) -> str:
        record = self.order(order)
        if to == "voucher":
            self.database["customers"][record["customer"]]["voucher"] += amount
        else:
            record["paid_back"] += amount
        return f"done: {amount} to the {to}"


def perform(shop: ShopDatabase, name: str, arguments: Mapping[str, Any]) -> str:
    """Perform one of the operations in CHANGES, and return its result text."""
    operation: Callable[..., str] = getattr(shop, name)
    return operation(**arguments)


def forbids(shop: ShopDatabase, name: str, arguments: Mapping[str, Any], verified: Collection[str]) -> int | None:
    """Return the number of the rule that forbids a change, or None. `verified` holds numbers of verified customers."""
    order = shop.order(arguments["order"])
    tier = shop.database["customers"][order["customer"]]["tier"]
    pending = order["state"] == "pending"
    if name == "refuse":
        return None
    if order["customer"] not in verified:
        return IDENTITY
    if name == "cancel_order":
        return None if pending else CANCEL
    if name == "change_address":
        return None if pending else ADDRESS
    if name == "exchange_item":
        old, new = arguments["old_item"].strip().lower(), arguments["new_item"].strip().lower()
        there = shop.database["stock"].get(new, {"stock": 0})["stock"] > 0
        return None if pending and there and old.split()[-1:] == new.split()[-1:] else EXCHANGE
    if name == "return_item":
        return None if order["state"] == "delivered" and order["days"] <= RETURN_DAYS[tier] else RETURN
    late = pending and order["days"] > LATE_DAYS and not order["compensated"]
    return None if late and arguments["amount"] == VOUCHER[tier] else LATE


def outcome(number: int, actions: Collection[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return what the actions change in a world, as `changes` does. Raise `ToolError` if an action is impossible."""
    shop = ShopDatabase(draw_world(number))
    for name, arguments in actions:
        perform(shop, name, arguments)
    return changes(number, shop.database)


def changes(number: int, now: Database) -> dict[str, Any]:
    """Return the values that differ from those of the initial world. The keys are `table.key.field`."""
    differences: dict[str, Any] = {}
    for table, rows in draw_world(number).items():
        for key, row in rows.items():
            differences |= {f"{table}.{key}.{field}": now[table][key][field] for field in row
                      if now[table][key][field] != row[field]}  # fmt: skip
    return differences


def draw_world(number: int) -> Database:
    """Draw the database of a world. Each caller gets its own copy."""
    database: Database = json.loads(_drawn(number))
    return database


@lru_cache(maxsize=1024)
def _drawn(number: int) -> str:
    rng = Random(number)  # Ten times as fast as numpy for single draws.
    prices = {product: rng.randrange(10, 90) for product in PRODUCTS}
    stock = {
        f"{colour} {product}": {"price": prices[product], "stock": rng.randrange(3)}
        for product in PRODUCTS
        for colour in COLOURS
    }
    people = rng.sample(range(len(FIRST) * len(LAST)), CUSTOMERS)
    numbers = iter(rng.sample(range(1010, 1100), CUSTOMERS * ORDERS_EACH))  # Two tokens for the tiny agent.
    customers: dict[str, Any] = {}
    orders: dict[str, Any] = {}
    for key, person in zip(rng.sample(range(100, 1000), CUSTOMERS), people, strict=True):
        first, last = FIRST[person % len(FIRST)], LAST[person // len(FIRST)]
        customers[str(key)] = {
            "name": f"{first} {last}",
            "email": f"{first}.{last}@mail.example".lower(),
            "postcode": f"{rng.choice('ABCDEFGH')}{rng.choice('KLMNPRST')}{rng.randrange(10, 100)}",
            "tier": rng.choice(list(VOUCHER)),
            "voucher": rng.randrange(4) * 5,
        }
        home, bought = f"{rng.randrange(1, 40)} {rng.choice(STREETS)}", rng.sample(PRODUCTS, len(PRODUCTS))
        for _ in range(ORDERS_EACH):
            items = [f"{rng.choice(COLOURS)} {bought.pop()}" for _ in range(rng.randrange(1, 3))]
            state = rng.choice(("pending", "pending", "shipped", "delivered", "delivered"))
            orders[str(next(numbers))] = {
                "customer": str(key),
                "state": state,
                "days": rng.randrange(1, {"pending": 20, "shipped": 5, "delivered": 90}[state]),
                "paid_by": rng.choice(("card", "voucher")),
                "street": home,
                "items": {item: stock[item]["price"] for item in items},
                "paid_back": 0,
                "returned": [],
                "compensated": 0,
                "refused": [],
            }
    return json.dumps({"customers": customers, "orders": orders, "stock": stock})
