"""The path of full_scale.sh with the tiny agent: episodes -> imitation -> curation -> a mix -> GRPO-TCR -> avg@k.

    python examples/demystify/small.py [--quick] [--folder FOLDER]

Two sources stand for the paper's four: chains of facts, and products from a file with verl's columns, as DAPO-Math has
them. The agent is imitated for too short a time on purpose, so that there is something left to learn.
"""

import argparse
import json
from pathlib import Path

from palaestra.cli import main as palaestra

SMALL = ("--max-turn-tokens=72", "--max-episode-tokens=256")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute")
    parser.add_argument("--folder", type=Path, default=Path("runs/demystify-small"))
    options = parser.parse_args()
    folder, quick = options.folder, options.quick
    folder.mkdir(parents=True, exist_ok=True)
    shown, epochs, pool, steps, tasks, samples = (1300, 4, 30, 6, 16, 8) if quick else (2600, 2, 120, 150, 48, 32)

    published = folder / "published.jsonl"
    with published.open("w") as file:
        for number in range(4000):
            a, b = divmod(number * 7919 % 10_000, 100)
            row = {
                "prompt": [{"role": "user", "content": f"What is {a} * {b}?"}],
                "reward_model": {"ground_truth": str(a * b)},
            }
            file.write(json.dumps({"data_source": "products", **row}) + "\n")
    sums = f"tasks={published}"

    run("collect", "two-hop", "--tasks", shown, "--out", folder / "hops.jsonl")
    run("collect", "calculator", "--env-options", sums, "--tasks", shown, "--out", folder / "products.jsonl")
    run("sft", folder / "hops.jsonl", folder / "products.jsonl", "--epochs", epochs, "--run", folder / "sft")
    start = folder / "sft" / "model"
    sources = {"two-hop": [], "calculator": ["--env-options", sums]}
    for name, extra in sources.items():
        run("curate", name, *extra, "--model", start, "-k", 8, "--tasks", pool, *SMALL,
            "--out", folder / f"{name}.json")  # fmt: skip
    run("train", "two-hop=3", "calculator=1", "--env-options", f"calculator.{sums}", "--model", start,
        "--curated", folder / "two-hop.json", folder / "calculator.json", "--recipe", "grpo-tcr",
        "--recipe.shaping.max-completion-length", 256, "--optimizer.learning-rate", "7e-4", "--play.ordered",
        "--play.num-prompts", 12, "--play.num-generations", 8, "--play.slots", 96, "--steps", steps,
        "--eval-tasks", 0, *(f"--play.{one[2:]}" for one in SMALL), "--run", folder / "rl")  # fmt: skip
    for name, extra in sources.items():
        run("eval", name, *extra, "--model", folder / "rl" / "model", "--against", start, "--tasks", tasks,
            "--samples", samples, *SMALL, "--json", folder / f"avg-{name}.json")  # fmt: skip


def run(*words: object) -> None:
    """A command, as a user gives it."""
    print("palaestra", *words, flush=True)
    if status := palaestra([str(word) for word in words]):
        raise SystemExit(status)


if __name__ == "__main__":
    main()
