"""`palaestra judge FILES --out LABELS.jsonl`: label recorded episodes with verdicts, to train a reward model on them.

    LABELS.jsonl         one task of `Judge-v0` per line: its prompt shows the episode, its answer is the score
    LABELS.taught.jsonl  the teacher's verdicts on training tasks as episodes, for `palaestra sft`

The same command again labels only the episodes without a label. Left out: the prompt of a judge (`palaestra.judging`),
and whole games: the episode of each seat is judged alone.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.causes import BROKEN, Causes
from palaestra.cli.display import note, show_line, table
from palaestra.cli.episodes import GameReader
from palaestra.cli.output import Reported, require_writable, run_reported
from palaestra.endpoint.config import address_of
from palaestra.episode import Episode, Start
from palaestra.errors import Broken, UsageError
from palaestra.judging.prompt import episode_prompt
from palaestra.judging.rule import by_rule
from palaestra.judging.verdict import Verdict, written
from palaestra.record import Record, write
from palaestra.registry import arena
from palaestra.trainers.run.atomic_files import write_text

JUDGE = "palaestra/Judge-v0"
_HELD_OUT = 5
"""One of this many tasks is for measuring, with all its episodes."""
_PEERS = 16
"""Maximum number of other episodes of a task with which a score is compared."""
Label = dict[str, Any]


@dataclass(frozen=True)
class JudgeOptions(Reported):
    """Label recorded episodes with verdicts."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """File for the labels, LABELS.jsonl."""
    teacher: tuple[str, ...] = ()
    """Base URLs of the servers of a model that judges, without `/chat/completions`. If there is none, a rule judges: it
    knows the outcome, and counts calls that failed or were repeated."""
    teacher_model: str = "rrm"
    """Name of the model on these servers."""
    read_chars: int = 48_000
    """Maximum characters of an episode that a judge is shown."""

    def __post_init__(self) -> None:
        if self.out.suffix != ".jsonl":
            raise UsageError(f"--out is {self.out}; expected a name that ends in .jsonl")
        for url in self.teacher:
            address_of(url, "--teacher")
        require_writable("--out", self.out)


def run(arguments: Sequence[str]) -> int:
    """Write the labels. Return 1 if a teacher gave no verdict on some episodes."""
    return run_reported(JudgeOptions, "judge", arguments, _judge)


def _judge(options: JudgeOptions, figures: dict[str, Any]) -> int:
    labels, counts = _labelled(options)
    _with_peers(labels)
    write_text(options.out, "".join(f"{json.dumps(label)}\n" for label in labels))
    counts["taught"] = _teach(options.out, labels)
    counts["solved"] = sum(label["outcome"] >= 1 for label in labels)
    if labels and counts["solved"] in (0, len(labels)):
        note(
            f"{'all' if counts['solved'] else 'none'} of these episodes are solved: a judge that learns from them "
            "sees no difference; label what was played whole, as collect keeps it in FILE.played.jsonl"
        )
    figures |= counts
    Console().print(table("labels", {name: (str(count),) for name, count in counts.items()}, ("",)))
    return int(bool(counts["without a verdict"]))


def _labelled(options: JudgeOptions) -> tuple[list[Label], dict[str, int]]:
    """Return a label for each episode that has a reward, also the labels already in the file, and the counts."""
    questions: dict[str, tuple[Record, str]] = {}
    broken = same = 0
    for _, record in GameReader(options.files, Console(stderr=True)):
        if record.episode.reward is None:
            broken += 1
            continue
        question = str(episode_prompt(record.episode, options.read_chars)[1]["content"])
        name = blake2b(question.encode(), digest_size=12).hexdigest()
        same += name in questions
        questions.setdefault(name, (record, question))
    if not questions:
        raise UsageError(f"no episode in {', '.join(map(str, options.files))} has a reward: nothing can be labelled")
    labels_before = _known(options.out, questions)
    new = {name: pair for name, pair in questions.items() if name not in labels_before}
    if options.teacher:
        verdicts = _request_verdicts(options, new)
    else:
        verdicts = {name: _judge_by_rule(record.episode) for name, (record, _) in new.items()}
    labels = [
        labels_before.get(name) or _label(name, *pair, verdicts[name])
        for name, pair in questions.items()
        if name in labels_before or name in verdicts
    ]
    missing = len(questions) - len(labels)
    counts = {"labelled": len(labels), "new": len(verdicts), "without a verdict": missing}
    return labels, counts | {"duplicates": same, "BROKEN": broken}


def _known(path: Path, questions: Mapping[str, Any]) -> dict[str, Label]:
    """Return the labels in the file, by id. Raise a UsageError if it has labels of other episodes."""
    if not path.exists():
        return {}
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        labels = {str(row["id"]): row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no file of labels: {error}; name another --out") from error
    if other := [name for name in labels if name not in questions]:
        raise UsageError(
            f"{path} holds labels of other episodes: {len(other)} of {len(labels)}, such as {other[0]}; name the "
            "episode files (and --read-chars) that they were made of, or another --out"
        )
    return labels


def _judge_by_rule(episode: Episode) -> Verdict:
    return by_rule(episode.attempt, episode.parts.get("success", 0.0) >= 1, bool(episode.tools))


def _request_verdicts(options: JudgeOptions, new: Mapping[str, tuple[Record, str]]) -> dict[str, Verdict]:
    """Return a teacher's verdicts by label id. If some are missing, the same command requests them again."""
    from palaestra.trainers.reward.reward_model import ReasoningReward

    settings = ReasoningReward(options.teacher, options.teacher_model, read_chars=options.read_chars)
    verdicts: dict[str, Verdict] = {}
    faults: list[str] = []

    async def request_all() -> None:
        at_once = asyncio.Semaphore(settings.at_once)

        async def request(name: str, record: Record) -> None:
            async with at_once:
                try:
                    verdicts[name] = await judge.client.ask(episode_prompt(record.episode, options.read_chars))
                except Broken as error:
                    faults.append(str(error))

        await asyncio.gather(*(request(name, record) for name, (record, _) in new.items()))

    with closing(settings.opened()) as judge:
        judge.check()
        asyncio.run(request_all())
    if faults:
        causes = Causes([{BROKEN: Counter(faults)}]).of_kind(BROKEN)
        show_line(Console(stderr=True), f"{len(faults)} episodes have no verdict: {causes}")
    return verdicts


