"""Raise the tiny agent and train it, without the command line: about a minute on one core.

python examples/train_in_python.py

Stop it and start it again: it goes on where it was.
"""

from palaestra.trainers import Run, tiny_config, train


def main() -> None:
    config = tiny_config("palaestra/TwoHop-v0", seed=0, steps=20, eval_tasks=128)
    with Run("runs/train-in-python", config) as run:
        for step in train(run, on_progress=lambda progress: print(progress.note, end="\n" if progress.note else "")):
            print(f"step {step.step}: success {step.metrics['rewards/success/mean']:.2f}")
        before, after = (run.summary[when]["sampled"]["success"] for when in ("before", "after"))
    print(f"success on held-out tasks: {before:.2f} before, {after:.2f} after; the model: {run.model}")


if __name__ == "__main__":
    main()
