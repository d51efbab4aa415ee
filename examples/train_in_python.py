"""Raise the tiny agent and train it, without the command line: about a minute on one core.

python examples/train_in_python.py

Stop it and start it again: it goes on where it was.
"""

from pathlib import Path

from palaestra.trainers.config import tiny_config
from palaestra.trainers.lesson import keep_model, measure, measure_before, open_arena, practise, prepare
from palaestra.trainers.progress import result_of
from palaestra.trainers.run import Run

FOLDER = Path("runs/train-in-python")


def main() -> None:
    config = tiny_config("palaestra/TwoHop-v0", seed=0, steps=20, eval_tasks=128)
    with Run.reopened(FOLDER, config) if (FOLDER / "config.json").exists() else Run(FOLDER, config) as run:
        learner = result_of(prepare(run))
        before = measure_before(run, learner)
        arena = open_arena(run.config)
        for progress in practise(run, learner, arena):
            print(f"step {progress.step}: success {progress.metrics['rewards/success/mean']:.2f}")
        arena.close()
        after = measure(run, learner.agent, "after")
        keep_model(run, learner)
    if before is not None:
        print(f"success on held-out tasks: {before.sampled.success:.2f} before, {after.sampled.success:.2f} after")


if __name__ == "__main__":
    main()
