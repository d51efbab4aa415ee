"""An environment of verifiers: a tool tells the word of a number, and a rubric compares the answer with it."""

import verifiers as vf
from datasets import Dataset
from framework_agents import SYSTEM, word_of


def look_up(number: int) -> str:
    """Look up."""
    if number % 10 == 0:
        raise vf.InfraError("the server is gone")
    return word_of(number)


def is_right(completion, answer) -> float:
    return float(bool(completion) and completion[-1].content == answer)


def load_environment(rows: int = 60, stop_errors=(vf.InfraError,)) -> vf.Environment:
    numbers = range(100, 100 + rows)
    columns = {"question": [f"Which word has {n}?" for n in numbers], "answer": [word_of(n) for n in numbers]}
    rubric = vf.Rubric([is_right])
    return vf.ToolEnv(
        [look_up],
        max_turns=4,
        dataset=Dataset.from_dict(columns),
        system_prompt=SYSTEM,
        rubric=rubric,
        stop_errors=list(stop_errors),
    )
