"""An environment whose tool's server is gone for every fourth task, and the turns of one who solves the others."""

import json
import re

from palaestra.envs import Task, ToolEnv, tool
from palaestra.errors import Broken

ENV_ID = "test/Lookup-v0"


class Lookup(ToolEnv):
    """Look a number up, and say what is found."""

    system = "Use the tool."
    max_turns = 3

    def task(self, rng):
        number = int(rng.integers(1000))
        return Task(prompt=f"Look up {number} and say it.", answer=f"word{number}")

    @tool
    def look_up(self, number: int, loud: bool = False) -> str:
        """Look a number up.

        Args:
            number: The number.
            loud: Whether the word comes in capitals.
        """
        if is_gone(number):
            raise Broken("the server is gone")
        return f"word{number}"

    def reward(self, attempt):
        said = [message["content"] for message in attempt.messages if message["role"] == "assistant"]
        return float((attempt.answer or "".join(said[-1:])).strip() == attempt.task.answer)


def is_gone(number):
    return number % 4 == 0


def number_of(text):
    return int(re.findall(r"Look up (\d+)", text)[-1])


def turn(texts):
    """The next turn for the texts of a dialogue so far: the answer, or the arguments of a call as JSON."""
    results = re.findall(r"\bword\d+", " ".join(texts))
    return (results[-1], None) if results else ("", json.dumps({"number": number_of(" ".join(texts))}))
