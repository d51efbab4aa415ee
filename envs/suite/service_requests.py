"""Wishes of the customers of `service`, of which about half break a rule, and the tasks that are made of them.

A task's data is plain: the number of its world, the customer, her wishes, and the right actions. Rows of a file with
tau-bench's columns become tasks of the same shop. Left out: how a customer talks (`service_customers`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.desk_files import BASIS, desk_data
from palaestra.envs.data.rows import Row, describe, list_names
from palaestra.envs.suite.service_world import (
    CHANGES,
    COLOURS,
    STREETS,
    VOUCHER,
    ShopDatabase,
    draw_world,
    forbids,
    outcome,
    perform,
)
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, ToolError

Wish = dict[str, Any]
ShopAction = tuple[str, dict[str, Any]]
WORDS = {
    "cancel_order": "Please cancel {order} with the {item}.",
    "change_address": "Please send {order} with the {item} to another address.",
    "exchange_item": "Please exchange the {item} in {order} for another colour.",
    "return_item": "I want to return the {item} from {order}.",
    "give_voucher": "I want a voucher, since {order} with the {item} is late.",
}
"""Sentence with which a customer states each kind of wish."""
LEVELS: Mapping[str, Sequence[str]] = {"full": tuple(WORDS), "small": ("cancel_order", "return_item")}
"""Kinds of wishes by level. The small level has one wish, of a verified customer, without details to ask for."""
OPENING = "Hello, I need help with an order."
_TWO_WISHES, _STRANGERS, _CHANGES_OF_MIND, _UNKNOWN_NUMBERS = 0.4, 0.15, 0.3, 0.3
"""Shares of tasks, or of wishes, with this property."""
MAX_WORLDS = 1_000
"""Largest number of worlds that are tried for one task; usually a few are enough."""


def words_of(wish: Wish) -> str:
    """Return a wish in the customer's words."""
    order = f"order {wish['order']}" if wish["says_number"] else "my order"
    return WORDS[wish["kind"]].format(order=order, item=wish["item"])


def arguments_of(kind: str, order: int, item: str, detail: str, tier: str = "basic") -> dict[str, Any]:
    """Return the arguments of the operation for a kind of wish. `tier` is the customer's tier, "basic" or "gold"."""
    others: dict[str, dict[str, Any]] = {
        "cancel_order": {},
        "change_address": {"street": detail},
        "exchange_item": {"old_item": item, "new_item": detail},
        "return_item": {"item": item, "refund_to": detail},
        "give_voucher": {"amount": VOUCHER[tier]},
    }
    return {"order": order, **others[kind]}


def action_of(shop: ShopDatabase, wish: Wish) -> ShopAction:
    """Return the operation that a wish asks for, with its arguments."""
    tier = shop.database["customers"][shop.order(wish["order"])["customer"]]["tier"]
    return wish["kind"], arguments_of(wish["kind"], wish["order"], wish["item"], wish["detail"], tier)


def right_actions(number: int, wishes: Sequence[Wish], verified: Sequence[str]) -> list[ShopAction]:
    """Return the right actions: for each wish the action itself, or a refusal with the rule that forbids it."""
    shop, actions = ShopDatabase(draw_world(number)), list[ShopAction]()
    for wish in wishes:
        name, arguments = action_of(shop, wish.get("instead") or wish)
        rule = forbids(shop, name, arguments, verified)
        actions.append((name, arguments) if rule is None else ("refuse", {"order": wish["order"], "rule": rule}))
        perform(shop, *actions[-1])
    return actions


def draw_task(rng: np.random.Generator, level: str) -> Task:
    """Draw a world, a customer and her wishes. First it is drawn whether each wish is allowed, then the wish."""
    stranger = level == "full" and bool(rng.random() < _STRANGERS)
    count = 2 if level == "full" and not stranger and rng.random() < _TWO_WISHES else 1
    choices = [(str(rng.choice(LEVELS[level])), bool(rng.random() < 0.5)) for _ in range(count)]
    for _ in range(MAX_WORLDS):
        number = int(rng.integers(2**31))
        shop = ShopDatabase(draw_world(number))
        owner = str(rng.choice(list(shop.database["customers"])))
        wishes = list[Wish]()
        for kind, allowed in choices:
            wish = _fitting(shop, rng, owner, kind, None if stranger else allowed, level, *(w["order"] for w in wishes))
            wishes += [] if wish is None else [wish]
        if len(wishes) == count:
            return _made(shop, number, owner, stranger, wishes, level)
    raise EnvironmentDefect(f"no customer of {MAX_WORLDS} worlds can have the wishes {choices}")


def _fitting(
    shop: ShopDatabase, rng: np.random.Generator, owner: str, kind: str, allowed: bool | None, level: str, *others: int
) -> Wish | None:
    """Draw a wish that is allowed or forbidden (None: either), not about the orders `others`; None if there is none."""
    orders = [int(key) for key, entry in shop.database["orders"].items() if entry["customer"] == owner]
    for order in rng.permutation(orders).tolist():
        wish = _wish(shop, rng, order, kind, level)
        permitted = forbids(shop, *action_of(shop, wish), [owner]) is None
        late = level == "small" and kind == "return_item" and shop.order(order)["state"] == "delivered"
        if order in others or allowed not in (None, permitted) or (late and not permitted):
            continue  # The prompt of the small level does not mention late returns.
        knows = level == "small" or allowed is None or rng.random() >= _UNKNOWN_NUMBERS
        wish |= {"knows_number": bool(knows), "says_number": bool(level == "full" and knows and rng.random() < 0.5)}
        if level == "full" and allowed and rng.random() < _CHANGES_OF_MIND:
            changes = (_wish(shop, rng, order, str(other), level) for other in rng.permutation(LEVELS[level]))
            wish["instead"] = next(
                ({**wish, **entry} for entry in changes
                 if entry["kind"] != kind and forbids(shop, *action_of(shop, entry), [owner]) is None), None
            )  # fmt: skip
        return wish
    return None


