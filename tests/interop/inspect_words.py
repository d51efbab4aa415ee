"""A task of inspect: a tool tells the word of a number, and the scorer compares the answer with it."""

from framework_agents import SYSTEM, word_of
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import exact
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

from palaestra.errors import Broken


@tool
def look_up():
    async def execute(number: int) -> str:
        """Look up.

        Args:
            number: The number.
        """
        if number % 10 == 0:
            raise Broken("the server is gone")
        return word_of(number)

    return execute


@task
def words(rows: int = 60):
    numbers = range(100, 100 + rows)
    samples = [Sample(f"Which word has {number}?", target=word_of(number), id=number) for number in numbers]
    return Task(samples, solver=[system_message(SYSTEM), use_tools(look_up()), generate()], scorer=exact())
