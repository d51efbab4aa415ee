"""SmolLM2 in every environment of the suite, before and after it imitates 40 demonstrations: `make results`

One file for each environment in results/suite. A file with the same settings and the same prompts is kept, so the
command continues where it was stopped; `--write-only` writes the page of the files that are there and measures nothing.
Float32, one thread, short turns, the smallest options of each environment. Left out: GRPO (docs/benchmarks.md).
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tyro

from palaestra.agents import Agent, ScriptedPolicy
from palaestra.agents.conversation import written_rows
from palaestra.agents.dialect import prepared
from palaestra.agents.local_model import LocalModel, load
from palaestra.episode import Episode, Status
from palaestra.errors import UsageError
from palaestra.record import Record, write
from palaestra.registry import demonstrators
from palaestra.trainers.config.grpo_config import GRPOConfig, laptop_config
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.evaluation.evaluate import evaluate
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.run.versions import versions
from palaestra.trainers.setup.demonstration_split import demonstrate
from palaestra.trainers.setup.open_run import limits, open_arena
from palaestra.trainers.validation import changed

ROOT = Path(__file__).resolve().parents[1]
MODEL, FORMAT, SEED = "smollm2", "tags", 0
TASKS, DEMONSTRATIONS, EPOCHS, BATCH_ROWS = 32, 40, 1, 4
WAYS = {"sampled": 1.0, "greedy": 0.0}
BEGIN, END = "<!-- the suite: written by make results -->", "<!-- end of the suite -->"


@dataclass(frozen=True)
class Case:
    """An environment with its smallest options, and limits of tokens that its demonstrator keeps."""

    name: str
    turn_tokens: int = 64
    row_tokens: int = 320
    options: tuple[str, ...] = ()

    def config(self) -> GRPOConfig:
        """Return the settings of a run in this environment."""
        return laptop_config(
            f"palaestra/{self.name}",
            model=MODEL,
            device="cpu",
            seed=SEED,
            env_options=(*self.options, f"format={FORMAT}"),
            max_turn_tokens=self.turn_tokens,
            max_episode_tokens=self.row_tokens,
        )


CASES = (
    Case("Calculator-v0"),
    Case("TwoHop-v0", row_tokens=384),
    Case("Arithmetic-v0"),
    Case("negotiation-v0", row_tokens=384),
    Case("solver_critic-v0"),
    Case("debate-v0"),
    Case("Judge-v0", 80, 384, ("rubric=false",)),
    Case("Reasoning-v0", options=("generator=chain_sum",)),
    Case("SearchQA-v0", row_tokens=768, options=("world=plain", "kinds=single")),
    Case("Science-v0", 64, 448),
    Case("CodeMath-v0", 112, 448),
    Case("CodeContest-v0", 128, 640),
    Case("DataTable-v0", 128, 640),
    Case("WebNav-v0", row_tokens=1280, options=("depth=1", "size=2")),
    Case("Service-v0", row_tokens=1280, options=("level=small",)),
    Case("HumanEval-v0", 128, 768),
    Case("LongQA-v0", row_tokens=2048, options=("size=4",)),
    Case("Research-v0", 192, 1792),
)
SKIPPED = {
    "WebShop-v0": "its purchases take some 15 calls and 2,900 tokens each, which is too long for this machine",
    "MiniWoB-v0": "it needs Chromium, and has no demonstrator",
}


@dataclass(frozen=True)
class Options:
    """Measure what is missing, and write the page anew."""

    only: tuple[str, ...] = ()
    """Environments to measure, by name; all where none is named."""
    write_only: bool = False
    """Measure nothing."""
    results: Path = field(default=ROOT / "benchmarks" / "results" / "suite")
    """Where the figures go, a file for each environment."""
    episodes: Path = field(default=ROOT / "runs" / "suite")
    """Where the episodes go, for `palaestra view`."""
    page: Path = field(default=ROOT / "docs" / "results.md")
    """Whose table is written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write each file at once, and write the page."""
    options = tyro.cli(Options, args=arguments)
    for case in () if options.write_only else CASES:
        if options.only and case.name not in options.only:
            continue
        path, settings = options.results / f"{case.name}.json", settings_of(case)
        if path.is_file() and json.loads(path.read_text("utf-8"))["settings"] == settings:
            continue
        print(f"{datetime.now(UTC):%H:%M:%S} {case.name}", flush=True)
        figures = {"settings": settings, **measure(case, options.episodes)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    write_page(options.page, options.results)
    return 0


def settings_of(case: Case) -> dict[str, Any]:
    """Return all that the figures depend on, with a digest of the first prompts."""
    silent = Agent(ScriptedPolicy(lambda messages, rng: "0"))
    with closing(open_arena(case.config(), "eval")) as arena:
        first = [(e.attempt.messages[:2], e.tools) for e in evaluate(silent, arena, tasks=1)[1]]
    digest = blake2b(json.dumps(first, sort_keys=True).encode(), digest_size=6).hexdigest()
    common: dict[str, Any] = {
        "tasks": TASKS,
        "demonstrations": DEMONSTRATIONS,
        "epochs": EPOCHS,
        "batch_rows": BATCH_ROWS,
    }
    common |= {"model": MODEL, "format": FORMAT, "prompts": digest}
    return {**asdict(case), "options": list(case.options), **common}


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Let the demonstrator and the model play, let the model imitate, and let it play again."""
    config, began = case.config(), time.process_time()
    local = load(MODEL, slots=config.play.slots, seed=SEED, device="cpu")
    prepared(config.env.env_id, config.env.options, local.tokenizer)
    figures: dict[str, Any] = {"measured": f"{datetime.now(UTC):%Y-%m-%d}", "versions": versions()}
    figures["before"] = {way: play(local.agent, config, way, folder / f"{case.name}-before-{way}") for way in WAYS}
    try:
        rule = demonstrators(config.env.env_id)
    except UsageError:
        return figures | {"cpu_seconds": round(time.process_time() - began)}
    figures["demonstrator"] = play(Agent(ScriptedPolicy(rule, SEED, FORMAT)), config, "sampled")
    figures["imitation"] = imitate(local, config, rule)
    figures["after"] = {way: play(local.agent, config, way, folder / f"{case.name}-after-{way}") for way in WAYS}
    return figures | {"cpu_seconds": round(time.process_time() - began)}


