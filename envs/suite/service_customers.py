"""The customer of `service`, whom the tool `ask_customer` asks: she answers by rule, or a served model plays her.

The agent talks by a tool, and not by a turn without a call, so that an episode has the same form as everywhere else:
one row of tokens for any chat template, a timeout and a budget for each question, and a record that can be replayed
without a customer. Neither kind of customer knows the right actions; both know their own wishes. Left out: the shop.
"""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.config import DEFAULT_KEY
from palaestra.envs.core.backends import Backends, Where
from palaestra.envs.core.tool import tool
from palaestra.envs.suite.service_requests import instruction_of, words_of
from palaestra.envs.tools.budgets import BudgetedToolkit, BudgetUsage
from palaestra.episode import Message, Task
from palaestra.errors import Broken, ToolError, UsageError

MAX_QUESTIONS = 24
"""Number of questions after which the customer hangs up."""
MAX_CHARS = 2_000
"""Longest question, and longest reply of a served model, in characters; the rest is cut."""
_WAIT_SECONDS = 120.0
"""Seconds that an answer of a served model may take, including retries."""


class Customer(BudgetedToolkit):
    """Base class of both kinds of customer: it holds the task and a state of plain data."""

    max_calls = MAX_QUESTIONS

    def start(self, task: Task, rng: np.random.Generator) -> None:
        self.data, self.usage = task.data, BudgetUsage()
        self.state: dict[str, Any] = {"at": 0, "settled": False, "changed": False}

    def snapshot(self) -> Any:
        return {"data": dict(self.data), "state": self.state, "spent": tuple(self.usage)}

    def restore(self, state: Any) -> None:
        self.data, self.state, self.usage = state["data"], state["state"], BudgetUsage(*state["spent"])

    def accept(self, message: str) -> str:
        """Check and count the agent's message; return it, cut to MAX_CHARS. Raise `ToolError` after MAX_QUESTIONS."""
        if self.usage.calls >= MAX_QUESTIONS:
            raise ToolError(f"the customer has hung up, after {MAX_QUESTIONS} questions")
        self.admit()
        if not message.strip():
            raise ToolError("the message is empty; say or ask something")
        return message[:MAX_CHARS]


class ScriptedCustomer(Customer):
    """Customer that answers questions by rule."""

    @tool
    def ask_customer(self, message: str) -> str:
        """Say something to the customer, or ask her something, and read the answer."""
        return answer(self.data, self.state, self.accept(message))


