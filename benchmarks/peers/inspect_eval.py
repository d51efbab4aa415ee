"""Play calculator episodes of a served model with inspect_ai: a task with a tool, whose log is written to a folder."""

import tempfile

from eval_tasks import calculate, measured, questions
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from line import answer_requests


@tool
def calculator():
    async def execute(expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: The expression.
        """
        return calculate(expression)

    return execute


def play(url, episodes, at_once):
    samples = [Sample(input=question, target=answer) for question, answer in questions(episodes)]

    def played():
        model = get_model("openai/fake", base_url=url, api_key="none", memoize=False, responses_api=False)
        task = Task(dataset=MemoryDataset(samples), solver=[use_tools(calculator()), generate()], scorer=includes())
        with tempfile.TemporaryDirectory() as folder:
            (log,) = eval(
                task,
                model=model,
                max_connections=at_once,
                max_samples=at_once,
                log_dir=folder,
                display="none",
                log_level="error",
            )
            if log.status != "success":
                raise RuntimeError(f"{log.status}: {log.error.message if log.error else ''}")
            return log.results.scores[0].metrics["accuracy"].value

    return measured(played, episodes)


if __name__ == "__main__":
    answer_requests(("inspect_ai",), {"play": play})
