"""The demonstrator of `service`: a clerk that follows the policy, and sees only what an agent sees.

It understands only customers who use the sentences of the suite.
"""

import re
from collections.abc import Sequence

import numpy as np

from palaestra.envs.suite.demonstrations import Plan, call, next_turn, pattern_of, question_of
from palaestra.envs.suite.service_requests import WORDS, arguments_of
from palaestra.envs.suite.service_world import LATE_DAYS, RETURN_DAYS
from palaestra.episode import Message
from palaestra.errors import UnknownTask

SpokenWish = tuple[str, str, str]
"""Kind of a wish, the number of its order ("" if the customer did not give it), and its item."""
_RULES = {"cancel_order": 2, "change_address": 3, "exchange_item": 4, "return_item": 5, "give_voucher": 6}
_ORDER = re.compile(
    r"order (\d+) of customer (\d+): (\w+) (?:for )?(\d+) days(?: ago)?, paid by \w+, to ([^:]+): ([^;]*)(;.*)?"
)
_DETAILS = {
    "change_address": ("To which street should I send it?", r"send it to (.+)\."),
    "exchange_item": ("Which colour do you want?", r"I want the (.+)\."),
    "return_item": ("Do you want the money on your card or as a voucher?", r"to my (\w+)\."),
}
_LAST = "Done."


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Serve the customer by the policy. With probability 1 - tool_rate, claim at once that it is done."""
    prompt, replies = question_of(messages), _replies_of(messages)
    wish = read_wish(prompt)
    if wish is None:
        raise UnknownTask(prompt)
    if not replies and rng.random() >= tool_rate:
        return _LAST
    turn = next_turn(_full(wish) if prompt.startswith("Hello") else _small(wish), replies)
    if turn and not turn.startswith("<") and "ask_customer" in str(messages[0]["content"]):  # The first version.
        return call("ask_customer", message=turn)
    return turn or _LAST


def _replies_of(messages: Sequence[Message]) -> list[str]:
    """Return the replies of the tools and, after the prompt, of the customer."""
    replies = [str(message["content"]) for message in messages if message["role"] in ("tool", "user")]
    return replies[1:]


def read_wish(text: str) -> SpokenWish | None:
    """Return the wish in a text; None if the text contains no wish."""
    for kind, words in WORDS.items():
        if match := pattern_of(words, r"my order|order \d+|[a-z]+ [a-z]+").search(text):
            return kind, _number(match["order"]), match["item"]
    return None


def _small(wish: SpokenWish) -> Plan:
    """Handle the one wish of a verified customer (the small level)."""
    kind, _, item = wish
    number = _number((yield "Order number?"))
    match = _ORDER.match((yield call("get_order", order=int(number)))) if number else None
    if match is None:
        return ""
    if (kind, match[3]) in (("cancel_order", "pending"), ("return_item", "delivered")):
        yield call(kind, **arguments_of(kind, int(number), item, "card"))
    else:
        yield call("refuse", order=int(number), rule=_RULES[kind])
    return ""


def _number(text: str) -> str:
    match = re.search(r"\d{4}", text)
    return match[0] if match else ""


def _full(wish: SpokenWish | None) -> Plan:
    """Verify the customer, then handle one wish after another (the full level)."""
    reply = yield "What are your e-mail and your postcode?"
    identity = re.search(r"e-mail is (\S+)\. My postcode is (\w+)", reply)
    if identity is None:
        return ""
    record = yield call("find_customer", email=identity[1], postcode=identity[2])
    customer = re.match(r"customer (\d+), [^,]+, (\w+), voucher \d+, orders (.+)", record)
    while wish is not None:
        if customer is not None:
            yield from _handle(wish, customer[2], customer[3].split(", "))
        else:
            order = wish[1] or _number((yield "What is the order number?"))
            if not order:
                return ""
            yield call("refuse", order=int(order), rule=1)
        wish = read_wish((yield "Is there anything else?"))
    return ""


def _handle(wish: SpokenWish, tier: str, orders: Sequence[str]) -> Plan:
    """Handle one wish, or another wish if the customer changes it."""
    kind, number, item = wish
    record = None
    for candidate in [number] if number else orders:
        record = _ORDER.match((yield call("get_order", order=int(candidate))))
        if record and item in record[6]:
            break
    if record is None:
        return ""
    order, state, days = int(record[1]), record[3], int(record[4])
    while True:
        allowed = state == "pending"
        if kind == "give_voucher":
            allowed = allowed and days > LATE_DAYS and not record[7]
        elif kind == "return_item":
            allowed = state == "delivered" and days <= RETURN_DAYS[tier]
        detail = ""
        if allowed and kind in _DETAILS:
            question, pattern = _DETAILS[kind]
            match = re.search(pattern, (yield question))
            detail = match[1] if match else ""
        if allowed and kind == "exchange_item":
            stock = yield call("get_product", product=detail)
            allowed = re.search(r"[1-9]\d* in stock", stock) is not None
        if not allowed:
            yield call("refuse", order=order, rule=_RULES[kind])
            return ""
        arguments = arguments_of(kind, order, item, detail, tier)
        reply = yield f"Shall I do this: {kind.replace('_', ' ')} {', '.join(map(str, arguments.values()))}?"
        other = read_wish(reply)
        if other is None:
            yield call(kind, **arguments)
            return ""
        kind, _, item = other
