"""Play that goes on while the learner learns: how far, with which weights, how it ends and how it is gone on with."""

import copy
import threading
import time
from contextlib import closing
from itertools import combinations

import numpy as np
import pytest
from batches import TOKENIZER, local, restless, settings

import palaestra
from palaestra import ConfigError, TrainingHalted
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.local_model import serve
from palaestra.trainers import grpo
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.reward.async_scoring import Scoring
from palaestra.trainers.rollout import async_rollouts, engine_lock
from palaestra.trainers.rollout.async_rollouts import PlayAhead
from palaestra.trainers.rollout.engine_lock import EngineLock
from palaestra.trainers.run.checkpoint import newest, restore, save
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.uniform import Uniform


class Apart(TorchEngine):
    """The built-in engine on a copy of the model, in the same process. It notes whoever comes while it is at work."""

    def __init__(self, model, stops, **options):
        super().__init__(copy.deepcopy(model), stops, **options)
        self.at_work, self.met = threading.Lock(), 0

    shares_weights = False

    def _alone(self, work, *arguments):
        if not self.at_work.acquire(blocking=False):
            self.met += 1
            return work(*arguments)
        try:
            return work(*arguments)
        finally:
            self.at_work.release()

    def poll(self, timeout=0.0):
        return self._alone(super().poll, timeout)

    def submit(self, request):
        return self._alone(super().submit, request)

    def update_weights(self, tensors, version):
        self._alone(super().update_weights, tensors, version)


def apart():
    return serve(restless(layers=1), TOKENIZER, slots=16, engine=Apart)


def pupil(lead, steps, **changes):
    made = apart()
    return Learner(made.agent, made.model, settings(ordered=False, max_staleness=lead, steps=steps, **changes))


class Noting:
    """An arena that notes what is begun, breaks at a call of `recv`, and hangs in it until it is let go."""

    def __init__(self, arena, breaks_at=None):
        self._arena, self.begun, self.breaks_at, self.calls = arena, [], breaks_at, 0
        self.hangs, self.stuck = threading.Event(), threading.Event()
        self.hangs.set()

    def __getattr__(self, name):
        return getattr(self._arena, name)

    def begin(self, slot, start):
        self.begun.append(start)
        self._arena.begin(slot, start)

    def recv(self, *arguments):
        if not self.hangs.is_set():
            self.stuck.set()
            self.hangs.wait(60)
        self.calls += 1
        if self.calls == self.breaks_at:
            raise RuntimeError("the arena is gone")
        return self._arena.recv(*arguments)


@pytest.fixture
def arena():
    opened = palaestra.arena("palaestra/TwoHop-v0", 16, ordered=False)
    yield Noting(opened)
    until(lambda: not any(thread.name == "play ahead" for thread in threading.enumerate()))
    opened.close()