def play(agent: Agent, config: GRPOConfig, way: str, file: Path | None = None) -> dict[str, Any]:
    """Return the figures of an agent on held-out tasks. Keep its episodes in a file."""
    began = time.process_time()
    with closing(open_arena(config, "eval")) as arena:
        report, episodes = evaluate(agent, arena, tasks=TASKS, temperature=WAYS[way], limits=limits(config), seed=SEED)
    seconds = (time.process_time() - began) / len(episodes)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file.with_suffix(".jsonl"), (Record(config.env.env_id, each, config.env.options) for each in episodes))
    numbers = {name: round(getattr(report, name), 4) for name in ("success", "low", "high", "reward", "calls")}
    return {**numbers, **forms(episodes), "endings": report.endings, "cpu_seconds_an_episode": round(seconds, 2)}


def forms(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Return the share of calls that are well formed (None without calls), and the sampled tokens of a turn."""
    calls = [call for episode in episodes for call in episode.attempt.calls]
    turns = sum(episode.attempt.turns for episode in episodes)
    bad = sum(call.status is Status.BAD_CALL for call in calls)
    tokens = sum(episode.sampled_tokens for episode in episodes)
    return {
        "well_formed": round(1 - bad / len(calls), 4) if calls else None,
        "tokens_a_turn": round(tokens / max(1, turns), 1),
    }


def imitate(local: LocalModel, config: GRPOConfig, rule: Any) -> dict[str, Any]:
    """Train the model on demonstrations that always use their tools."""
    began, chat = time.process_time(), local.agent.chat
    assert chat is not None, "a model has a chat"
    with closing(open_arena(config)) as arena:
        episodes = demonstrate(arena, rule, DEMONSTRATIONS, 1.0, SEED, FORMAT)
    rows = [row for episode in episodes for row in written_rows(chat, episode.attempt.messages, episode.tools)]
    sft = changed(SFTConfig(model=MODEL, device="cpu"), {"micro_batch_tokens": config.optimizer.micro_batch_tokens})
    learner = Learner(local.agent, local.model, changed(sft, {"epochs": EPOCHS, "batch_rows": BATCH_ROWS}))
    imitation, losses = Imitation(learner, rows), list[float]()
    while learner.step < learner.steps:
        losses.append(round(imitation.step()["loss"], 4))
    learner.publish()
    return {
        "rows": len(rows),
        "longest_row": max(map(len, rows)),
        "steps": learner.step,
        "losses": losses,
        "cpu_seconds": round(time.process_time() - began),
    }


def write_page(page: Path, results: Path) -> None:
    """Write the table between the marks of the page."""
    text = page.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{page} lacks the lines {BEGIN!r} and {END!r}, between which the table is written")
    page.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}", encoding="utf-8")


def table(results: Path) -> str:
    """Return the table of all environments."""
    lines = [
        "| environment | demonstrator | before: sampled | greedy | after: sampled | greedy | calls well formed, before "
        "and after | tokens a turn | CPU s an episode |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        path, cells = results / f"{case.name}.json", "not measured"
        name = " ".join((f"`{case.name}`", *(f"`{option}`" for option in case.options)))
        if path.is_file():
            cells = _cells(json.loads(path.read_text("utf-8")))
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines + [f"| `{name}` | skipped: {reason} |" for name, reason in SKIPPED.items()])


def _cells(figures: Mapping[str, Any]) -> str:
    stages = [figures.get(stage, {}) for stage in ("before", "after")]
    played = [stage.get(way) for stage in stages for way in WAYS]
    cells = [_number(figures.get("demonstrator", {}).get("success"))]
    for at in played:
        value, low, high = (_number(at[name]) if at else "" for name in ("success", "low", "high"))
        cells.append(f"{value} ({low} to {high})" if at else "")
    sampled = [stage["sampled"] for stage in stages if stage]
    cells.append(", ".join(f"{_number(at['well_formed'])} of {at['calls']:.1f}" for at in sampled))
    cells.append(", ".join(f"{at['tokens_a_turn']:.0f}" for at in sampled))
    cells.append(", ".join(f"{at['cpu_seconds_an_episode']:.1f}" for at in sampled))
    return " | ".join(cells)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}".removeprefix("0") if 0 < value < 1 else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
