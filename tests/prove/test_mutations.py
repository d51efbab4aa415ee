"""Bugs that were published elsewhere, or that no test of ours noticed at first, each put back by one changed line: a
test or the audit must notice it.

A row names the file, the line as it stands, what it becomes, and the smallest test that fails then. Tests of
`test_audit.py` that train are the audit itself: the run halts. A line that is no longer in the source fails here, so
whoever changes it says what the bug looks like now. And the audit is no nuisance: it halts no clean run, and costs
under 1 % of a step.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.prove
ROOT = Path(__file__).parents[2]
CLEAN = (
    "trainers/test_audit.py::test_a_clean_run_of_tool_calls_halts_nowhere_and_says_how_far_engine_and_trainer_are_apart"
)
CLEAN_TCR, CLEAN_KL = f"{CLEAN}[tiny-grpo-tcr]", f"{CLEAN}[qwen2.5-grpo-t]"
CUT = "trainers/test_audit.py::test_a_turn_that_was_cut_is_right_and_the_same_turn_as_an_answer_is_not"
SAMPLER, ADVANTAGES = "trainers/samplers/group_sampler.py", "trainers/losses/group_advantages.py"
CONVERSATION, UPDATE = "agents/conversation.py", "trainers/learn/update.py"
SAMPLE = "Sample(place, groups.index(episodes[place].episode.start.group)) for place in trained"
BY_PROMPT = "len({episodes[i].episode.attempt.task.prompt for i in trained[: trained.index(place) + 1]}) - 1"


class Mutation(NamedTuple):
    """One changed line."""

    file: str
    old: str
    new: str
    caught_by: str


MUTATIONS = {
    "loss on observations": Mutation(
        CONVERSATION, "self._row.extend(delta, False,", "self._row.extend(delta, True,", CLEAN_TCR
    ),
    "mask shifted by one": Mutation(
        CONVERSATION, "np.array(self.sampled, np.bool_)", "np.roll(np.array(self.sampled, np.bool_), 1)", CLEAN_TCR
    ),
    "mask all zero after drift": Mutation(
        "trainers/losses/importance_correction.py",
        "weight_S = _weights(log_ratio_S,",
        "weight_S = _weights(log_ratio_S * 1e9,",
        "trainers/test_correction.py::test_f52_what_is_rejected_leaves_the_denominator",
    ),
    "groups keyed by prompt text": Mutation(
        SAMPLER,
        SAMPLE,
        f"Sample(place, {BY_PROMPT}) for place in trained",
        "trainers/test_audit.py::test_two_groups_of_one_task_are_two_groups",
    ),
    "wrong group ids": Mutation(
        SAMPLER, SAMPLE, "Sample(place, i % len(groups)) for i, place in enumerate(trained)", CLEAN_TCR
    ),
    "masked rows in the baseline": Mutation(
        SAMPLER,
        "if scored.terms is None or episode.fault or",
        "if scored.terms is None or",
        "trainers/test_audit.py::test_an_episode_that_was_cut_short_from_outside_moves_no_baseline",
    ),
    "rejected rows in the denominator": Mutation(
        UPDATE,
        "token_weights([correction.token_counts[i] for i in mini_batch],",
        "token_weights([batch.lengths[i] for i in mini_batch],",
        "trainers/test_correction.py::test_f52_what_is_rejected_leaves_the_denominator",
    ),
    "the only losing rollout dropped": Mutation(
        SAMPLER, "if scored.terms is None or", "if scored.terms is None or episode.ending == 'length_limit' or", CUT
    ),
    "population for sample deviation": Mutation(
        ADVANTAGES, "(rewards_G.std(ddof=1) + _EPSILON)", "(rewards_G.std() + _EPSILON)", CLEAN_TCR
    ),
    "division by zero spread": Mutation(
        ADVANTAGES,
        "if np.ptp(rewards_G) > 0:\n            advantages_E[members] = (rewards_G",
        "if True:\n            advantages_E[members] = (rewards_G",
        "papers/test_demystify.py::test_f09_one_success_in_four_and_equal_rewards_give_exact_zeros",
    ),
    "micro-batch means averaged": Mutation(
        UPDATE,
        "loss = (loss_S * micro.weights_N[sampled_N]).sum()",
        "loss = loss_S.mean()",
        "trainers/test_update.py::test_f03_the_denominator_is_that_of_the_mini_batch_not_of_the_micro_batch",
    ),
    "KL leaking into returns": Mutation(
        "trainers/learn/score_batch.py",
        "return BatchScores(reference, old if corrects else None, values=values)",
        "return BatchScores(reference, old, reference and _costs(config.recipe.kl, batch, reference, old), values)",
        CLEAN_KL,
    ),
    "ratio at another temperature": Mutation(
        UPDATE,
        "token_logprobs(learner.model, micro, config.play.temperature)",
        "token_logprobs(learner.model, micro, 1.0)",
        "trainers/test_grpo.py::test_the_engine_scores_like_the_trainer_at_any_temperature[0.8]",
    ),
    "top-p mass ignored": Mutation(
        "palaestra/protocols.py",
        "top_p: float = 1.0",
        "top_p: float = 0.9",
        "trainers/test_grpo.py::test_the_engine_scores_like_the_trainer_at_any_temperature[1.0]",
    ),
    "old log-probs recomputed after the update": Mutation(
        UPDATE,
        "micro.old_N[sampled_N],",
        "logprobs_N[sampled_N].detach(),",
        "trainers/test_update.py::test_f53_several_passes_take_several_steps_and_ratios_stay_those_to_who_sampled",
    ),
    "an engine that tells an old version": Mutation(
        "trainers/learn/learner.py", "version=self.step)", "version=0)", CLEAN_TCR
    ),
    "stale weights in the engine": Mutation(
        "agents/engines/torch_engine.py",
        "remaining.pop(name).copy_(tensor)",
        "remaining.pop(name)",
        "agents/test_torch_engine.py::test_new_weights_are_used_at_once_and_old_caches_are_not",
    ),
    "advantage sign": Mutation(
        ADVANTAGES, "(rewards_G - rewards_G.mean()) /", "(rewards_G.mean() - rewards_G) /", CLEAN_TCR
    ),
    "overlong added twice": Mutation(
        "trainers/reward/terms.py",
        'terms["overlong"] = overlong(',
        'terms["overlong"] = 2 * overlong(',
        "papers/test_demystify.py::test_f11_the_overlong_penalty",
    ),
    "a truncated answer graded": Mutation(
        "agents/play.py", "if completion.fault or completion.cut:", "if completion.fault:", CUT
    ),
    "pass@k over segments": Mutation(
        "trainers/evaluation/evaluate.py",
        'row.append(episode.parts["success"])',
        'row.extend([episode.parts["success"]] * max(1, len(episode.rows)))',
        "trainers/test_evaluate.py::test_the_figures_of_every_k_are_reported_and_broken_episodes_are_in_none",
    ),
    "truncation to the context limit unnoticed": Mutation(
        CONVERSATION,
        "if len(self._row.ids) + len(delta) >= room:",
        "if (delta := delta[: max(0, room - len(self._row.ids) - 1)]) is None:",
        "agents/test_conversation.py::test_what_does_not_fit_is_not_appended",
    ),
    "EOS left out of the loss": Mutation(
        CONVERSATION,
        "self._row.extend(ids, True, logprobs, versions)",
        "self._row.extend(ids[:-1], True, logprobs[:-1], versions[:-1]); self._row.extend(ids[-1:], False, [0], [-1])",
        CLEAN_TCR,
    ),
    "end-of-turn token duplicated": Mutation(
        "agents/chat.py",
        "return ids[1:] if last_id in self.stops and",
        "return ids if last_id in self.stops and",
        CLEAN_TCR,
    ),
    "tool result trained on when the template merges roles": Mutation(
        CONVERSATION,
        "if not is_turn(message):",
        'if message["role"] == "user":',
        "agents/test_conversation.py::test_a_dialogue_of_somebody_else_becomes_the_rows_its_author_would_have[qwen2.5]",
    ),
    "a BROKEN episode scored 0": Mutation(
        "trainers/reward/async_scoring.py",
        'return Scored(episode, fault=episode.fault or "it is BROKEN")',
        'return Scored(episode, {"outcome": 0.0})',
        "trainers/test_update.py::test_a_broken_episode_is_never_trained_on",
    ),
    "resume that repeats tasks": Mutation(
        SAMPLER,
        'self._first = self._begun = int(state["first"])',
        "self._first = self._begun = 0",
        "trainers/test_sampling.py::test_a_sampler_goes_on_where_another_stood",
    ),
    "copies that are not damped": Mutation(
        ADVANTAGES,
        "np.clip(np.asarray(value, np.float64) * sample.weight,",
        "np.clip(np.asarray(value, np.float64),",
        "trainers/test_update.py::test_a_copy_of_a_group_teaches_by_its_weight_and_within_the_bound",
    ),
    "damped advantages that are not used": Mutation(
        "trainers/grpo.py",
        "damped(raw_advantages, batch, recipe.max_advantage)",
        "raw_advantages",
        "trainers/test_update.py::test_a_copy_of_a_group_teaches_by_its_weight_and_within_the_bound",
    ),
    "the smaller of both value losses": Mutation(
        "trainers/losses/critic.py",
        "loss_S.maximum(",
        "loss_S.minimum(",
        "trainers/test_critic.py::test_of_the_clipped_and_the_plain_value_loss_the_larger_counts",
    ),
    "a critic without a schedule": Mutation(
        "trainers/learn/learner.py",
        "self.critic.step(rate)",
        "self.critic.step(1.0)",
        "trainers/test_critic.py::test_the_critic_follows_the_learning_rate_schedule",
    ),
    "the best model chosen on training tasks": Mutation(
        "trainers/evaluation/during_training.py",
        'with closing(open_arena(config, "eval")) as held_out:',
        'with closing(open_arena(config, "train")) as held_out:',
        "trainers/test_measured_on_the_way.py::test_every_measurement_plays_the_evaluation_split",
    ),
    "greedy figures that are sampled": Mutation(
        "trainers/evaluation/during_training.py",
        "config.play.temperature, 0.0)",
        "config.play.temperature, config.play.temperature)",
        "trainers/test_measured_on_the_way.py"
        "::test_greedy_figures_are_of_the_likeliest_tokens_whatever_the_engine_draws",
    ),
    "BLEU counts that are not clipped": Mutation(
        "envs/rewards/bleu.py",
        "sum((_grams(answer, length) & _grams(expected, length)).values())",
        "sum(n for gram, n in _grams(answer, length).items() if gram in _grams(expected, length))",
        "envs/rewards/test_bleu.py::test_f40_what_is_said_again_matches_no_oftener_than_the_reference_has_it",
    ),
    "a posterior that never fades": Mutation(
        "trainers/samplers/posterior.py",
        "(posterior - prior) * self._options.fading",
        "(posterior - prior)",
        "trainers/test_samplers.py::test_what_is_known_of_a_task_fades_with_each_new_group_of_it",
    ),
    "old caches under new weights in the middle of a turn": Mutation(
        "agents/engines/rows.py",
        "        self.cached, self.fresh = [], True\n        if self.ticket is None:\n",
        "        if self.ticket is None:\n            self.cached, self.fresh = [], True\n",
        "agents/test_torch_engine.py::test_new_weights_in_the_middle_of_a_turn_read_all_of_it_anew",
    ),
}


@pytest.fixture(scope="module")
def run():
    """Runs a test, where one is given with a mutation; its status and its last words."""
    script = [sys.executable, str(Path(__file__).with_name("mutant.py"))]
    process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def ask(nodes, file="", old="", new=""):
        job = {"nodes": [f"tests/{node}" for node in nodes], "file": file, "old": old, "new": new}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.wait(30)
    process.stdout.close()


def test_without_a_mutation_all_these_tests_pass(run):
    answer = run(sorted({mutation.caught_by for mutation in MUTATIONS.values()}))
    assert answer["status"] == 0, answer["said"]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_published_bug_is_caught(run, name):
    file, old, new, caught_by = MUTATIONS[name]
    count = (ROOT / file).read_text(encoding="utf-8").count(old)
    assert count == 1, f"{file} has {old!r} {count} times; expected once: name the line as it stands now"
    answer = run([caught_by], file, old, new)
    # 1 is a test that failed; anything else, that it could not be run.
    assert answer["status"] == 1, f"{name} is not caught by {caught_by}: {answer['said']}"
    assert " failed" in answer["said"], answer["said"]
