"""Audit a finished run: repeat the checks of each training batch on all recorded episodes.

In addition, the terms of the training reward and the advantages are recomputed by the run's recipe, no Start may
repeat, and `metrics.jsonl` must agree with the episodes. Left out: data that a record does not hold (token weights,
gradients, advantages per token), and the reward of the environment, for which the caller may pass a function.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import GenerationConfig

from palaestra.agents import Chat
from palaestra.agents.dialect import prepared
from palaestra.agents.local_model import open_tokenizer
from palaestra.causes import Causes
from palaestra.episode import Ending
from palaestra.errors import UsageError
from palaestra.reading import RecordReader
from palaestra.record import Record
from palaestra.registry import require_loaded
from palaestra.trainers.audit.advantage_checks import advantage_findings, compared_in_groups
from palaestra.trainers.audit.audit_findings import CAUSES, AuditFinding, place_of
from palaestra.trainers.audit.groups import group_findings, member_findings
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
from palaestra.trainers.batch import Batch, BatchScores, Sample, Scored
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.parts import UnloadedPart
from palaestra.trainers.reward.staged_shaping import StagedShaping
from palaestra.trainers.run.folder import Run
from palaestra.trainers.samplers.uniform import Uniform

_CLOSE = 1e-6
_FARTHEST = 0.1
"""Largest mean log-prob gap between engine and trainer, if the config does not set one."""
Rescored = Callable[[Record], float | None]
"""Recomputes the environment's reward of an attempt; returns None if that is not possible."""


