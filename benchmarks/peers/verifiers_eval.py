"""Play calculator episodes of a served model with verifiers: an environment with a tool; no results are saved."""

import asyncio
import os

import verifiers as vf
from datasets import Dataset
from eval_tasks import calculate, measured, questions
from line import answer_requests

os.environ["OPENAI_API_KEY"] = "none"


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: The expression.
    """
    return calculate(expression)


def right(completion, answer, **_):
    return float(
        str(completion[-1].get("content") if isinstance(completion[-1], dict) else completion[-1].content) == answer
    )


def play(url, episodes, at_once):
    rows = [{"question": question, "answer": answer} for question, answer in questions(episodes)]
    env = vf.ToolEnv(
        tools=[calculator], max_turns=4, eval_dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right])
    )

    def played():
        config = vf.ClientConfig(api_base_url=url, api_key_var="OPENAI_API_KEY")
        results = asyncio.run(
            env.evaluate(
                config,
                "fake",
                num_examples=episodes,
                rollouts_per_example=1,
                max_concurrent=at_once,
                sampling_args={"max_tokens": 100},
            )
        )
        return results["metadata"]["avg_reward"]

    return measured(played, episodes)


if __name__ == "__main__":
    answer_requests(("verifiers",), {"play": play})
