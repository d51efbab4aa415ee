"""The audit of a run that has trained: the checks of every batch, over all episodes that it kept.

Beside them: the terms of the training reward and the advantages are computed anew by the run's recipe, no Start comes
twice, and `metrics.jsonl` says what the episodes say. Left out: what a record does not hold (token weights, gradients,
advantages by token), and the environment's own reward, which the caller may have computed anew.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import GenerationConfig

from palaestra.agents import Chat
from palaestra.agents.local_model import open_tokenizer
from palaestra.episode import Ending
from palaestra.errors import UsageError
from palaestra.reading import Reading
from palaestra.record import Record
from palaestra.trainers.audit.findings import CAUSES, Finding, place_of
from palaestra.trainers.audit.groups import advantage_findings, group_findings, member_findings
from palaestra.trainers.audit.tokens import (
    Flat,
    length_findings,
    mask_findings,
    prompt_findings,
    repetition,
    text_findings,
    turn_findings,
    version_findings,
)
from palaestra.trainers.batch import Batch, Sample, Scored, Seen
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.run import Run
from palaestra.trainers.sampling.uniform import Uniform
from palaestra.trainers.scoring.progressive import Progressive

_CLOSE = 1e-6
_FARTHEST = 0.1
"""Mean gap between engine and trainer beyond which a run halts where its config names no other."""
Rescored = Callable[[Record], float | None]
"""The environment's reward of an attempt, computed anew; None where that cannot be."""