@dataclass(slots=True)
class Ledger:
    """Result of an audit: what was checked, the findings, and the checks that were skipped."""

    checked: Counter[str] = field(default_factory=Counter)
    """Number of rows, episodes, groups or steps that each check has read."""
    findings: list[AuditFinding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Reason why a check has read nothing, or not everything, by check."""
    figures: dict[str, float] = field(default_factory=dict)
    defects: int = 0
    causes: Causes = field(default_factory=Causes)
    """Why episodes of the run failed, recorded or not."""

    def add(self, check: str, count: int, findings: Iterable[AuditFinding]) -> None:
        """Record `count` checked items and the findings of a check."""
        self.checked[check] += count
        self.findings += findings

    def wrong(self) -> Counter[str]:
        """Return the number of findings by check."""
        return Counter(finding.check for finding in self.findings)


def audit_run(
    folder: Path, say: Callable[[str], object], rescored: Rescored | None = None, modules: Collection[str] = ()
) -> Ledger:
    """Audit the records of the run in a folder. `say` gets a message on each line that is not a record. Parts of the
    recipe are loaded from `modules` only, which the user has named.
    """
    run, ledger = Run.read(folder, modules), Ledger()
    if not isinstance(run.config, GRPOConfig):
        raise UsageError(f"{folder} holds a run of the kind {run.config.KIND}; only a run of GRPO can be audited")
    files = sorted(filter(Path.is_file, (folder / "episodes").glob("step-*.jsonl")))
    if not files:
        raise UsageError(f"{folder / 'episodes'} holds no step-*.jsonl; a run with --save.recorded-groups keeps them")
    audit = _Audit(run.config, _chat(folder, run.config, ledger), ledger)
    reading = RecordReader(files, say)
    for step, lines in groupby(reading, lambda _: int(reading.path.stem.removeprefix("step-"))):
        audit.step(step, [record for _, record in lines], rescored)
    if rescored is None:
        ledger.skipped["rewards"] = "was not asked for"
    ledger.defects = reading.defects
    ledger.causes = run.causes
    audit.metrics(run.metrics)
    for check in CAUSES:
        if not ledger.checked[check]:
            ledger.skipped.setdefault(check, "a record does not hold it")
    return ledger


class _Audit:
    """Audit of one run, step by step."""

    def __init__(self, config: GRPOConfig, chat: Chat | None, ledger: Ledger) -> None:
        self.config, self.chat, self.ledger = config, chat, ledger
        self.seeds: dict[tuple[int, str | None], int] = {}
        self.groups: dict[int, int] = {}
        self.tasks = Counter[tuple[str, int]]()
        self.rewards: dict[int, tuple[float, int]] = {}
        self.gaps: list[NDArray[np.float32]] = []

    def step(self, step: int, records: Sequence[Record], rescored: Rescored | None) -> None:
        """Check all recorded episodes of a step."""
        batch, ledger = self._batch(step, records), self.ledger
        episodes = [batch.rollouts[place].episode for place in sorted({sample.place for sample in batch.samples})]
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
        ledger.add("members", len(batch.rollouts), member_findings(batch))
        shaping = self.config.recipe.shaping
        if isinstance(shaping, StagedShaping) and shaping.curriculum:
            ledger.skipped["terms"] = "a curriculum's weights are not recorded"
        elif isinstance(shaping, UnloadedPart):
            ledger.skipped["terms"] = f"{shaping.name} is not loaded (--allow-code)"
        else:
            ledger.add("terms", len(records), [finding for record in records for finding in self._terms(record)])
        self._compare(groups, batch, np.array([lesson.advantage for record in records for lesson in record.lessons]))
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
        """Rebuild the batch that this step was trained on. A record with n lessons was in the batch n times."""
        recipe = self.config.recipe

        def terms(record: Record) -> Mapping[str, float] | None:
            if record.lessons:
                return record.lessons[0].terms
            # An episode without a lesson may have no verdict of the judge.
            computable = _rewarded(record) and recipe.judge is None and not isinstance(recipe.shaping, UnloadedPart)
            return recipe.shaping(record.episode) if computable else None

        scored_episodes = tuple(Scored(record.episode, terms(record), fault=record.episode.fault) for record in records)
        copies = [
            (place, (record.episode.start.group, number))
            for place, record in enumerate(records)
            for number, _ in enumerate(record.lessons)
        ]
        group_numbers = {key: number for number, key in enumerate(sorted({key for _, key in copies}))}
        samples = tuple(Sample(place, group_numbers[key]) for place, key in copies)
        return Batch(step - 1, scored_episodes, samples)

    def _compare(self, groups: int, batch: Batch, advantages: NDArray[np.float64]) -> None:
        recipe, why = self.config.recipe, ""
        if recipe.kl.kl_in_reward:
            why = "a KL in the reward is not recorded"
        elif isinstance(recipe.advantage, UnloadedPart):
            why = f"{recipe.advantage.name} is not loaded (--allow-code)"
        elif not compared_in_groups(recipe):
            why = "a record of some groups is not enough to compute them anew"
        elif any(count > 1 for count in Counter(sample.place for sample in batch.samples).values()):
            why = "copies weigh less"
        if why:
            self.ledger.skipped["advantages"] = why
            return
        self.ledger.add("advantages", groups, advantage_findings(recipe, batch, BatchScores(), advantages, means=True))

    def _terms(self, record: Record) -> Iterable[AuditFinding]:
        """Compute the recipe's reward terms and compare them with the recorded ones, which may include a judge's."""
        for lesson in record.lessons[:1]:
            if not _rewarded(record):
                continue  # Found by `members`.
            terms = self.config.recipe.shaping(record.episode)
            wrong = {name: value for name, value in terms.items() if not _equal(lesson.terms.get(name), value)}
            if wrong:
                details = f"its lesson has the terms {dict(lesson.terms)}, computed anew {wrong}"
                yield AuditFinding("terms", place_of(record.episode), details)

    def _starts(self, step: int, records: Sequence[Record]) -> None:
        findings, starts = [], [record.episode.start for record in records]
        for start in starts:
            seed, group = (start.seed, start.seat), start.group
            if seed in self.seeds or self.groups.setdefault(group, step) != step:
                before = self.seeds.get(seed, self.groups.get(group, step))
                where = f"group {group}, seed {start.seed}, task {start.task} of step {step}"
                details = f"its seed or its group was played in step {before} before"
                findings.append(AuditFinding("starts", where, details))
            self.seeds[seed] = step
        played_tasks = {(start.group, start.env, start.task) for start in starts}
        self.tasks.update((env, task) for _, env, task in played_tasks)
        self.ledger.add("starts", len(records), findings)

    def _gap(self, step: int, records: Sequence[Record]) -> None:
        """Check the log-prob gap on tokens whose log-probs engine and trainer computed with the same weights."""
        parts = [np.zeros(0, np.float32)]
        for record in records:
            for lesson in record.lessons:
                for row, trainer_logprobs in zip(record.episode.rows, lesson.trainer_logprobs, strict=False):
                    same = row.sampled & (row.versions == step - 1) & (lesson.updates == 0)
                    parts.append(np.abs(trainer_logprobs - row.logprobs)[same])
        gap_S = np.concatenate(parts)
        if len(gap_S):
            self.gaps.append(gap_S)
            mean, bound = float(gap_S.mean()), self.config.play.max_logprob_gap or _FARTHEST
            details = f"they differ by {mean:.3g} on average, at most {bound} expected"
            finding = AuditFinding("log-prob gap", f"step {step}", details)
            self.ledger.add("log-prob gap", 1, [] if mean <= bound else [finding])

    def _rescore(self, records: Sequence[Record], rescored: Rescored) -> None:
        for record in filter(_rewarded, records):
            reward = rescored(record)
            if reward is None:
                self.ledger.skipped["rewards"] = f"of some episodes of {record.env_id} it cannot be computed anew"
                continue
            details = f"its reward is {record.episode.reward}, computed anew {reward}"
            finding = AuditFinding("rewards", place_of(record.episode), details)
            self.ledger.add("rewards", 1, [] if _equal(record.episode.reward, reward) else [finding])

    def metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Check that each step has one line of metrics, which agrees with its episodes if all were recorded."""
        findings, config = [], self.config
        steps = [line["step"] for line in lines]
        if steps != list(range(1, len(steps) + 1)):
            findings.append(AuditFinding("metrics", "metrics.jsonl", f"its steps are not 1 to {len(steps)}, each once"))
        whole = isinstance(config.recipe.sampler, Uniform) and config.save.recorded_groups >= config.play.num_prompts
        for line in lines if whole and not config.env.train_seats else ():
            if line["step"] not in self.rewards:
                continue
            reward, tokens = self.rewards[line["step"]]
            if not (_equal(line.get("reward"), reward) and line.get("num_tokens") == tokens):
                logged = f"it says reward {line.get('reward')}, {line.get('num_tokens')} tokens"
                details = f"{logged}; its episodes say {reward:.6g}, {tokens} tokens"
                findings.append(AuditFinding("metrics", f"step {line['step']}", details))
        self.ledger.add("metrics", len(lines), findings)
        gap_S = np.concatenate([np.zeros(1, np.float32), *self.gaps])
        self.ledger.figures |= {
            "tasks played again later": float(sum(count - 1 for count in self.tasks.values())),
            "log-prob gap, 99 %": float(np.quantile(gap_S, 0.99)),
            "log-prob gap, worst": float(gap_S.max()),
            "figures that are no numbers": float(sum(value is None for line in lines for value in line.values())),
        }


def _rewarded(record: Record) -> bool:
    return record.episode.reward is not None


def _equal(first: float | None, other: float | None) -> bool:
    return first is not None and other is not None and math.isclose(first, other, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _chat(folder: Path, config: GRPOConfig, ledger: Ledger) -> Chat | None:
    """Return the `Chat` of the model that played; None if its tokenizer is in no local folder."""
    places = [folder / "start", folder / "model", *sorted((folder / "checkpoints").glob("*/model")), Path(config.model)]
    for place in (candidate for candidate in places if (candidate / "tokenizer_config.json").is_file()):
        saved = place != Path(config.model)  # With the changes to its prompts.
        tokenizer = open_tokenizer(str(place), *(() if saved else (config.chat_template, config.system)))
        require_loaded(config.env.env_id, str(folder / "config.json"))
        prepared(config.env.env_id, config.env.options, tokenizer)
        chat = Chat(tokenizer)
        if (place / "generation_config.json").is_file():
            ends = GenerationConfig.from_pretrained(str(place)).eos_token_id
            chat.stops |= set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        return chat
    ledger.skipped |= dict.fromkeys(("turn ends", "turn texts", "prompts"), "the run has no tokenizer yet")
    return None
