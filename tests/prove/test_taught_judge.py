"""The proof that a judge is taught: imitation gives verdicts their form, GRPO brings their scores nearer to the labels.

Measured on held-out tasks, as a share of verdicts of the right form and as `|score - label|`, 1 without a verdict.
What is judged is one line long, so that a minute is enough. Left out: whole episodes (`make study PART=reagent`), and
labels of a teacher.
"""

import json
from contextlib import closing

import pytest

import palaestra
from palaestra.agents.local_model import serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.judging.verdict import Verdict, written
from palaestra.trainers import tiny_config
from palaestra.trainers.evaluation.evaluate import evaluate
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.setup import cold_start
from palaestra.trainers.setup.open_run import limits, open_arena
from palaestra.trainers.validation import changed

pytestmark = pytest.mark.prove
RIGHT, WRONG = "the outcome is right", "the outcome is wrong"


def label(failed, wrong):
    return round(1 - 0.15 * failed - 0.4 * wrong, 2)


def rule(messages, rng, tool_rate=1.0):
    """The label with its reasons; or, out of habit, a score without looking."""
    if rng.random() >= tool_rate:
        return written(Verdict(round(float(rng.random()), 2), "Look again.", "It is hard to say."))
    shown = messages[-1]["content"]
    failed, wrong = int(shown.split(" failed")[0].split()[-1]), WRONG in shown
    advice = "Check your answer." if wrong else "Go on like this."
    return written(Verdict(label(failed, wrong), advice, f"Calls that failed: {failed}, {WRONG if wrong else RIGHT}."))


@pytest.fixture
def config(tmp_path):
    """What a judge is shown, and the labels."""
    path, lines = tmp_path / "labels.jsonl", []
    for number in range(1000):
        failed, wrong = number % 4, number // 4 % 2
        shown = f"Episode {number}: calls {number % 9}, of which {failed} failed, {WRONG if wrong else RIGHT}."
        split = "train" if number % 5 else "eval"
        lines.append(json.dumps({"prompt": shown, "answer": label(failed, wrong), "split": split}))
    path.write_text("\n".join(lines))
    return tiny_config(
        "palaestra/Judge-v0",
        env_options=(f"tasks={path}", "rubric=false"),
        device="cpu",
        steps=16,
        num_prompts=8,
        max_grad_norm=0.1,
        demonstrations=2000,
    )


def measured(agent, config):
    with closing(palaestra.arena(config.env.env_id, 96, split="eval", **config.env.options)) as arena:
        _, episodes = evaluate(agent, arena, tasks=200, limits=limits(config))
    return {name: sum(one.parts[name] for one in episodes) / len(episodes) for name in ("format", "error")}


def test_f30_a_judge_learns_the_form_of_verdicts_and_scores_that_are_near_the_labels(config):
    config = changed(config, {"first_gate": 150, "imitation_decay": 100})
    with closing(open_arena(config)) as arena:
        raised = cold_start.cold_start(
            arena, rule, seed=0, limits=limits(config), device_name="cpu", config=config.cold_start
        )
        local = raised.local
        fresh = serve(tiny_model(len(local.tokenizer), seed=1), local.tokenizer, slots=96, seed=0)
        untrained, imitated = measured(fresh.agent, config), measured(local.agent, config)
        for _ in train_learner(Learner(local.agent, local.model, config), arena):
            pass
    learned = measured(local.agent, config)
    assert untrained["format"] < 0.05
    assert learned["format"] > 0.95
    assert learned["error"] < 0.5 * untrained["error"]
    assert learned["error"] < 0.6 * imitated["error"], "of those who imitate, 70 % score without looking"
