"""The path of full_scale.sh with the tiny agent: episodes -> imitation -> a progressive reward with VSPO -> avg@k.

    python examples/prs_vspo/small.py [--quick] [--folder FOLDER]

Questions of two look-ups stand for HotpotQA's. The agent is imitated for too short a time on purpose: many groups
are dead, which is what VSPO replaces, and some calls are wrong, which is what the first stages pay for.
"""

import argparse
from pathlib import Path

from palaestra.cli import main as palaestra


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute")
    parser.add_argument("--folder", type=Path, default=Path("runs/prs-vspo-small"))
    options = parser.parse_args()
    folder, quick = options.folder, options.quick
    shown, epochs, steps, tasks, samples = (1300, 4, 8, 24, 8) if quick else (2600, 2, 150, 64, 32)

    folder.mkdir(parents=True, exist_ok=True)
    run("collect", "two-hop", "--tasks", shown, "--out", folder / "teacher.jsonl")
    run("sft", folder / "teacher.jsonl", "--epochs", epochs, "--run", folder / "sft")
    start, small = folder / "sft" / "model", {"max-turn-tokens": 72, "max-episode-tokens": 256}
    run(
        *("train", "two-hop", "--model", start, "--recipe", "vspo-prs", "--optimizer.learning-rate", "7e-4"),
        *("--recipe.shaping.max-completion-length", 256, "--play.num-prompts", 16, "--play.num-generations", 5),
        *("--play.slots", 80, "--play.ordered", "--steps", steps, "--eval-tasks", 0, "--run", folder / "rl"),
        *(f"--play.{name}={value}" for name, value in small.items()),
    )
    run(
        *("eval", "two-hop", "--model", folder / "rl" / "model", "--against", start, "--tasks", tasks),
        *("--samples", samples, "--json", folder / "avg.json"),
        *(f"--{name}={value}" for name, value in small.items()),
    )


def run(*words: object) -> None:
    """A command, as a user gives it."""
    print("palaestra", *words, flush=True)
    if status := palaestra([str(word) for word in words]):
        raise SystemExit(status)


if __name__ == "__main__":
    main()
