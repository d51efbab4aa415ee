"""A service desk: a policy, a database that tools read and write, and a user who talks. Needs no torch.

python examples/service_desk.py
"""

import re
from copy import deepcopy

from palaestra.envs import ScriptedUser, Task, TextEnv, ToolEnv, ToolError, Toolkit, conversation, tool


class Orders(Toolkit):
    def start(self, task, rng):
        self.orders = deepcopy(task.data["orders"])

    @tool
    def get_order(self, number: str) -> dict:
        """See an order: its price and its state."""
        if number not in self.orders:
            raise ToolError(f"there is no order {number}")
        return self.orders[number]

    @tool
    def cancel_order(self, number: str) -> str:
        """Cancel an order and pay it back."""
        self.get_order(number)["state"] = "cancelled"
        return "cancelled"

    def final(self):
        return {"orders": self.orders}


class Desk(ToolEnv):
    """Cancel an order if the policy allows it, and tell the customer its price."""

    system = "You are a shop's clerk. Ask for the number of the order, cancel it if it is pending, and tell its price."
    toolkits = (Orders,)
    # Or a model that plays the user, from data["instructions"]: user = ModelUser("http://localhost:8000/v1", "MODEL")
    user = ScriptedUser(lambda task: [f"It is order {task.data['number']}."])

    def task(self, rng):
        number, price = str(rng.integers(100, 1000)), str(rng.integers(10, 90))
        orders = {number: {"price": price, "state": str(rng.choice(["pending", "shipped"]))}}
        data = {"number": number, "orders": orders, "instructions": f"You want to cancel your order {number}."}
        return Task(f"I am customer {rng.integers(10**6)}. Please cancel my order.", data=data)

    def reward(self, attempt):
        number = attempt.task.data["number"]
        before, after = (world["orders"][number] for world in (attempt.task.data, attempt.final))
        right = "cancelled" if before["state"] == "pending" else "shipped"
        told = " ".join(text for role, text in conversation(attempt) if role == "assistant")
        return float(after["state"] == right and set(re.findall(r"\d+", told)) - {number} == {before["price"]})


if __name__ == "__main__":
    env = TextEnv(Desk(), render_mode="human")
    env.reset(seed=4)
    (number,) = re.findall(r"\d+", env.step("Which order is it?")[0])
    price = env.step(env.call("get_order", number=number))[0][11:13]
    env.step(env.call("cancel_order", number=number))
    env.step(f"It is cancelled, and you get {price} back.")
