"""The first version of `service`: the clerk asks the customer with a tool, and a turn without a call ends the episode.

It is kept until the next release. Left out: all that both versions share (`service`).
"""

from functools import partial
from typing import Any

import numpy as np

from palaestra.envs.core.backends import Where
from palaestra.envs.core.tool import tool
from palaestra.envs.core.toolkit import Toolkit
from palaestra.envs.suite.service import POLICY, ServiceEnv
from palaestra.envs.users import MAX_CHARS, ModelUser
from palaestra.episode import Attempt, Message, Task
from palaestra.errors import Broken, ToolError, UsageError

_SYSTEMS = {
    "full": POLICY.replace(
        "A turn without a call is said to the customer.",
        "Talk to the customer with the tool ask_customer only; a turn without a call ends the conversation.",
    ),
    "small": "Ask for the number with ask_customer. Cancel only pending orders, else refuse, rule 2. Return only "
    "delivered ones to the card, else refuse, rule 5.",
}


class AskCustomer(Toolkit):
    """The tool that asks the customer: the messages that it passes on, and the replies."""

    def __init__(self, customer: Any) -> None:
        """`customer` is called like `ToolEnv.user`."""
        self.customer = customer

    def start(self, task: Task, rng: np.random.Generator) -> None:
        self.task, self.busy, self.messages = task, False, [{"role": "user", "content": task.prompt}]

    @tool
    def ask_customer(self, message: str) -> str:
        """Say something to the customer, or ask her something, and read the answer."""
        return self._reply(message, self.customer(self._attempt(message)))

    def _attempt(self, message: str) -> Attempt:
        if not message.strip():
            raise ToolError("the message is empty; say or ask something")
        turn: Message = {"role": "assistant", "content": message}
        return Attempt(self.task, (*self.messages, turn), message[:MAX_CHARS], (), 0)

    def _reply(self, message: str, reply: str | None) -> str:
        if reply is None:
            raise ToolError("the customer has hung up")
        self.messages += [{"role": "assistant", "content": message}, {"role": "user", "content": reply}]
        return reply

    def snapshot(self) -> Any:
        return {"task": self.task, "messages": self.messages}

    def restore(self, state: Any) -> None:
        self.task, self.messages, self.busy = state["task"], state["messages"], False


class AskModel(AskCustomer):
    """The same tool for a customer that a served model plays."""

    @tool(timeout=60.0)
    async def ask_customer(self, message: str) -> str:  # type: ignore[override]
        """Say something to the customer, or ask her something, and read the answer."""
        if self.busy:  # Each question needs the answer to the one before.
            raise ToolError("the customer is still answering another question; ask one in a turn")
        self.busy = True
        try:
            return self._reply(message, await self.customer(self._attempt(message)))
        except UsageError as error:  # A tool's `UsageError` is shown to the agent, which did not cause this one.
            raise Broken(f"the model that plays the customer: {error}") from None
        finally:
            self.busy = False


class ServiceV0(ServiceEnv):
    """Serve a customer of a shop by its policy, with tools over its database, one of which asks the customer."""

    def __init__(
        self, split: str = "train", tasks: str | None = None, level: str = "full", user: Where = "script"
    ) -> None:
        super().__init__(split, tasks, level, user)
        self.system = _SYSTEMS[level]
        customer = vars(self).pop("user")  # So a turn without a call is the answer.
        ask = AskModel if isinstance(customer, ModelUser) else AskCustomer
        self.toolkits = (*self.toolkits, partial(ask, customer))