def _label(name: str, record: Record, question: str, verdict: Verdict) -> Label:
    task = f"{record.env_id}/{record.episode.start.task}"
    held_out = int.from_bytes(blake2b(task.encode(), digest_size=4).digest(), "big") % _HELD_OUT == 0
    return {
        "id": name,
        "prompt": question,
        "answer": verdict.score,
        "split": "eval" if held_out else "train",
        "outcome": record.episode.parts.get("success", 0.0),
        "task": task,
        "verdict": written(verdict),
    }


def _with_peers(labels: Sequence[Label]) -> None:
    """Add to each label the score and outcome of other labels of its task."""
    by_task: dict[str, list[Label]] = {}
    for label in labels:
        by_task.setdefault(label["task"], []).append(label)
    for label in labels:
        others = [[other["answer"], other["outcome"]] for other in by_task[label["task"]] if other is not label]
        label["peers"] = others[:_PEERS]


def _teach(path: Path, labels: Sequence[Label]) -> int:
    """Write the verdicts on training tasks as episodes for a student to imitate. Return their number."""
    from palaestra.agents import Agent, ScriptedPolicy, play

    if all(label["split"] != "train" for label in labels):
        return 0
    verdicts = {label["prompt"]: label["verdict"] for label in labels}
    options = {"tasks": str(path), "split": "train"}
    agent = Agent(ScriptedPolicy(lambda messages, rng: verdicts[messages[-1]["content"]]))
    with closing(arena(JUDGE, 16, **options)) as opened:
        episodes = play(agent, opened, (Start(task, task, task) for task in range(opened.task_count)))
        records = (Record(JUDGE, episode, options, agent="a teacher of judges") for episode in episodes)
        return write(path.with_name(f"{path.stem}.taught.jsonl"), records)
