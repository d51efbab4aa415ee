"""A collapse is told by its cause, once; what merely changes is not."""

import numpy as np
import parrot
import pytest

import palaestra
from palaestra import TrainingHalted
from palaestra.trainers import grpo
from palaestra.trainers.audit import collapse
from palaestra.trainers.audit.collapse import Collapse

SUCCESS, DEAD, ENTROPY, GAP = "rewards/success/mean", "frac_reward_zero_std", "entropy", collapse._NAMES["gap"]
REPETITION, CALLS = "audit/repetition", "tools/call_frequency"
STILL = {SUCCESS: (0.6,), DEAD: (0.3,), ENTROPY: (0.4,), GAP: (2e-3,), REPETITION: (0.1,), CALLS: (1.0,)}
LEARNS = {SUCCESS: (0.3, 0.97), DEAD: (0.1, 0.95), ENTROPY: (0.4, 0.01), CALLS: (0.5, 2.0)}
LOST = {SUCCESS: (0.3, 0.6, 0.1)}


def notes_of(steps, seed, changes):
    """What is told of a series that goes by these values and stays at the last, with a tenth of noise on each step."""
    rng, watch, notes = np.random.default_rng(seed), Collapse(), []
    for share in np.linspace(0, 1.3, steps):
        values = {
            name: np.interp(share, np.linspace(0, 1, len(ends)), ends) for name, ends in (STILL | changes).items()
        }
        notes.append(watch.check({name: float(value * rng.uniform(0.9, 1.1)) for name, value in values.items()}))
    return [note for note in notes if note]


def notes_by_step(successes, groups, size, seed):
    """What is told, by step, of groups of episodes that succeed with these chances; hard and easy tasks are mixed."""
    rng, watch, notes = np.random.default_rng(seed), Collapse(), {}
    for step, success in enumerate(successes, 1):
        chance_G = rng.beta(success + 1e-9, 1 - success + 1e-9, groups)
        outcomes_GE = rng.random((groups, size)) < chance_G[:, None]
        metrics = {name: value * rng.lognormal(0, 0.2) for name, (value,) in STILL.items()}
        metrics |= {SUCCESS: outcomes_GE.mean(), DEAD: (outcomes_GE.all(1) | ~outcomes_GE.any(1)).mean()}
        if note := watch.check(metrics):
            notes[step] = note
    return notes


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "changes",
    [
        LEARNS,
        LEARNS | {ENTROPY: (0.4, 0.0001)},
        LEARNS | {CALLS: (2.0, 0.01), REPETITION: (0.1, 0.9)},
        LEARNS | {ENTROPY: (0.4, 1.6)},
        {SUCCESS: (0.6, 0.4), ENTROPY: (0.4, 0.02)},
        {SUCCESS: (0.0,), DEAD: (1.0,), ENTROPY: (5.0, 4.0), CALLS: (0.0,)},
    ],
)
def test_a_run_that_learns_or_stands_still_is_left_alone_however_its_figures_move(changes, seed):
    assert notes_of(200, seed, changes) == []


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("success", [0.03, 0.1, 0.3, 0.6, 0.9])
def test_noise_is_no_collapse(success, seed):
    assert notes_by_step([success] * 150, 8, 8, seed) == {}


@pytest.mark.parametrize("healthy_steps", [1, 2, 5, 40])
def test_a_success_that_is_gone_for_good_is_told_within_nine_steps_from_the_first_on(healthy_steps):
    notes = notes_by_step([0.31] * healthy_steps + [0.0] * 24, 8, 8, seed=1)
    ((step, note),) = notes.items()
    assert step <= healthy_steps + collapse.RECENT + 1
    assert "nothing is left to learn from" in note
    assert "success is 0.00, its best was" in note


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (LOST | {ENTROPY: (0.4, 0.01)}, "entropy went from"),
        ({ENTROPY: (0.4, 0.01), DEAD: (0.1, 1.0)}, "exploration has ended"),
        (LOST | {ENTROPY: (0.4, 3.0)}, "the policy has become noise"),
        ({GAP: (1e-3, 0.08)}, "drift apart"),
        (LOST | {REPETITION: (0.1, 0.9)}, "the policy repeats itself"),
        (LOST | {CALLS: (2.0, 2.0, 0.02)}, "the tool was given up"),
        (LOST | {CALLS: (0.5, 0.5, 4.0)}, "calls are made for their own sake"),
    ],
)
def test_a_collapse_is_told_once_with_its_cause(changes, cause):
    (told,) = notes_of(80, 0, changes)
    assert told.startswith("collapse: ")
    assert cause in told


@pytest.mark.parametrize("follows", ["warn", "stop", "off"])
def test_a_run_goes_on_with_a_note_or_stops_between_two_steps(monkeypatch, follows):
    monkeypatch.setattr(collapse, "RECENT", 1)
    monkeypatch.setattr(collapse, "_signs", lambda *_: {"noise": "all is noise"})
    arena, pupil = palaestra.arena(parrot.ENV, 12), parrot.learner(steps=3, collapse=follows)
    steps, notes = grpo.train_learner(pupil, arena), []
    try:
        notes += [next(steps).note, next(steps).note]
        if follows == "stop":
            with pytest.raises(TrainingHalted, match="collapse: all is noise; the policy has become noise"):
                next(steps)
        else:
            notes.append(next(steps).note)
    finally:
        steps.close()
        arena.close()
    assert pupil.step == (2 if follows == "stop" else 3)
    assert ["collapse" in note for note in notes] == [False, follows != "off", False][: len(notes)]
