"""A signal never costs a run of several ranks its last step, whenever it comes."""

import signal
from types import SimpleNamespace

import pytest

from palaestra.trainers.run import session
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.run.progress import Progress, ignore


@pytest.mark.parametrize("call", range(1, 7))
def test_ranks_that_are_interrupted_save_their_last_step_after_whichever_agreement_the_signal_comes(monkeypatch, call):
    """They agree before a step and after it, and a signal may come right after they agreed that there was none."""
    saved, agreed = [], []
    learner = SimpleNamespace(step=1, steps=9, torn=False, ranks=SimpleNamespace(count=2))
    run = SimpleNamespace(writes=True, checkpoints=None, add=ignore)
    monkeypatch.setattr(session, "save", lambda learner, _: saved.append(learner.step))
    interrupts = Interrupts()
    real = interrupts.agreed

    def struck():
        number = real()
        agreed.append(number)
        if len(agreed) == call:
            interrupts.pending = signal.SIGINT
        return number

    monkeypatch.setattr(interrupts, "agreed", struck)
    trackers = SimpleNamespace(send=lambda: None)
    during = session.RunSession(run, learner, lambda step: False, interrupts, trackers, ignore)

    def steps():
        with during:
            while True:
                with during.interruptible():
                    learner.step += 1
                during.log(Progress("grpo", learner.step, learner.steps))
                during.save_when_due()

    with pytest.raises(Interrupted):
        steps()
    assert saved == [learner.step]
    assert learner.step == 1 + (call + 1) // 2
