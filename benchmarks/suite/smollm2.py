"""What SmolLM2, a demonstrator and a guess reach in one environment, before and after 40 imitated demonstrations."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cases import FORMAT, MODEL, SEED, Case

from palaestra.agents import Agent, ScriptedPolicy
from palaestra.agents.conversation import written_rows
from palaestra.agents.dialect import prepared
from palaestra.agents.local_model import LocalModel, load
from palaestra.episode import Episode, Status
from palaestra.errors import UsageError
from palaestra.record import Record, write
from palaestra.registry import demonstrators
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.evaluation.evaluate import evaluate
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.run.versions import versions
from palaestra.trainers.setup.demonstration_split import demonstrate
from palaestra.trainers.setup.open_run import limits, open_arena
from palaestra.trainers.validation import changed

TASKS, DEMONSTRATIONS, EPOCHS, BATCH_ROWS = 32, 40, 1, 4
GUESSES = 256
WAYS = {"sampled": 1.0, "greedy": 0.0}


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
    figures |= scripted(config, rule)
    figures["imitation"] = imitate(local, config, rule)
    figures["after"] = {way: play(local.agent, config, way, folder / f"{case.name}-after-{way}") for way in WAYS}
    return figures | {"cpu_seconds": round(time.process_time() - began)}


def scripted(config: GRPOConfig, rule: Any) -> dict[str, Any]:
    """Return the figures of the demonstrator, and of its guess: what it answers when it never uses a tool."""
    guess = partial(rule, tool_rate=0.0)
    return {
        "demonstrator": play(Agent(ScriptedPolicy(rule, SEED, FORMAT)), config, "sampled"),
        "guess": play(Agent(ScriptedPolicy(guess, SEED, FORMAT)), config, "sampled", tasks=GUESSES),
    }


def play(agent: Agent, config: GRPOConfig, way: str, file: Path | None = None, tasks: int = TASKS) -> dict[str, Any]:
    """Return the figures of an agent on held-out tasks. Keep its episodes in a file."""
    began = time.process_time()
    with closing(open_arena(config, "eval")) as arena:
        report, episodes = evaluate(agent, arena, tasks=tasks, temperature=WAYS[way], limits=limits(config), seed=SEED)
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