@dataclass(slots=True)
class Ledger:
    """What was looked at, what was found, and what could not be looked at."""

    looked: Counter[str] = field(default_factory=Counter)
    """How many rows, episodes, groups or steps each check has seen."""
    findings: list[Finding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a check has seen nothing, or not all."""
    figures: dict[str, float] = field(default_factory=dict)
    defects: int = 0

    def add(self, check: str, count: int, findings: Iterable[Finding]) -> None:
        """Take down one check of so many things."""
        self.looked[check] += count
        self.findings += findings

    def wrong(self) -> Counter[str]:
        """Findings by check."""
        return Counter(finding.check for finding in self.findings)


def audit_run(folder: Path, say: Callable[[str], object], rescored: Rescored | None = None) -> Ledger:
    """Audit the run in a folder, as far as it is written down. `say` is told of lines that are no records."""
    run, ledger = Run.read(folder), Ledger()
    if not isinstance(run.config, GRPOConfig):
        raise UsageError(f"{folder} holds a run of the kind {run.config.KIND}; an audit is of one of GRPO")
    files = sorted((folder / "episodes").glob("step-*.jsonl"))
    if not files:
        raise UsageError(f"{folder / 'episodes'} holds no step-*.jsonl; a run with --save.recorded-groups keeps them")
    audit = _Audit(run.config, _chat(folder, run.config, ledger), ledger)
    reading = Reading(files, say)
    steps: dict[int, list[Record]] = defaultdict(list)
    for _, record in reading:
        step = int(reading.path.stem.removeprefix("step-"))
        if steps and step not in steps:
            audit.step(*steps.popitem(), rescored)
        steps[step].append(record)
    for step, records in steps.items():
        audit.step(step, records, rescored)
    if rescored is None:
        ledger.skipped["rewards"] = "was not asked for"
    ledger.defects = reading.defects
    audit.metrics(run.metrics)
    for check in CAUSES:
        if not ledger.looked[check]:
            ledger.skipped.setdefault(check, "a record does not hold it")
    return ledger


class _Audit:
    """One run, step by step."""

    def __init__(self, config: GRPOConfig, chat: Chat | None, ledger: Ledger) -> None:
        self.config, self.chat, self.ledger = config, chat, ledger
        self.seeds: dict[tuple[int, str | None], int] = {}
        self.groups: dict[int, int] = {}
        self.tasks = Counter[tuple[str, int]]()
        self.rewards: dict[int, tuple[float, int]] = {}
        self.gaps: list[NDArray[np.float32]] = []

    def step(self, step: int, records: Sequence[Record], rescored: Rescored | None) -> None:
        """All that was kept of a step."""
        batch, advantages, ledger = self._batch(step, records), self._advantages(records), self.ledger
        episodes = [batch.played[place].episode for place in sorted({sample.place for sample in batch.samples})]
        flat, play = Flat.of(episodes), self.config.play
        rows = len(flat.rows)
        ledger.add("token mask", rows, mask_findings(flat))
        ledger.add("row lengths", rows, length_findings(episodes, self.config.longest_row, play.max_turn_tokens))
        ledger.add("versions", rows, version_findings(flat, step - 1, play.max_staleness))
        if self.chat is not None:
            ledger.add("turn ends", rows, turn_findings(flat, self.chat))
            for episode in episodes:
                ledger.add("turn texts", 1, text_findings(episode, self.chat))
                ledger.add("prompts", 1, prompt_findings(episode, self.chat))
        groups = len(set(batch.groups.tolist()))
        ledger.add("groups", groups, group_findings(batch))
        ledger.add("members", len(batch.played), member_findings(batch))
        if isinstance(self.config.recipe.shaping, Progressive) and self.config.recipe.shaping.curriculum:
            ledger.skipped["terms"] = "a curriculum's weights are not recorded"
        else:
            ledger.add("terms", len(records), [found for record in records for found in self._terms(record)])
        self._compare(groups, batch, advantages)
        self._starts(step, records)
        self._gap(step, records)
        if rescored is not None:
            self._rescore(records, rescored)
        self.rewards[step] = (float(batch.rewards.mean()) if batch.samples else 0.0, sum(batch.lengths))
        cut = sum(episode.ending is Ending.LENGTH_LIMIT for episode in episodes)
        for name, value in {"episodes": len(records), "cut by a token limit": cut}.items():
            ledger.figures[name] = ledger.figures.get(name, 0) + value
        ledger.figures["most 4-grams repeated"] = max(ledger.figures.get("most 4-grams repeated", 0), repetition(flat))

    def _batch(self, step: int, records: Sequence[Record]) -> Batch:
        """As it was learned from. The j-th lesson of each member of a group is that of its j-th copy."""
        recipe = self.config.recipe

        def terms(record: Record) -> Mapping[str, float] | None:
            if record.lessons:
                return record.lessons[0].terms
            # Without a lesson a judge may have had no verdict.
            return recipe.shaping(record.episode) if _rewarded(record) and recipe.judge is None else None

        played = tuple(Scored(record.episode, terms(record), fault=record.episode.fault) for record in records)
        keys = [(record.episode.start.group, j) for record in records for j, _ in enumerate(record.lessons)]
        numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
        places = [place for place, record in enumerate(records) for _ in record.lessons]
        samples = tuple(Sample(place, numbers[key]) for place, key in zip(places, keys, strict=True))
        return Batch(step - 1, played, samples)

    @staticmethod
    def _advantages(records: Sequence[Record]) -> NDArray[np.float64]:
        return np.array([lesson.advantage for record in records for lesson in record.lessons], np.float64)

    def _compare(self, groups: int, batch: Batch, advantages: NDArray[np.float64]) -> None:
        recipe, why = self.config.recipe, ""
        if recipe.kl.kl_in_reward:
            why = "a KL in the reward is not recorded"
        elif recipe.max_advantage is not None or not all(sample.weight == 1 for sample in batch.samples):
            why = "they are bounded"
        elif any(count > 1 for count in Counter(sample.place for sample in batch.samples).values()):
            why = "copies weigh less"
        if why:
            self.ledger.skipped["advantages"] = why
            return
        self.ledger.add("advantages", groups, advantage_findings(recipe, batch, Seen(), advantages))

    def _terms(self, record: Record) -> Iterable[Finding]:
        """The recipe's terms of an episode are those of its lesson, which may have a judge's beside them."""
        for lesson in record.lessons[:1]:
            if not _rewarded(record):
                continue  # Found by `members`.
            terms = self.config.recipe.shaping(record.episode)
            wrong = {name: value for name, value in terms.items() if not _equal(lesson.terms.get(name), value)}
            if wrong:
                found = f"its lesson has the terms {dict(lesson.terms)}, computed anew {wrong}"
                yield Finding("terms", place_of(record.episode), found)

    def _starts(self, step: int, records: Sequence[Record]) -> None:
        found, starts = [], [record.episode.start for record in records]
        for start in starts:
            seed, group = (start.seed, start.seat), start.group
            if seed in self.seeds or self.groups.setdefault(group, step) != step:
                before = self.seeds.get(seed, self.groups.get(group, step))
                where = f"group {group}, seed {start.seed}, task {start.task} of step {step}"
                found.append(Finding("starts", where, f"its seed or its group was played in step {before} before"))
            self.seeds[seed] = step
        played = {(start.group, start.env, start.task) for start in starts}
        self.tasks.update((env, task) for _, env, task in played)
        self.ledger.add("starts", len(records), found)

    def _gap(self, step: int, records: Sequence[Record]) -> None:
        """Of the first mini-batch's tokens of the newest weights: no update lies between engine and trainer."""
        parts = [np.zeros(0, np.float32)]
        for record in records:
            for lesson in record.lessons:
                for row, said in zip(record.episode.rows, lesson.trainer_logprobs, strict=False):
                    same = row.sampled & (row.versions == step - 1) & (lesson.updates == 0)
                    parts.append(np.abs(said - row.logprobs)[same])
        gap_S = np.concatenate(parts)
        if len(gap_S):
            self.gaps.append(gap_S)
            mean, bound = float(gap_S.mean()), self.config.play.max_logprob_gap or _FARTHEST
            found = f"they differ by {mean:.3g} on average, at most {bound} expected"
            self.ledger.add(
                "log-prob gap", 1, [] if mean <= bound else [Finding("log-prob gap", f"step {step}", found)]
            )

    def _rescore(self, records: Sequence[Record], rescored: Rescored) -> None:
        for record in records:
            if not _rewarded(record):
                continue
            reward = rescored(record)
            if reward is None:
                self.ledger.skipped["rewards"] = "of some episodes it cannot be computed anew"
                continue
            found = f"its reward is {record.episode.reward}, computed anew {reward}"
            wrong = (
                [] if _equal(record.episode.reward, reward) else [Finding("rewards", place_of(record.episode), found)]
            )
            self.ledger.add("rewards", 1, wrong)

    def metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """What was written of each step is there once, and is what its episodes say where all were kept."""
        found, config = [], self.config
        steps = [line["step"] for line in lines]
        if steps != list(range(1, len(steps) + 1)):
            found.append(Finding("metrics", "metrics.jsonl", f"its steps are not 1 to {len(steps)}, each once"))
        whole = isinstance(config.recipe.sampler, Uniform) and config.save.recorded_groups >= config.play.num_prompts
        for line in lines if whole and not config.env.train_seats else ():
            said = line.get("reward"), line.get("num_tokens")
            kept = self.rewards.get(line["step"])
            if kept is not None and not (_equal(said[0], kept[0]) and said[1] == kept[1]):
                differs = (
                    f"it says reward {said[0]}, {said[1]} tokens; its episodes say {kept[0]:.6g}, {kept[1]} tokens"
                )
                found.append(Finding("metrics", f"step {line['step']}", differs))
        self.ledger.add("metrics", len(lines), found)
        gap_S = np.concatenate([np.zeros(1, np.float32), *self.gaps])
        self.ledger.figures |= {
            "tasks played again later": float(sum(count - 1 for count in self.tasks.values())),
            "log-prob gap, 99 %": float(np.quantile(gap_S, 0.99)),
            "log-prob gap, worst": float(gap_S.max()),
            "figures that are no numbers": float(sum(value is None for line in lines for value in line.values())),
        }


def _rewarded(record: Record) -> bool:
    return record.episode.reward is not None


def _equal(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _chat(folder: Path, config: GRPOConfig, ledger: Ledger) -> Chat | None:
    """Of the model that spoke; None where its tokenizer is not here."""
    places = [folder / "start", folder / "model", *sorted((folder / "checkpoints").glob("*/model")), Path(config.model)]
    for place in (one for one in places if (one / "tokenizer_config.json").is_file()):
        chat = Chat(open_tokenizer(str(place)))
        if (place / "generation_config.json").is_file():
            ends = GenerationConfig.from_pretrained(str(place)).eos_token_id
            chat.stops |= set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        return chat
    ledger.skipped |= dict.fromkeys(("turn ends", "turn texts", "prompts"), "the run has no tokenizer yet")
    return None
