"""Play on a thread, up to `max_staleness` updates ahead of the learner; batches come through a queue.

A group of batch `b` begins once the weights are of version `b - max_staleness` or newer, and batch `b` is learned from
at version `b`: so no token can be older than that. What is ahead when the run ends is dropped; a checkpoint knows where
the sampler stood after the batch that was learned from, and the rest is played again.
Left out: engines that share the trainer's tensors, whose weights would change in the middle of a pass: refused.
"""

import queue
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np

from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.policies.table import trained_engines
from palaestra.episode import Start
from palaestra.errors import ConfigError, TrainingHalted
from palaestra.protocols import Arena, TrainedEngine
from palaestra.trainers.batch import Batch
from palaestra.trainers.sampling.sampler import Sampler
from palaestra.trainers.scoring.awaited import Scoring
from palaestra.trainers.turns import EngineInTurns, Turns

_LOOK_UP = 1.0
"""Seconds the learner waits for a batch before it asks whether play is still alive."""
_LEAVE = 60.0
"""Seconds that play may take to stop: a round of it, with a tool that is waited for."""


def played_ahead(
    agent: Agent,
    arena: Arena,
    sampler: Sampler,
    scoring: Scoring,
    *,
    limits: TokenLimits | None,
    temperature: float,
    max_staleness: int,
    turns: Turns,
) -> Generator[Batch, None, None]:
    """One batch after another; the thread lives as long as this generator. Weights may change within `turns` alone."""
    engines = require_own_weights(agent, max_staleness)
    agent = replace(agent, engine=EngineInTurns(agent.engine, turns))
    # A place for each batch that may be ahead, for the one that is wanted, and for what ended play.
    made: queue.Queue[tuple[Batch, float] | BaseException] = queue.Queue(max_staleness + 2)
    ended = threading.Event()

    def starts() -> Iterator[Start | None]:
        """For as long as play goes on; None while what may be ahead is."""
        count, sampled, began = _version(engines), agent.engine.sampled, time.perf_counter()
        while not ended.is_set():
            for scored in scoring.ready():
                sampler.heard(scored)
            while (batch := sampler.batch()) is not None:
                now, tokens = time.perf_counter(), agent.engine.sampled
                figures = {"num_tokens/sampled": tokens - sampled, "time/play": now - began}
                made.put_nowait((replace(batch, figures={**batch.figures, **figures}), now))
                count, sampled, began = count + 1, tokens, now
            yield sampler.next(_version(engines) + max_staleness - count)

    def work() -> None:
        try:
            for episode in play(
                agent,
                arena,
                starts(),
                limits=limits,
                temperature=temperature,
                wanted=lambda start: not ended.is_set() and sampler.wanted(start),
            ):
                scoring.put(episode)
        except BaseException as error:
            made.put_nowait(error)

    thread = threading.Thread(target=work, name="play ahead", daemon=True)
    thread.start()
    try:
        while True:
            began = time.perf_counter()
            batch, done = _taken(made, thread)
            now = time.perf_counter()
            times = {"time/waited": now - began, "time/queued": now - done}
            ages = staleness(batch, _version(engines))
            yield replace(batch, figures={**batch.figures, **times, **ages})
    finally:
        ended.set()
        thread.join(_LEAVE)
        if thread.is_alive():
            raise TrainingHalted(f"play did not stop within {_LEAVE:g} s of being told to: a tool or the engine hangs")


def require_own_weights(agent: Agent, max_staleness: int) -> Sequence[TrainedEngine]:
    """The engines that learn; refused where one cannot play while the trainer changes its weights."""
    engines = trained_engines(agent)
    if max_staleness and (not engines or any(engine.shares_weights for engine in engines)):
        raise ConfigError(
            f"max_staleness is {max_staleness}, and the engine answers from the trainer's own tensors, which change "
            "while it plays on: choose an engine with weights of its own (--engine.kind process), or max_staleness 0"
        )
    return engines


def staleness(batch: Batch, version: int) -> dict[str, float]:
    """How many updates the weights have taken since each token of a batch was sampled."""
    rows = [row for episode in batch.episodes for row in episode.rows]
    age_S = version - np.concatenate([np.zeros(0, np.int32), *(row.versions[row.sampled] for row in rows)])
    if not len(age_S):
        return {}
    return {
        "staleness/mean": float(age_S.mean()),
        "staleness/max": float(age_S.max()),
        "staleness/older_share": float((age_S > 0).mean()),
    }


def _version(engines: Sequence[TrainedEngine]) -> int:
    """Of the oldest weights that are played with."""
    return min(engine.version for engine in engines)


def _taken(made: "queue.Queue[tuple[Batch, float] | BaseException]", thread: threading.Thread) -> tuple[Batch, float]:
    """The next batch; what ended play is raised here."""
    while True:
        try:
            found = made.get(timeout=_LOOK_UP)
        except queue.Empty:
            if thread.is_alive() or not made.empty():
                continue
            raise TrainingHalted("play ahead of the learner has ended without a word") from None
        if isinstance(found, BaseException):
            raise found
        return found