def until(true, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("lead", [1, 2])
def test_play_is_as_far_ahead_as_it_may_be_and_no_farther(arena, lead):
    agent = apart().agent
    sampler = Uniform()("palaestra/TwoHop-v0", 10_000, Groups(2, 2))
    scoring = Scoring(lambda episode: {"outcome": 1.0})
    ahead = PlayAhead(agent, arena, sampler, scoring, max_staleness=lead, lock=EngineLock())
    with closing(scoring), closing(ahead):
        for version in range(4):
            agent.engine.version = version
            assert ahead.next().number == version
            wanted = 2 * (version + lead + 1)
            until(lambda wanted=wanted: len(arena.begun) == 2 * wanted)
            time.sleep(0.1)
            assert sorted({start.group for start in arena.begun}) == list(range(wanted))
            assert len({start.key for start in arena.begun}) == len(arena.begun) == 2 * wanted


@pytest.mark.parametrize("correction", ["none", "truncated", "masked"])
def test_what_is_learned_from_is_no_older_than_allowed_and_weights_change_between_polls(arena, correction):
    learner = pupil(2, 4, correction=correction)
    numbers, curve = [], []
    for progress in grpo.train_learner(learner, arena):
        curve.append(progress.metrics)
        played = [episode for episode, _ in progress.rollouts]
        numbers.append({episode.start.group // 4 for episode in played})
        tokens = [row.versions[row.sampled] for episode in played for row in episode.rows]
        age = progress.step - 1 - np.concatenate(tokens)
        assert age.min() >= 0 and age.max() <= 2
        found = [progress.metrics[f"staleness/{name}"] for name in ("mean", "max", "older_share")]
        assert found == pytest.approx([age.mean(), age.max(), (age > 0).mean()])
        assert all(progress.metrics[f"time/{name}"] >= 0 for name in ("play", "waited", "queued", "learn"))
    assert numbers == [{number} for number in range(4)]
    assert curve[-1]["staleness/older_share"] > 0, "play did not go on while the learner learned"
    assert all(metrics["optimizer_steps"] > 0 for metrics in curve)
    assert learner.agent.engine.met == 0
    if correction != "none":
        assert all(0 < metrics["correction/effective_share"] <= 1 + 1e-9 for metrics in curve)
        assert max(metrics["correction/gap_max"] for metrics in curve) > 1e-3


def test_new_weights_do_not_wait_for_a_thread_that_polls_without_a_pause():
    lock, done, polls = EngineLock(), threading.Event(), []

    def poll():
        while not done.is_set():
            with lock.take():
                polls.append(None)
                until(lambda: lock._urgent or done.is_set())  # It ends when somebody waits for it.

    thread = threading.Thread(target=poll)
    thread.start()
    for _ in range(10):
        until(lambda: lock._taken)
        with lock.take(urgent=True):
            pass
    done.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(polls) <= 11, "after each poll that weights have waited for, they come before the next one"


def test_an_interrupt_of_new_weights_that_wait_leaves_the_engine_to_play(monkeypatch):
    lock = EngineLock()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lock._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), lock.take(urgent=True):
            pass
    monkeypatch.setattr(engine_lock, "_TIMEOUT", 0.1)
    with lock.take():
        pass


def test_a_lead_is_refused_where_weights_are_shared_and_where_curves_are_to_repeat(arena):
    shared = local()
    learner = Learner(shared.agent, shared.model, settings(ordered=False, max_staleness=1))
    with pytest.raises(ConfigError, match=r"max_staleness is 1, .* weights of its own \(--engine.kind process\)"):
        next(grpo.train_learner(learner, arena))
    with pytest.raises(ConfigError, match=r"ordered to False \(--play.no-ordered\)"):
        settings(max_staleness=1)


def test_an_error_of_play_reaches_the_learner(arena):
    arena.breaks_at = 30
    with pytest.raises(RuntimeError, match="the arena is gone"):
        list(grpo.train_learner(pupil(2, 50), arena))


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), None], ids=["error", "interrupt", "closed"])
def test_play_ends_with_its_learner_and_leaves_nothing_in_the_engine(arena, monkeypatch, error):
    learner = pupil(2, 50)
    steps = grpo.train_learner(learner, arena)
    next(steps)
    if error is None:  # Also while a tool does not answer.
        monkeypatch.setattr(arena, "recv", lambda *_: [])
        monkeypatch.setattr(async_rollouts, "_CLOSE_TIMEOUT", 5.0)
        steps.close()
    else:

        def fails(*_):
            raise error

        monkeypatch.setattr(grpo, "update", fails)
        with pytest.raises(type(error)):
            next(steps)
    engine = learner.agent.engine
    assert not engine._queue and all(slot.ticket is None for slot in engine._slots)


def test_play_that_hangs_is_given_up(arena, monkeypatch):
    steps = grpo.train_learner(pupil(5, 50), arena)  # Play is not at its end yet, however late this thread is.
    next(steps)
    monkeypatch.setattr(async_rollouts, "_CLOSE_TIMEOUT", 0.2)
    arena.hangs.clear()
    assert arena.stuck.wait(60)
    with pytest.raises(TrainingHalted, match="play did not stop within"):
        steps.close()
    arena.hangs.set()


def test_a_run_that_plays_ahead_goes_on_where_it_was_without_a_group_skipped_or_repeated(arena, tmp_path):
    learner = pupil(2, 4)
    with closing(grpo.train_learner(learner, arena)) as steps:
        first = [next(steps) for _ in range(2)]
    assert max(start.group for start in arena.begun) >= 8, "nothing was ahead"
    save(learner, tmp_path)
    found, _ = newest(tmp_path)
    made = apart()
    again = restore(found, made, learner.config)
    rest = list(grpo.train_learner(again, arena))
    keys = [{episode.start.key for episode, _ in progress.rollouts} for progress in (*first, *rest)]
    assert [progress.step for progress in (*first, *rest)] == [1, 2, 3, 4]
    assert not any(one & other for one, other in combinations(keys, 2))
    assert set.union(*keys) == {start.key for start in arena.begun if start.group < 16}
