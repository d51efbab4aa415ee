"""Play episodes on a thread, at most `max_staleness` updates ahead of the learner, and queue the complete batches.

A group of batch `b` begins when the weights have version `b - max_staleness` or newer, and the learner trains on batch
`b` at version `b`. So no trained token is older than `max_staleness` updates. When the run ends, batches that were
played ahead are dropped. A checkpoint holds the sampler's state after the last batch that was trained on, so a resumed
run plays the dropped batches again. Engines that share the trainer's tensors are refused, because their weights would
change in the middle of a pass.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.policies.table import trained_engines
from palaestra.episode import Start
from palaestra.errors import ConfigError, TrainingHalted
from palaestra.protocols import Arena, TrainedEngine
from palaestra.trainers.batch import Batch
from palaestra.trainers.reward.async_scoring import Scoring
from palaestra.trainers.rollout.engine_lock import EngineLock, LockedEngine
from palaestra.trainers.samplers.sampler import Sampler

_ALIVE_INTERVAL = 1.0
"""Seconds to wait for a batch before checking that the thread is alive."""
_CLOSE_TIMEOUT = 60.0
"""Seconds that play may take to stop: one round, including a tool call in progress."""


class PlayAhead:
    """Source of batches that a thread plays ahead of the learner. Close it after use: this ends the thread."""

    def __init__(
        self,
        agent: Agent,
        arena: Arena,
        sampler: Sampler,
        scoring: Scoring,
        *,
        limits: TokenLimits | None = None,
        temperature: float = 1.0,
        max_staleness: int,
        lock: EngineLock,
    ) -> None:
        """Start the thread. The engine's weights may change only while `lock` is held."""
        self._engines = require_own_weights(agent, max_staleness)
        self._agent = replace(agent, engine=LockedEngine(agent.engine, lock))
        self._arena, self._sampler, self._scoring = arena, sampler, scoring
        self._limits, self._temperature, self._max_staleness = limits, temperature, max_staleness
        # Room for each batch that may be ahead, for the next one, and for the error that ended play.
        self._queue: queue.Queue[tuple[Batch, float] | BaseException] = queue.Queue(max_staleness + 2)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._play, name="play ahead", daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        """Wait for the next batch and return it. If an error ended play, raise that error."""
        began = time.perf_counter()
        batch, queued = self._take()
        now = time.perf_counter()
        times = {"time/waited": now - began, "time/queued": now - queued}
        return replace(batch, figures={**batch.figures, **times, **staleness(batch, _version(self._engines))})

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        self._thread.join(_CLOSE_TIMEOUT)
        if self._thread.is_alive():
            raise TrainingHalted(f"play did not stop within {_CLOSE_TIMEOUT:g} s: a tool or the engine hangs")

    def _play(self) -> None:
        try:
            for episode in play(
                self._agent,
                self._arena,
                self._starts(),
                limits=self._limits,
                temperature=self._temperature,
                still_needed=lambda start: not self._closing.is_set() and self._sampler.still_needed(start),
            ):
                self._scoring.put(episode)
        except BaseException as error:
            self._queue.put_nowait(error)

    def _starts(self) -> Iterator[Start | None]:
        """Yield starts until `close` is called, and queue each complete batch. Yield None while as many batches are
        ahead as `max_staleness` allows.
        """
        engine = self._agent.engine
        batch_count, sampled, began = _version(self._engines), engine.sampled, time.perf_counter()
        while not self._closing.is_set():
            for scored in self._scoring.ready():
                self._sampler.observe(scored)
            while (batch := self._sampler.batch()) is not None:
                now, tokens = time.perf_counter(), engine.sampled
                figures = {"num_tokens/sampled": tokens - sampled, "time/play": now - began}
                self._queue.put_nowait((replace(batch, figures={**batch.figures, **figures}), now))
                batch_count, sampled, began = batch_count + 1, tokens, now
            yield self._sampler.next(_version(self._engines) + self._max_staleness - batch_count)

    def _take(self) -> tuple[Batch, float]:
        while True:
            try:
                item = self._queue.get(timeout=_ALIVE_INTERVAL)
            except queue.Empty:
                if self._thread.is_alive() or not self._queue.empty():
                    continue
                raise TrainingHalted("play ahead of the learner has ended without an error") from None
            if isinstance(item, BaseException):
                raise item
            return item


def require_own_weights(agent: Agent, max_staleness: int) -> Sequence[TrainedEngine]:
    """Return the engines whose weights are trained.

    Raise `ConfigError` if play must run during updates (`max_staleness` above 0) and an engine shares the weights.
    """
    engines = trained_engines(agent)
    if max_staleness and (not engines or any(engine.shares_weights for engine in engines)):
        raise ConfigError(
            f"max_staleness is {max_staleness}, and the engine answers from the trainer's own tensors, which change "
            "while it plays on: choose an engine with weights of its own (--engine.kind process), or max_staleness 0"
        )
    return engines


def staleness(batch: Batch, version: int) -> dict[str, float]:
    """Return metrics of the tokens' age: the number of weight updates since each token of the batch was sampled."""
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
    """Return the oldest version among the weights of these engines."""
    return min(engine.version for engine in engines)