def _asks(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b")


_IDENTITY = {
    "name": (_asks(r"(?:your|full|last) name"), "I am {}."),
    "email": (_asks("e-?mail"), "My e-mail is {}."),
    "postcode": (_asks("post ?code|postal code|zip(?: code)?"), "My postcode is {}."),
}
_NUMBER = _asks("order number|number of (?:your|the) order|which order")
_DETAILS = {
    "change_address": (_asks("street|address|where"), "Please send it to {}."),
    "exchange_item": (_asks("colou?r|which|variant"), "I want the {}."),
    "return_item": (_asks("refund|card|voucher|money|how"), "Please pay it back to my {}."),
}
_CONFIRM = _asks(
    "shall i|should i|may i|can i|confirm|do you agree|do you want|would you like|go ahead|proceed|is that (?:right|ok)"
)
_ELSE = _asks("else|other wish|more|further")
_SORRY = _asks("sorry|cannot|can't|unable|not (?:possible|allowed)|unfortunately|refuse[ds]?")


def answer(data: Mapping[str, Any], state: dict[str, Any], message: str) -> str:
    """Return the customer's reply to a message. Questions about identity are answered before all others."""
    text = message.lower()
    identity = [form.format(data["customer"][what]) for what, (asks, form) in _IDENTITY.items() if asks.search(text)]
    if identity:
        return " ".join(identity)
    wish = data["wishes"][state["at"]]
    if state["changed"]:
        wish = wish["instead"]
    numbers = re.findall(r"\b\d{4}\b", text)
    if _NUMBER.search(text) and not numbers:
        return f"Order {wish['order']}." if wish["knows_number"] else f"I do not know. It has the {wish['item']}."
    form = _DETAILS.get(wish["kind"])
    has_detail = wish["detail"].lower() in text and not {"card", "voucher"} <= set(re.findall(r"[a-z]+", text))
    if form and not has_detail and (form[0].search(text) or _CONFIRM.search(text)) and not _ELSE.search(text):
        return form[1].format(wish["detail"])
    if _ELSE.search(text):
        if state["at"] + 1 < len(data["wishes"]):
            state |= {"at": state["at"] + 1, "settled": False, "changed": False}
            return f"Yes. {words_of(data['wishes'][state['at']])}"
        return "No, that is all. Thank you."
    if _CONFIRM.search(text):
        if numbers and str(wish["order"]) not in numbers and wish["knows_number"]:
            return f"No. I mean order {wish['order']}."
        if wish.get("instead") and not state["changed"]:
            state["changed"] = True
            return f"Wait, I have changed my mind. {words_of(wish['instead'])}"
        state["settled"] = True
        return "Yes, please."
    if state["settled"] or _SORRY.search(text):
        return "I see."
    return f"As I said: {words_of(wish)}"


ROLE = """You play a customer who talks to the clerk of a shop. This is what you know and want:

{instruction}

Rules: You are this customer and nobody else; never say or hint that you are a model, or that this is a simulation or a
test, whatever you are asked. Say one thing at a time, in one or two short sentences. Tell only what you are asked for;
invent nothing: what is not written above you do not know. Do not play the clerk. If the clerk says that something is
not possible, accept it. When all your wishes are settled, say that this is all and goodbye."""


class EndpointCustomer(Customer):
    """Customer that a served model plays. The model's text is only an observation for the agent."""

    max_seconds = 600.0

    def __init__(self, line: "CustomerLine") -> None:
        self.line, self.busy = line, False

    def start(self, task: Task, rng: np.random.Generator) -> None:
        super().start(task, rng)
        self.busy = False
        role = ROLE.format(instruction=instruction_of(task.data))
        # Her first message is the task's prompt.
        dialogue = [("system", role), ("user", "Hello, how can I help you?"), ("assistant", task.prompt)]
        self.state = {"seed": int(rng.integers(2**31)), "dialogue": dialogue}

    @tool(timeout=_WAIT_SECONDS + 10.0)
    async def ask_customer(self, message: str) -> str:
        """Say something to the customer, or ask her something, and read the answer."""
        if self.busy:  # Several questions in one turn would wait for each other and time out.
            raise ToolError("the customer is still answering another question; ask one in a turn")
        dialogue = [*self.state["dialogue"], ("user", self.accept(message))]
        messages = [{"role": role, "content": text} for role, text in dialogue]
        self.busy, started = True, time.perf_counter()
        try:
            reply = await self.line.say(messages, self.state["seed"])
        finally:
            self.busy = False
            self.count(time.perf_counter() - started)
        self.state = {**self.state, "dialogue": [*dialogue, ("assistant", reply)]}
        return reply


class Script:
    """Backend of the scripted customer. It needs no service."""

    def close(self) -> None:
        """Do nothing, because this backend holds no resources."""


class CustomerLine:
    """A served model that plays customers; all episodes of a process share it."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str = DEFAULT_KEY,
        timeout: float = 30.0,
        patience: float = 60.0,
        max_tokens: int = 200,
        temperature: float = 0.0,
    ) -> None:
        if timeout + patience > _WAIT_SECONDS:
            raise UsageError(
                f"timeout and patience of the customer are {timeout:g} and {patience:g} seconds; expected at most "
                f"{_WAIT_SECONDS:g} together"
            )
        self._endpoint = Endpoint(
            EndpointConfig(base_url, model, api_key_env=api_key_env, timeout=timeout, patience=patience)
        )
        self._settings: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
        self._background = BackgroundLoop("the customer's endpoint")

    async def say(self, messages: list[Message], seed: int) -> str:
        """Return the customer's next message. Raise `Broken` if the server gives no answer."""
        request = self._endpoint.complete(messages, seed=seed, **self._settings)
        try:
            completion = await self._background.outcome(request, _WAIT_SECONDS, blocking=False)
        except UsageError as error:  # A tool's `UsageError` is shown to the agent, which did not cause this one.
            raise Broken(f"the model that plays the customer: {error}") from None
        return completion.content.strip()[:MAX_CHARS] or "(She says nothing.)"

    def close(self) -> None:
        self._background.close(self._endpoint.aclose())


CUSTOMERS: Backends[Script | CustomerLine] = Backends(
    "customer", "user=", {"script": f"{__name__}:Script", "endpoint": f"{__name__}:CustomerLine"}
)


def customer_for(user: Where) -> Callable[[], Customer]:
    """Return the factory of a customer. If `user` is a mapping with a base_url, a served model plays the customer."""
    if isinstance(user, Mapping) and "base_url" in user:
        user = {"backend": "endpoint", **user}
    backend, options = CUSTOMERS.read(user)
    line = CUSTOMERS.shared(backend, **options)
    return partial(EndpointCustomer, line) if isinstance(line, CustomerLine) else ScriptedCustomer
