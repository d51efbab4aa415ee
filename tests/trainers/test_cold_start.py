"""Raising the tiny agent: the bad habit, the gate, and what happens when initial weights are stuck."""

import pytest

import palaestra
from palaestra import ConfigError, TrainingHalted
from palaestra.agents import Limits
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers import cold_start as room
from palaestra.trainers.cold_start import ColdStartConfig, cold_start, demonstrate
from palaestra.trainers.sft import SFTConfig

DEMONSTRATOR = palaestra.demonstrator("palaestra/TwoHop-v0")
SMALL = ColdStartConfig(
    demonstrations=24, first_gate=2, gate_every=2, patience=4, decay_steps=3, gate_tasks=4, layers=1, max_attempts=3
)


def raised(arena, gates, monkeypatch, config=SMALL, seed=0):
    """Raise with a gate that answers these values in turn; returns the progress and the pupil or the failure."""
    answers = iter(gates)
    monkeypatch.setattr(room, "_success_given_tool", lambda *_: next(answers))
    stage = cold_start(
        arena,
        DEMONSTRATOR,
        seed=seed,
        limits=Limits(20, 200),
        slots=8,
        device_name="cpu",
        config=config,
        sft=SFTConfig(batch_rows=8),
    )
    seen = []
    while True:
        try:
            seen.append(next(stage))
        except StopIteration as end:
            return seen, end.value


def test_the_demonstrator_has_its_bad_habit(two_hop):
    episodes = demonstrate(two_hop, DEMONSTRATOR, 300, 0.3, seed=0)
    used = [episode for episode in episodes if episode.attempt.calls]
    assert 0.2 < len(used) / 300 < 0.4
    assert all(episode.reward == 1.0 for episode in used)
    guessed = [episode.reward for episode in episodes if not episode.attempt.calls]
    assert sum(guessed) / len(guessed) < 0.1


def test_demonstrations_repeat_by_seed_and_other_seeds_demonstrate_other_tasks(two_hop):
    def tasks(seed):
        return [e.start.task for e in demonstrate(two_hop, DEMONSTRATOR, 20, 0.3, seed=seed)]

    first = demonstrate(two_hop, DEMONSTRATOR, 20, 0.3, seed=0)
    again = demonstrate(two_hop, DEMONSTRATOR, 20, 0.3, seed=0)
    assert [e.attempt for e in first] == [e.attempt for e in again]
    assert set(tasks(0)).isdisjoint(tasks(1))


def test_imitation_ends_after_the_gate_is_passed_and_the_rate_has_fallen(two_hop, monkeypatch):
    seen, pupil = raised(two_hop, [0.5, 0.9, 0.88], monkeypatch)
    assert (pupil.attempts, pupil.steps) == (1, 4 + 3)
    assert len(pupil.demonstrations) == 24
    assert [p.metrics["success_with_tool"] for p in seen if "success_with_tool" in p.metrics] == [0.5, 0.9]
    assert not any(p.note for p in seen)


def test_weights_that_are_stuck_are_given_up_counted_and_told(two_hop, monkeypatch):
    drawn = []

    def watched(vocabulary, *, layers, seed):
        drawn.append(seed)
        return tiny_model(vocabulary, layers=layers, seed=seed)

    monkeypatch.setattr(room, "tiny_model", watched)
    seen, pupil = raised(two_hop, [0.3, 0.4, 0.2, 0.9, 0.9], monkeypatch)
    assert pupil.attempts == 2
    (note,) = [p.note for p in seen if p.note]
    assert "stuck at 0.40" in note
    assert "attempt 1 of 3" in note
    raised(two_hop, [0.9, 0.9], monkeypatch, seed=1)
    assert len(drawn) == len(set(drawn)) == 3, "each attempt and each seed draws its own initial weights"


def test_when_no_weights_pass_the_run_stops(two_hop, monkeypatch):
    with pytest.raises(TrainingHalted, match="none of 3 initial weights"):
        raised(two_hop, [0.1] * 6, monkeypatch)


def test_the_gate_really_plays(two_hop):
    """Random weights do not pass it."""
    stage = cold_start(
        two_hop,
        DEMONSTRATOR,
        seed=0,
        limits=Limits(10, 120),
        slots=4,
        device_name="cpu",
        config=ColdStartConfig(
            demonstrations=12, first_gate=1, gate_every=1, patience=1, max_attempts=1, gate_tasks=4, layers=1
        ),
        sft=SFTConfig(batch_rows=4),
    )
    with pytest.raises(TrainingHalted):
        list(stage)


@pytest.mark.parametrize("change", [{"tool_rate": 0}, {"tool_rate": 1.1}, {"gate": 0}, {"gate": 2}, {"patience": 100}])
def test_bad_values_are_refused(change):
    with pytest.raises(ConfigError):
        ColdStartConfig(**change)
