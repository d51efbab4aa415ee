"""The path of full_scale.sh with the tiny agent: a pool -> imitation -> labels -> a judge -> Reagent-U with it.

    python examples/reagent/small.py [--quick] [--folder FOLDER]

Products stand for the paper's questions, and a rule for its teacher and for the model that labels episodes. Unlike a
large model the tiny agent does not know what a second turn of the user is, so half of what it imitates are second
attempts that have read a critique. The judge is as small; it is served to the training as a large one would be.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.cli import main as command
from palaestra.episode import Episode, Message, Start
from palaestra.judging.rule import by_rule
from palaestra.record import Record, write
from palaestra.trainers.batch import Scored
from palaestra.trainers.samplers.reagent_u import second_start

ENV, PREFIX_TOKENS, VERDICT_TOKENS, SEED_OF_SECONDS = "palaestra/Calculator-v0", 160, 160, 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute or two")
    parser.add_argument("--folder", type=Path, default=Path("runs/reagent-small"))
    options = parser.parse_args()
    folder, quick = options.folder, options.quick
    folder.mkdir(parents=True, exist_ok=True)
    shown, judged, lessons, steps, tasks = (900, 140, 4, 4, 24) if quick else (1500, 400, 4, 30, 64)

    publish(folder)
    run("pool", folder / "products.jsonl", folder / "more.jsonl", "--against", folder / "test.jsonl",
        "--out", folder / "pool.jsonl")  # fmt: skip
    pool = ("--env-options", f"tasks={folder / 'pool.jsonl'}")
    demonstrate(folder / "shown.jsonl", str(folder / "pool.jsonl"), shown)
    run("sft", folder / "shown.jsonl", "--epochs", 4, "--batch-rows", 16, "--run", folder / "sft")
    start = folder / "sft" / "model"

    short = ("--max-turn-tokens", 48, "--max-episode-tokens", 384)
    run("collect", "calculator", *pool, "--model", start, "--tasks", judged, "--samples", 2, *short,
        "--out", folder / "own.jsonl")  # fmt: skip
    run("judge", folder / "own.played.jsonl", "--out", folder / "labels.jsonl")
    run("sft", folder / "labels.taught.jsonl", "--epochs", lessons, "--batch-rows", 8, "--run", folder / "judge-sft")
    labels = ("--env-options", f"tasks={folder / 'labels.jsonl'}")
    run("train", "judge", *labels, "--model", folder / "judge-sft" / "model", "--recipe", "reagent-none",
        "--recipe.sampler", "uniform", "--play.num-prompts", 4, "--play.num-generations", 4, "--play.slots", 16,
        "--play.max-turn-tokens", VERDICT_TOKENS, "--play.max-episode-tokens", 2048,
        "--optimizer.learning-rate", "1e-4", "--steps", 2, "--eval-tasks", 0, "--run", folder / "judge")  # fmt: skip
    run("eval", "judge", *labels, "--model", folder / "judge" / "model", "--tasks", tasks,
        "--json", folder / "judge.json")  # fmt: skip

    with served(folder / "judge" / "model") as url:
        run("train", "calculator", *pool, "--model", start, "--recipe", "reagent-u", "--recipe.judge.url", url,
            "--recipe.sampler.max-prefix-tokens", PREFIX_TOKENS, "--recipe.judge.verdict-tokens", VERDICT_TOKENS,
            "--recipe.shaping.max-completion-length", 160, "--play.max-turn-tokens", 48, "--play.ordered",
            "--play.max-episode-tokens", 384, "--play.num-prompts", 8, "--play.num-generations", 4,
            "--play.slots", 64, "--play.max-broken-share", 0.5, "--recipe.judge.tries", 3,
            "--optimizer.learning-rate", "5e-4", "--steps", steps, "--eval-tasks", 0,
            "--run", folder / "rl")  # fmt: skip
        run("eval", "calculator", *pool, "--model", start, "--critic", url, "--tasks", tasks, *short,
            "--json", folder / "reagent-c.json")  # fmt: skip
    run("eval", "calculator", *pool, "--model", folder / "rl" / "model", "--against", start, "--tasks", tasks,
        "--samples", 8, *short, "--json", folder / "avg.json")  # fmt: skip


def publish(folder: Path) -> None:
    """Files in the columns of the paper's own: two for training, which share questions, and a test."""
    factors = [divmod(number * 7919 % 10_000, 100) for number in range(5000)]
    rows = [{"question": f"What is {a} * {b}?", "ground_truth": str(a * b)} for a, b in factors]
    for name, part in (("products", rows[:3500]), ("more", rows[3000:]), ("test", rows[::50])):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))


def demonstrate(path: Path, pool: str, tasks: int) -> None:
    """First attempts, of which half guess, and as many second ones that have read a rule's critique of them."""
    arena, seconds, script = palaestra.arena(ENV, 16, tasks=pool), [], palaestra.demonstrator(ENV)
    guessing = Agent(ScriptedPolicy(partial(script, tool_rate=0.6)))
    firsts = list(play(guessing, arena, [Start(task, task, task) for task in range(tasks)]))
    for first in firsts:
        said = by_rule(first.attempt, first.reward == 1, has_tools=True).critique
        seconds.append(second_start(Scored(first, remarks={"critique": said}), SEED_OF_SECONDS, PREFIX_TOKENS))
    again = Agent(ScriptedPolicy(lambda messages, rng: script(anew(messages), rng)))
    played = [*firsts, *map(as_seen, play(again, arena, seconds))]
    write(path, [Record(ENV, episode, {"tasks": pool}) for episode in played])
    arena.close()


def anew(messages: Sequence[Message]) -> list[Message]:
    """The question, and what came after the request to solve it again."""
    asked = [place for place, message in enumerate(messages) if message["role"] == "user"]
    return [messages[asked[0]], *messages[asked[-1] + 1 :]]


def as_seen(episode: Episode) -> Episode:
    """With the attempt before it as turns of its own, for `sft` leaves out what begins after a prefix."""
    attempt = replace(episode.attempt, messages=episode.start.as_seen(episode.attempt.messages))
    return replace(episode, start=replace(episode.start, prefix=()), attempt=attempt)


@contextmanager
def served(model: Path) -> Iterator[str]:
    """Where `palaestra serve rrm` answers in a process of its own."""
    asked = [sys.executable, "-m", "palaestra", "serve", "rrm", str(model), "--port", "0"]
    print("palaestra", *asked[3:], flush=True)
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = server.stdout.readline()
            yield ready.split()[2]
        finally:
            server.terminate()


def run(*words: object) -> None:
    """A command, as a user gives it."""
    print("palaestra", *words, flush=True)
    if status := command([str(word) for word in words]):
        raise SystemExit(status)


if __name__ == "__main__":
    main()
