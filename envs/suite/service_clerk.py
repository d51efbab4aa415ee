"""The demonstrator of `service`: a clerk that follows the policy, and sees only what an agent sees.

The clerk is a generator that yields calls and receives their results. For each turn the dialogue is replayed from the
beginning. Left out: questions that are not the suite's own.
"""

import re
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from palaestra.envs.suite.service_requests import WORDS
from palaestra.envs.suite.service_world import LATE_DAYS, RETURN_DAYS, VOUCHER
from palaestra.episode import Message
from palaestra.errors import UnknownTask
from palaestra.formats import ParsedCall, hermes

ClerkSteps = Generator[ParsedCall, str, None]
_RULES = {"cancel_order": 2, "change_address": 3, "exchange_item": 4, "return_item": 5, "give_voucher": 6}
_WISHES = {
    kind: re.compile(
        re.escape(words).replace(r"\{order\}", r"(?:my order|order (?P<order>\d+))").replace(
            r"\{item\}", r"(?P<item>[a-z]+ [a-z]+)"
        )
    )
    for kind, words in WORDS.items()
}  # fmt: skip
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
    prompt = str(next(message["content"] for message in messages if message["role"] == "user"))
    replies = [str(message["content"]) for message in messages if message["role"] == "tool"]
    wish = _wish(prompt)
    if wish is None:
        raise UnknownTask(prompt)
    if not replies and rng.random() >= tool_rate:
        return _LAST
    steps = _full(*wish) if prompt.startswith("Hello") else _small(wish[0], wish[1]["item"])
    try:
        call = next(steps)
        for text in replies:
            call = steps.send(text)
    except StopIteration:
        return _LAST
    return hermes.render([call])


def _wish(text: str) -> tuple[str, dict[str, str]] | None:
    """Return the kind of the wish in a text, with its order number ("" if not said) and item; None without a wish."""
    matches = ((kind, pattern.search(text)) for kind, pattern in _WISHES.items())
    return next(((kind, match.groupdict("")) for kind, match in matches if match), None)


def _call(name: str, **arguments: Any) -> ParsedCall:
    return ParsedCall(name, arguments)


def _ask(message: str) -> ParsedCall:
    return _call("ask_customer", message=message)


def _small(kind: str, item: str) -> ClerkSteps:
    """Handle the one wish of a verified customer (the small level)."""
    number = _number((yield _ask("Order number?")))
    match = _ORDER.match((yield _call("get_order", order=int(number)))) if number else None
    if match is None:
        return
    order = int(number)
    if kind == "cancel_order" and match[3] == "pending":
        yield _call(kind, order=order)
    elif kind == "return_item" and match[3] == "delivered":
        yield _call(kind, order=order, item=item, refund_to="card")
    else:
        yield _call("refuse", order=order, rule=_RULES[kind])


def _number(text: str) -> str:
    match = re.search(r"\d{4}", text)
    return match[0] if match else ""


def _full(kind: str, asked: dict[str, str]) -> ClerkSteps:
    """Verify the customer, then handle one wish after the other (the full level)."""
    reply = yield _ask("What are your e-mail and your postcode?")
    identity = re.search(r"e-mail is (\S+)\. My postcode is (\w+)", reply)
    if identity is None:
        return
    record = yield _call("find_customer", email=identity[1], postcode=identity[2])
    customer = re.match(r"customer (\d+), [^,]+, (\w+), voucher \d+, orders (.+)", record)
    wish: tuple[str, dict[str, str]] | None = (kind, asked)
    while wish is not None:
        if customer is None:
            order = wish[1]["order"] or _number((yield _ask("What is the order number?")))
            if not order:
                return
            yield _call("refuse", order=int(order), rule=1)
        else:
            yield from _wished(*wish, customer[2], customer[3].split(", "))
        wish = _wish((yield _ask("Is there anything else?")))


def _wished(kind: str, asked: dict[str, str], tier: str, orders: Sequence[str]) -> ClerkSteps:
    """Handle one wish, and the wish that the customer may replace it with."""
    record = None
    for number in [asked["order"]] if asked["order"] else orders:
        record = _ORDER.match((yield _call("get_order", order=int(number))))
        if record and asked["item"] in record[6]:
            break
    if record is None:
        return
    order, state, days = int(record[1]), record[3], int(record[4])
    late = state == "pending" and days > LATE_DAYS and not record[7]
    while True:
        arguments: dict[str, Any] = {"order": order}
        allowed = late if kind == "give_voucher" else state == "pending"
        if kind == "return_item":
            allowed = state == "delivered" and days <= RETURN_DAYS[tier]
        detail = ""
        if allowed and kind in _DETAILS:
            question, pattern = _DETAILS[kind]
            match = re.search(pattern, (yield _ask(question)))
            detail = match[1] if match else ""
        if kind == "exchange_item":
            arguments |= {"old_item": asked["item"], "new_item": detail}
            stock = (yield _call("get_product", product=detail)) if allowed else ""
            allowed = bool(re.search(r"[1-9]\d* in stock", stock))
        elif kind == "change_address":
            arguments["street"] = detail
        elif kind == "return_item":
            arguments |= {"item": asked["item"], "refund_to": detail}
        elif kind == "give_voucher":
            arguments["amount"] = VOUCHER[tier]
        if not allowed:
            yield _call("refuse", order=order, rule=_RULES[kind])
            return
        reply = yield _ask(f"Shall I do this: {kind.replace('_', ' ')} {', '.join(map(str, arguments.values()))}?")
        other = _wish(reply)
        if other is None:
            yield _call(kind, **arguments)
            return
        kind, asked = other
