"""A clerk serves a customer of a shop: there is a policy, and tools change the shop's database.

A task:      Hello, I am Ada Frost. Please cancel order 4711 with the red lamp.
An episode:  What are your e-mail and your postcode?
             My e-mail is ada.frost@mail.example. My postcode is AK42.
             <tool_call>{"name": "find_customer", "arguments": {"email": "ada.frost@mail.example", "postcode": ...}}
             customer 203, Ada Frost, basic, voucher 5, orders 4711, 5120, 8034
             <tool_call>{"name": "get_order", "arguments": {"order": 4711}}</tool_call>
             order 4711 of customer 203: shipped 2 days ago, paid by card, to 5 Mill Lane: red lamp 30
             <tool_call>{"name": "refuse", "arguments": {"order": 4711, "rule": 2}}</tool_call>
             noted
             It has been shipped already, so I cannot cancel it.

The reward compares the final database with the result of the right actions. Tools also perform forbidden actions. About
half of the wishes are forbidden. The agent must note each refusal with its rule, so doing nothing is never right.
`level="small"` has one wish of a verified customer, short enough for the tiny agent. Left out: the world
(`service_world`), the wishes (`service_requests`), the customer (`service_customers`), the demonstrator
(`service_clerk`), the version whose customer is asked by a tool (`service_v0`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from palaestra.envs import Task, ToolEnv, Toolkit, tool
from palaestra.envs.core.backends import Where
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.data.desk_files import holds_desk_tasks
from palaestra.envs.data.problem_files import first_columns, load_problems, published
from palaestra.envs.suite.service_customers import customer
from palaestra.envs.suite.service_requests import (
    LEVELS,
    draw_task,
    instruction_of,
    require_wishes,
    task_of_row,
)
from palaestra.envs.suite.service_world import RULES, ShopDatabase, changes, draw_world, forbids, outcome, perform
from palaestra.envs.users import conversation, says, user_for
from palaestra.episode import Attempt
from palaestra.errors import UsageError

POLICY = (
    "You are the clerk of a shop. A turn without a call is said to the customer. Rules:\n"
    + "\n".join(f"{number}. {text}" for number, text in RULES.items())
    + "\nBefore each change, ask whether you should make it, with the order's number and all details, and make it only "
    "after a yes. A customer may want something else then; do that instead. A wish that a rule forbids is not done: "
    "note it with refuse and the rule's number, and say why. Where several forbid it, the one with the lowest number. "
    "When a wish is settled, ask whether there is anything else."
)
SYSTEMS = {
    "full": POLICY,
    "small": "Ask for the number. Cancel only pending orders, else refuse, rule 2. Return only "
    "delivered ones to the card, else refuse, rule 5.",
}


class ShopTools(Toolkit):
    """The clerk's tools: operations on the shop's database."""

    def __init__(self, trusting: bool = False) -> None:
        """`trusting` means that all customers count as verified."""
        self.trusting = trusting

    def start(self, task: Task, rng: np.random.Generator) -> None:
        self.world: int = task.data["world"]
        self.shop = ShopDatabase(draw_world(self.world))
        self.verified: list[str] = list(self.shop.database["customers"]) if self.trusting else []
        self.broken: list[int] = []

    @tool
    def find_customer(self, email: str, postcode: str) -> str:
        """Verify a customer, and see the record and the numbers of all orders."""
        number, row = self.shop.customer(email, postcode)
        self.verified.append(number)
        keys = [key for key, order in self.shop.database["orders"].items() if order["customer"] == number]
        return f"customer {number}, {row['name']}, {row['tier']}, voucher {row['voucher']}, orders {', '.join(keys)}"

    @tool
    def get_order(self, order: int) -> str:
        """See an order: whose it is, its state, how it was paid, where it goes, its items and their prices."""
        entry = self.shop.order(order)
        since = f"for {entry['days']} days" if entry["state"] == "pending" else f"{entry['days']} days ago"
        items = ", ".join(f"{item} {price}" for item, price in entry["items"].items()) or "nothing"
        extra = f"; vouchers given for it: {entry['compensated']}" if entry["compensated"] else ""
        return (
            f"order {order} of customer {entry['customer']}: {entry['state']} {since}, paid by {entry['paid_by']}, "
            f"to {entry['street']}: {items}{extra}"
        )

    @tool
    def get_product(self, product: str) -> str:
        """See which colours of a product there are, with prices and how many are in stock."""
        colours = self.shop.product(product).items()
        return "; ".join(f"{item}: price {entry['price']}, {entry['stock']} in stock" for item, entry in colours)

    @tool
    def cancel_order(self, order: int) -> str:
        """Cancel an order and pay it back."""
        return self._change("cancel_order", order=order)

    @tool
    def change_address(self, order: int, street: str) -> str:
        """Send an order elsewhere.

        Args:
            order: its number.
            street: the new number and street, such as 5 Mill Lane.
        """
        return self._change("change_address", order=order, street=street)

    @tool
    def exchange_item(self, order: int, old_item: str, new_item: str) -> str:
        """Put an item in the place of another.

        Args:
            order: the order's number.
            old_item: what is in it, such as red lamp.
            new_item: what shall be in it, such as blue lamp.
        """
        return self._change("exchange_item", order=order, old_item=old_item, new_item=new_item)

    @tool
    def return_item(self, order: int, item: str, refund_to: Literal["card", "voucher"]) -> str:
        """Take an item back and pay for it."""
        return self._change("return_item", order=order, item=item, refund_to=refund_to)

    @tool
    def give_voucher(self, order: int, amount: int) -> str:
        """Give the customer a voucher for the delay of an order."""
        return self._change("give_voucher", order=order, amount=amount)

    @tool
    def refuse(self, order: int, rule: int) -> str:
        """Note that a wish for an order was refused.

        Args:
            order: its number.
            rule: the number of the rule that forbids the wish.
        """
        return self._change("refuse", order=order, rule=rule)

    def _change(self, name: str, **arguments: Any) -> str:
        rule = forbids(self.shop, name, arguments, self.verified)
        result = perform(self.shop, name, arguments)
        if rule is not None:
            self.broken.append(rule)
        return result

    def final(self) -> dict[str, Any]:
        return {"changes": changes(self.world, self.shop.database), "broken": self.broken}

    def snapshot(self) -> Any:
        return {"world": self.world, "database": self.shop.database, "verified": self.verified, "broken": self.broken}

    def restore(self, state: Any) -> None:
        self.world, self.shop = state["world"], ShopDatabase(state["database"])
        self.verified, self.broken = state["verified"], state["broken"]


class ServiceEnv(ToolEnv):
    """Serve a customer of a shop by its policy, with tools over its database."""

    max_turns = 40
    parts = {"success": RewardPart(), "rules_broken": RewardPart(weight=0.0, high=1.0)}  # noqa: RUF012

    def __init__(
        self, split: str = "train", tasks: str | None = None, level: str = "full", user: Where = "script"
    ) -> None:
        """`level` is full or small, `user` who plays the customer: script, or a mapping with base_url and model.

        `tasks` also takes a file with the columns of tau-bench (instruction, actions, outputs) or of tau2-bench, on
        this shop, and if there are any world, opening, id. Such a customer has to be played by a model.
        """
        super().__init__(split, tasks)
        if level not in LEVELS:
            raise UsageError(f"level is {level!r}; expected {' or '.join(map(repr, LEVELS))}")
        self.level, self.system = level, SYSTEMS[level]
        self.user = user_for(user, customer, instructions=_instructions)  # type: ignore[method-assign]
        self.toolkits = (partial(ShopTools, level == "small"),)

    @property
    def chance(self) -> float:  # type: ignore[override]
        """Success rate of granting every wish, or refusing every wish, without a lookup (docs/benchmarks.md)."""
        return 0.55 if self.level == "small" else 0.25

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a world, a customer and her wishes. About half of the wishes break a rule."""
        return draw_task(rng, self.level)

    def read_tasks(self, path: str, split: str) -> Sequence[Task]:
        """Read tasks of this shop, with the suite's own columns or with those of tau-bench."""
        if not holds_desk_tasks(first_columns(path)):
            return load_problems(path, split, (), require_wishes)
        if self.user is customer:
            raise UsageError(
                f"{path} tells each customer in free words what she wants, and a script cannot read them; give the "
                "option user, a mapping with base_url and model of a server that plays her"
            )
        return published(path, split, task_of_row, lambda task: task)

    def reward(self, attempt: Attempt) -> dict[str, float]:
        """Compare the final database with the result of the right actions, and what was said with what the task asks to
        say. Also report whether a rule was broken."""
        right = expected(attempt.task) == attempt.final["changes"]
        if outputs := attempt.task.data.get("outputs"):
            texts = [text for role, text in conversation(attempt) if role == "assistant"]
            texts += [str(call.arguments.get("message")) for call in attempt.calls if call.name == "ask_customer"]
            right = right and all(says(texts, output) for output in outputs)
        return {"success": float(right), "rules_broken": float(bool(attempt.final["broken"]))}

    def explain(self, attempt: Attempt) -> str:
        """List the differences from the expected database, the right actions and the rules that were broken."""
        target, actual = expected(attempt.task), attempt.final["changes"]
        lines = [
            f"{key} {_became(actual, key)}; expected: it {_became(target, key)}"
            for key in sorted(target.keys() | actual.keys())
            if target.get(key, actual) != actual.get(key, target)
        ]
        actions = attempt.task.data["actions"]
        calls = ", ".join(f"{name}({', '.join(map(str, values.values()))})" for name, values in actions)
        lines = [*(lines or ["the database is as it should be"]), f"right: {calls or 'to change nothing'}"]
        if rules := sorted(set(attempt.final["broken"])):
            lines.append(f"rules broken: {rules}")
        return "\n".join(lines)


def expected(task: Task) -> dict[str, Any]:
    """Return what the right actions change in the database."""
    return outcome(task.data["world"], task.data["actions"])


def _instructions(task: Task) -> str:
    return instruction_of(task.data)


def _became(changes: Mapping[str, Any], key: str) -> str:
    return f"became {changes[key]!r}" if key in changes else "stayed as it was"
