"""Controls: the same start and steps, another lesson, in a process that dies with us."""

import multiprocessing
import os
from concurrent.futures import Future

import families
import pytest

from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.experiments import controls
from palaestra.trainers.experiments.controls import CONTROLS, Background


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.prove
def test_controls_are_the_same_whichever_process_trains_them_and_theirs_does_not_outlive_a_failure(
    tmp_path, monkeypatch
):
    tokenizer = families.TOKENIZERS["tiny"]
    export(tiny_model(len(tokenizer), layers=1, seed=1), tokenizer, tmp_path)
    small = {"num_prompts": 2, "num_generations": 2, "slots": 4, "max_turn_tokens": 6, "device": "cpu"}
    config = tiny_config("palaestra/TwoHop-v0", steps=3, eval_tasks=2, **small)
    pids, trained = [], []

    def fail_in_the_middle():
        with Background() as background:
            background.start(tmp_path, config)
            assert len([future.result(timeout=300) for _, future in background._waiting]) == 4
            trained.append(background.results())
            with monkeypatch.context() as alone:
                alone.setattr(background._pool, "submit", lambda *_: Future())
                background.start(tmp_path, config)
                trained.append(background.results())
            pids.extend(background._pool._processes)
            background.start(tmp_path, tiny_config("palaestra/TwoHop-v0", steps=10_000))
            raise RuntimeError("elsewhere")

    with pytest.raises(RuntimeError, match="elsewhere"):
        fail_in_the_middle()
    there, here = ([(one.name, one.curve, one.measured.figures()) for one in results] for results in trained)
    assert here == there
    assert [control.name for control in trained[0]] == list(CONTROLS)
    assert [len(control.curve) for control in trained[0]] == [3, 1]
    assert [control.measured.sampled.samples for control in trained[0]] == [1, 3]
    for process in multiprocessing.active_children():
        process.join(60)
    assert len(pids) == 1
    assert not alive(pids[0])


@pytest.mark.parametrize(
    ("free", "beside"), [(2**50, True), (0, True), (2**20, False)], ids=["much", "unknown", "little"]
)
def test_controls_wait_for_the_end_of_the_run_where_memory_is_too_small_for_both(monkeypatch, tmp_path, free, beside):
    monkeypatch.setattr(controls, "available_memory", lambda: free)
    monkeypatch.setattr(controls._Piece, "run", lambda piece: ([0.5], piece.name))
    monkeypatch.setattr(controls, "_control", lambda name, runs: (name, len(runs)))
    submitted = []
    with Background() as background:
        monkeypatch.setattr(background._pool, "submit", lambda run: submitted.append(run) or Future())
        assert background.start(tmp_path, tiny_config("palaestra/TwoHop-v0")) is beside
        assert background.results() == [(CONTROLS[0], 1), (CONTROLS[1], 3)]
    assert len(submitted) == (4 if beside else 0)