def _wish(shop: ShopDatabase, rng: np.random.Generator, order: int, kind: str, level: str) -> Wish:
    """Draw a wish for an order. The clerk has to ask for its `detail`, "" if it has none."""
    item = str(rng.choice(list(shop.order(order)["items"])))
    detail = ""
    if kind == "change_address":
        detail = f"{rng.integers(40, 99)} {rng.choice(STREETS)}"
    elif kind == "exchange_item":
        colour, product = item.split()
        detail = f"{rng.choice([other for other in COLOURS if other != colour])} {product}"
    elif kind == "return_item":
        detail = "card" if level == "small" else str(rng.choice(["card", "voucher"]))
    return {"kind": kind, "order": order, "item": item, "detail": detail}


def _made(shop: ShopDatabase, number: int, owner: str, stranger: bool, wishes: list[Wish], level: str) -> Task:
    customer = {name: shop.database["customers"][owner][name] for name in ("name", "email", "postcode")}
    if stranger:  # A wrong postcode.
        letters, digits = customer["postcode"][:2], int(customer["postcode"][2:])
        customer["postcode"] = f"{letters}{(digits - 9) % 90 + 10}"
    actions = right_actions(number, wishes, [] if stranger else [owner])
    data = {"world": number, "customer": customer, "wishes": wishes, "actions": actions}
    return Task(f"{'' if level == 'small' else 'Hello, '}I am {customer['name']}. {words_of(wishes[0])}", data=data)


def instruction_of(data: Mapping[str, Any]) -> str:
    """Return the identity and wishes of a customer as an instruction for the model that plays her."""
    if "instruction" in data:
        return str(data["instruction"])
    who = data["customer"]
    lines = [f"You are {who['name']}. Your e-mail is {who['email']} and your postcode is {who['postcode']}."]
    for count, wish in enumerate(data["wishes"], 1):
        number = f"is {wish['order']}" if wish["knows_number"] else "is not known to you"
        lines.append(f"Your wish {count}: {words_of(wish)} The number of the order {number}.{_detail(wish)}")
        if other := wish.get("instead"):
            change = "When you are asked to confirm this, you change your mind and want this instead"
            lines.append(f"{change}: {words_of(other)}{_detail(other)}")
    return "\n".join(lines)


def _detail(wish: Wish) -> str:
    return f" If you are asked: {wish['detail']}." if wish["detail"] else ""


def require_wishes(task: Task) -> Task:
    """Return a file's task unchanged. Raise `ValueError` with the reason if it is incomplete or cannot be played."""
    data = task.data
    if lacking := [name for name in ("world", "customer", "wishes", "actions") if name not in data]:
        raise ValueError(
            f"has no {list_names(lacking)}; expected the data of a task of this shop, or tau-bench's columns"
        )
    try:
        right = _changes_in(data["actions"])
        words = [words_of(wish) + instruction_of(data) for wish in data["wishes"]]
        outcome(data["world"], right)
    except (ToolError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise ValueError(f"cannot be played: {type(error).__name__}: {error}") from None
    if not words:
        raise ValueError("has no wish in 'wishes'")
    return task


def task_of_row(row: Row) -> tuple[str, Task]:
    """Return the split of a row, and the row as a task of this shop. Raise `ValueError` if it is not valid."""
    cells = row.columns
    desk, world = desk_data(cells), cells.get("world", 0)
    if not isinstance(world, int) or isinstance(world, bool) or not 0 <= world < 2**31:
        raise ValueError(f"has {describe(world)} in 'world'; expected the number of a world, from 0 to {2**31 - 1}")
    if beyond := [name for name in desk["basis"] if name not in BASIS]:
        raise ValueError(f"is judged by {list_names(beyond)}; only {list_names(BASIS)} are judged here")
    right = _changes_in((action["name"], action["arguments"]) for action in desk["actions"])
    try:
        outcome(world, right)
    except (ToolError, TypeError, AttributeError) as error:
        raise ValueError(f"has actions that cannot be done in world {world}: {error}") from None
    prompt = cells.get("opening") or OPENING
    if not isinstance(prompt, str):
        raise ValueError(f"has {describe(prompt)} in 'opening'; expected what the customer says first")
    data = {"world": world, "instruction": desk["instructions"], "actions": right, "outputs": desk["outputs"]}
    return split_of(desk["instructions"]), Task(prompt, None, str(cells.get("id") or f"row {row.number}"), data)


_LOOKS = ("find_customer", "get_order", "get_product", "ask_customer")


def _changes_in(actions: Iterable[Any]) -> list[ShopAction]:
    """Return the pairs of name and arguments that change the database, without those of tools that only look."""
    pairs = [tuple(action) for action in actions]
    for name, *arguments in pairs:
        if name not in (*CHANGES, *_LOOKS) or len(arguments) != 1 or not isinstance(arguments[0], dict):
            raise ValueError(f"has the action {name!r:.40}, which is no tool here; expected {list_names(CHANGES)}")
    return [pair for pair in pairs if pair[0] in CHANGES]
