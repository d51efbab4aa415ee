"""Play calculator episodes of a served model with palaestra, as `palaestra eval` does."""

import json
import tempfile
from contextlib import closing
from pathlib import Path

from eval_tasks import calculate, measured, questions
from line import answer_requests

import palaestra
from palaestra.agents import Agent, EndpointPolicy
from palaestra.endpoint import EndpointConfig
from palaestra.record import Record, Recorder
from palaestra.trainers.evaluation.evaluate import evaluate


def play(url, episodes, at_once):
    rows = [{"prompt": question, "answer": answer, "split": "eval"} for question, answer in questions(episodes)]
    assert all(calculate(row["prompt"][8:-1]) == row["answer"] for row in rows[:3])
    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder) / "tasks.jsonl"
        tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = {"split": "eval", "tasks": str(tasks)}

        def played():
            config = EndpointConfig(url, "fake", max_concurrent=at_once)
            places = palaestra.arena("palaestra/Calculator-v0", at_once, **options)
            with closing(EndpointPolicy(config)) as policy, closing(places), Recorder(Path(folder) / "log") as log:
                ended = lambda episode: log.add(Record("palaestra/Calculator-v0", episode, options, "fake"))  # noqa: E731
                return evaluate(Agent(policy), places, tasks=episodes, ended=ended)[0].success

        return measured(played, episodes)


if __name__ == "__main__":
    answer_requests(("palaestra",), {"play": play})
