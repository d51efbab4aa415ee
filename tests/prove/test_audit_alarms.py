"""The audit is no nuisance: two hundred clean steps of a run that learns give no alarm, and it costs 1 % of a step. A
policy that is destroyed gives one.

Left out: that it catches defects of the code (`test_mutations`).
"""

import copy
import time
from contextlib import closing

import pytest

from palaestra.trainers import grpo
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.learn import update
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.setup.cold_start import cold_started
from palaestra.trainers.setup.open_run import open_arena
from palaestra.trainers.validation import changed

pytestmark = pytest.mark.prove
CONFIG = tiny_config("palaestra/TwoHop-v0", device="cpu")
AUDITS = ((grpo, "audited"), (grpo, "require"), (update, "audit_weights"), (update, "audit_gradients"))


@pytest.fixture(scope="module")
def pupil():
    return cold_started(CONFIG).local


def steps(pupil, **changes):
    """The progress of each step from the pupil as it was raised."""
    config, local = changed(CONFIG, changes), copy.deepcopy(pupil)
    with closing(open_arena(config)) as arena:
        yield from grpo.train_learner(Learner(local.agent, local.model, config), arena)


def test_two_hundred_clean_steps_give_no_alarm(pupil):
    seen = list(steps(pupil, steps=200, num_prompts=4, collapse="stop"))
    assert len(seen) == 200
    assert not [progress.note for progress in seen if "collapse" in progress.note]
    assert seen[-1].metrics["entropy"] < 0.3 * seen[0].metrics["entropy"], "it falls, and that is no collapse"
    assert sum(progress.metrics["rewards/success/mean"] for progress in seen[-20:]) / 20 > 0.8


def test_a_learning_rate_that_destroys_the_policy_is_told_within_ten_steps(pupil):
    played_steps = list(steps(pupil, steps=10, num_prompts=4, learning_rate=1.0))
    assert played_steps[0].metrics["rewards/success/mean"] > 0.2
    assert [progress for progress in played_steps if "collapse: " in progress.note]


def test_the_audit_costs_about_one_percent_of_a_step(pupil, monkeypatch):
    """CPU time beside CPU time. What compares log-probs was there before it and is not counted."""
    spent = [0.0]

    def timed(inner):
        def outer(*given):
            began = time.process_time()
            try:
                return inner(*given)
            finally:
                spent[0] += time.process_time() - began

        return outer

    for module, name in AUDITS:
        monkeypatch.setattr(module, name, timed(getattr(module, name)))
    stage = steps(pupil, steps=21)
    next(stage)
    began, spent[0] = time.process_time(), 0.0
    for _ in stage:
        pass
    share = spent[0] / (time.process_time() - began)
    print(f"audit: {share:.2%} of a step of {(time.process_time() - began) / 20:.3f} s of CPU")
    assert share < 0.02, "1 % on an idle machine"
