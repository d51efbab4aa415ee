"""Rows F01 to F17: masks, losses, presets, rewards, tools and endings of arXiv 2510.11701."""

import json
import math
from dataclasses import replace

import families
import gymnasium
import numpy as np
import parrot
import pytest
import torch
from batches import batch_of, local, rewarded, same, settings, spoken, weights
from commands import run

import palaestra
from palaestra import Ending, Start, Status, TrainingHalted
from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.policies.tiny import tiny_model
from palaestra.envs import ToolVectorEnv
from palaestra.envs.suite.two_hop import TwoHop
from palaestra.trainers import find_recipe
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.learn.forward import shares_beginnings
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.aggregation import token_weights

T, TCR, SCR = map(find_recipe, ("grpo-t", "grpo-tcr", "grpo-scr"))
REPLY = 35
"""Ids from here on are those of tool results."""


def learned(moved=lambda ids: ids < 0, **changes):
    """Figures and weights after one step on dialogues with tools; the model's state before ids that are `moved` is
    another one, so that other logits are predicted for them.
    """
    model = tiny_model(40, layers=2, seed=5)
    episodes = spoken(model, [(0, [4, 3], 1.0), (0, [9], 0.0), (0, [2, 2, 2], 0.0)])
    for one in episodes:
        (row,) = one.rows
        row.ids[:] = np.where(row.sampled | (np.arange(len(row)) < 3), row.ids % REPLY, REPLY + row.ids % 5)
        row.logprobs[row.sampled] = families.fresh_logprobs(model, row)

    def shift(module, args, kwargs, output):
        before = torch.nn.functional.pad(moved(kwargs["input_ids"][:, 1:]), (0, 1))
        output["last_hidden_state"] = output.last_hidden_state + 9.0 * before[..., None]
        return output

    shares_beginnings(model)  # What it finds by trying must not depend on what is moved.
    model.base_model.register_forward_hook(shift, with_kwargs=True)
    learner = Learner(Agent(families.Echo()), model, settings("grpo-tcr", **{"num_mini_batches": 1, **changes}))
    figures, _ = update(learner, batch_of(episodes), [1.0, -0.5, -0.5], BatchScores())
    return figures, weights(model)


def test_f01_what_is_predicted_of_a_tool_result_changes_neither_loss_nor_weights():
    figures, after = learned()
    other, same_after = learned(lambda ids: ids >= REPLY)
    assert same(after, same_after)
    assert (other["loss"], other["grad_norm"]) == (figures["loss"], figures["grad_norm"])
    with pytest.raises(TrainingHalted):  # What the policy sampled is predicted otherwise: the audit stops the run.
        learned(lambda ids: ids < REPLY)


@pytest.mark.parametrize("who", [lambda: local().agent, lambda: parrot.learner().agent], ids=["random", "with tools"])
def test_f01_f02_a_row_holds_the_ids_that_the_engine_sampled_and_the_mask_marks_these_alone(who):
    """Of random bytes, which no encoder would write in this way; and around tool results."""
    agent, said = who(), []
    poll = agent.engine.poll
    agent.engine.poll = lambda timeout=0.0: [said.append(list(one.ids)) or one for one in poll(timeout)]
    arena = palaestra.arena("palaestra/TwoHop-v0", 4)
    played = list(play(agent, arena, [Start(at, at) for at in range(8)], limits=TokenLimits(30, 1000)))
    arena.close()
    rows = [row for episode in played for row in episode.rows]
    edges = [np.flatnonzero(np.diff(row.sampled, prepend=False, append=False)).reshape(-1, 2) for row in rows]
    found = [row.ids[a:b].tolist() for row, places in zip(rows, edges, strict=True) for a, b in places]
    assert sorted(found) == sorted(said)
    assert sum(int(row.sampled.sum()) for row in rows) == sum(map(len, said))
    for row in rows:
        assert (row.versions == np.where(row.sampled, 0, -1)).all() and (row.logprobs[~row.sampled] == 0).all()


def test_f03_f05_tokens_weigh_the_same_or_samples_do_however_a_mini_batch_is_cut():
    """Episodes of one and of nine tokens (and one that never spoke)."""
    assert token_weights([1, 9, 0], TCR.aggregation) == [0.1, 0.1, 0.1]
    assert token_weights([1, 9, 0], SCR.aggregation) == pytest.approx([1 / 2, 1 / 18, 1 / 2])
    assert token_weights([0], "token") == token_weights([0], "sample") == [1.0]
    whole, cut = (learned(micro_batch_tokens=most)[0] for most in (10_000, 1))
    assert cut["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)


def one(recipe, log_ratios, advantage, **changes):
    """The losses of one row's tokens, and their gradients by the log-probs."""
    old_S = torch.linspace(-3, -1, len(log_ratios))
    new_S = (old_S + torch.tensor(log_ratios)).requires_grad_()
    rows_S = torch.zeros(len(log_ratios), dtype=torch.long)
    loss_S = replace(recipe.loss, **changes)(new_S, old_S, torch.full_like(old_S, advantage), rows_S).loss_S
    (slope_S,) = torch.autograd.grad(loss_S.sum(), new_S)
    return loss_S.detach(), slope_S


def test_f04_the_ratio_of_a_sequence_is_the_exponential_of_its_mean_log_ratio_with_the_gradient_of_that_form():
    log_ratios = torch.tensor([0.1, -0.05, 0.02], requires_grad=True)
    (-1.7 * torch.exp(log_ratios.mean())).backward()
    loss_S, slope_S = one(SCR, log_ratios.tolist(), 1.7, epsilon=0.5, epsilon_high=0.5)
    torch.testing.assert_close(loss_S / 1.7, torch.full((3,), -1.02361), atol=5e-6, rtol=0)
    torch.testing.assert_close(slope_S / 3, log_ratios.grad)


@pytest.mark.parametrize(
    ("recipe", "ratio", "advantage", "loss", "slope"),
    [
        (TCR, 1.25, 1.0, -1.25, -1.25),
        (T, 1.25, 1.0, -1.20, 0.0),
        (TCR, 1.30, 2.0, -2.56, 0.0),
        (TCR, 0.50, 1.0, -0.50, -0.50),
        (TCR, 0.70, -1.0, 0.80, 0.0),
        (TCR, 0.90, -1.0, 0.90, 0.90),
        (TCR, 1.50, -1.0, 1.50, 1.50),
        (TCR, 1.00, 1.5, -1.50, -1.50),
    ],
)
def test_f06_the_clip_has_two_sides(recipe, ratio, advantage, loss, slope):
    found = one(recipe, [math.log(ratio)], advantage)
    assert [float(value) for value in found] == pytest.approx([loss, slope], rel=1e-5)


def test_f07_the_dual_clip_bounds_what_a_bad_token_costs():
    assert [float(value) for value in one(TCR, [math.log(50)], -1.5)] == pytest.approx([15.0, 0.0])
    unbounded = one(TCR, [math.log(50)], -1.5, dual_clip=None)
    assert [float(value) for value in unbounded] == pytest.approx([75.0, 75.0], rel=1e-5)
    assert float(one(TCR, [math.log(50)], 1.5)[0]) == pytest.approx(-1.28 * 1.5)


PRESETS = {
    # aggregation, ratio, clip low and high, KL, dual clip, longest response, share of it that is overlong
    "grpo-t": ("token", "token", 0.2, 0.2, 0.001, 10.0, 16384, None),
    "grpo-tcr": ("token", "token", 0.2, 0.28, 0.0, 10.0, 20480, 0.2),
    "demyagent": ("token", "token", 0.2, 0.315, 0.0, 10.0, 20480, 0.2),
    "grpo-scr": ("sample", "sequence", 3e-4, 4e-4, 0.0, None, 20480, 0.2),
}


@pytest.mark.parametrize("name", PRESETS)
def test_f08_the_presets_are_the_papers_table(name, capsys):
    status, printed, _ = run(capsys, "recipes", name, "--json", "-")
    found = json.loads(printed)
    keys = ["aggregation", "loss.importance_sampling_level", "loss.epsilon", "loss.epsilon_high", "kl.beta"]
    keys += ["loss.dual_clip", "shaping.max_completion_length", "shaping.overlong_share"]
    assert status == 0 and tuple(found[key]["value"] for key in keys) == PRESETS[name]
    of_run = {"play.num_prompts": 64, "play.num_generations": 16, "optimizer.learning_rate": 1e-6, "steps": 450}
    assert {key: found[key]["value"] for key in of_run} == of_run
    assert all(found[key]["source"] for key in [*keys, *of_run])


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.7, -0.6, 1 / 3])
def test_f09_one_success_in_four_and_equal_rewards_give_exact_zeros(reward):
    """0.7 times eight has a standard deviation above zero in floating point."""
    found = TCR.advantage(rewarded([1, -1, -1, -1], [7] * 4), BatchScores())
    np.testing.assert_allclose(found, [1.5, -0.5, -0.5, -0.5], atol=1e-5)
    for size in (1, 2, 8, 13):
        assert not np.any(TCR.advantage(rewarded([reward] * size, [0] * size), BatchScores()))


def terms(reward, calls=0, said=5, shaping=TCR.shaping):
    row = families.token_row(4, [said])
    return shaping(families.an_episode(row, reward=reward, calls=[Status.OK] * calls))


def test_f10_a_wrong_answer_rises_with_calls_to_a_bound_and_a_right_one_only_as_the_paper_prints_it():
    wrong = [sum(terms(0.0, calls).values()) for calls in (0, 2, 4, 10)]
    assert wrong == pytest.approx([-1.0, -0.8, -0.6, -0.6])
    assert sum(terms(1.0, 3).values()) == 1.0
    assert sum(terms(1.0, 3, shaping=replace(TCR.shaping, bonus_on_correct=True)).values()) == pytest.approx(1.3)


def test_f11_the_overlong_penalty():
    found = [terms(1.0, said=length)["overlong"] for length in (1, 16384, 17408, 18432, 20480, 25000)]
    assert found == [0, 0, -0.25, -0.5, -1, -1]
    assert "overlong" not in terms(1.0, said=25000, shaping=T.shaping)


def opened(env_id, rows, tmp_path, **options):
    """An environment over a file of these rows, at its first task."""
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"split": "train", **row}) + "\n" for row in rows))
    env = gymnasium.make(env_id, tasks=str(path), **options).unwrapped
    env.reset(seed=0, options={"task": 0})
    return env


HALF = {"problem": "What is a half?", "answer": r"\frac{1}{2}"}


@pytest.mark.parametrize(
    ("answer", "by_value", "by_text"),
    [
        (r"so \boxed{\frac{1}{2}}.", 1, 1),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", 1, 1),
        (r"\boxed{\frac{1}{2}} then \boxed{1}", 0, 0),
        (r"\boxed{\frac{2}{4}}", 1, 0),
        (r"\boxed{0.5}", 1, 0),
        (r"\boxed{\frac{1}{2}}" + " and more words" * 10, 1, 0),  # The code reads the last hundred characters.
        (r"\frac{1}{2}", 0, 0),
        (r"\boxed{\frac{1}{2}", 0, 0),
    ],
)
def test_f12_the_last_box_counts_by_value_or_to_the_letter(answer, by_value, by_text, tmp_path):
    for compare, expected in (("value", by_value), ("text", by_text)):
        options = {} if compare == "value" else {"compare": "text"}
        assert opened("palaestra/CodeMath-v0", [HALF], tmp_path, **options).step(answer)[1] == expected


@pytest.mark.parametrize(
    ("program", "share"),
    [
        ("x = int(input())\nprint(x + 1 if x < 4 else 0)", 0.75),
        ("print(int(input()) + 1)", 1.0),
        ("print('never')", 0.0),
        ("x = = 1", -1.0),
        ("while True:\n    pass", 0.0),
    ],
)
def test_f13_a_program_is_worth_the_share_of_its_tests_and_is_right_if_it_passes_all(program, share, tmp_path):
    cases = {"inputs": ["1", "2", "3", "4"], "outputs": ["2", "3", "4", "5"]}
    row = {"problem_id": 7, "question": "Add one.", "input_output": json.dumps(cases)}
    env = opened("palaestra/CodeContest-v0", [row], tmp_path, seconds=0.1 if "True" in program else 6.0)
    _, reward, _, _, info = env.step(f"```python\n{program}\n```")
    assert 2 * reward - 1 == pytest.approx(share)
    assert info["parts"]["success"] == (share == 1.0)
    env.close()


def test_f14_f17_what_python_says_is_an_observation_whatever_the_program_does_and_is_cut_in_the_middle(tmp_path):
    sandbox = {"backend": "local", "limits": {"seconds": 0.4, "memory_bytes": 256 * 2**20}}
    env = opened("palaestra/CodeMath-v0", [HALF], tmp_path, sandbox=sandbox)

    def told(code):
        observation, _, terminated, truncated, _ = env.step(env.call("python", code=code))
        assert not (terminated or truncated)
        return observation

    assert told("6 * 7") == told("```python\nprint(42)\n```") == "42"
    assert "ZeroDivisionError" in told("1 / 0")
    assert "timed out after 0.4 s" in told("while True: pass")
    assert "Error" in told("x = bytearray(2**30)")
    assert "Error" in told("import socket; socket.create_connection(('1.1.1.1', 53), 1)")
    assert "Error" in told("open('/etc/shadow').read()")
    text = told("'a' * 9000 + 'z' * 9000")
    assert len(text) <= 4096 and text.startswith("'aaa") and text.endswith("zzz'") and "left out" in text
    env.close()


CALL = '<tool_call>{"name": "search", "arguments": {"query": "Bado born"}}</tool_call>'


@pytest.mark.parametrize(
    ("turn", "statuses", "ends"),
    [
        (CALL, [Status.TOOL_ERROR], False),
        (CALL * 2, [Status.TOOL_ERROR] * 2, False),
        ('<tool_call>{"name": "search", </tool_call>', [Status.BAD_CALL], False),
        (CALL.replace("search", "find"), [Status.BAD_CALL], False),
        (f"<think>{CALL}</think>Answer: Kemu", [], True),
    ],
    ids=["good", "two", "broken", "unknown", "in thinking"],
)
def test_f15_hermes_calls_are_read_and_what_is_wrong_is_told(turn, statuses, ends):
    env = gymnasium.make("palaestra/TwoHop-v0").unwrapped
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step(turn)
    assert (terminated, truncated) == (ends, False)
    assert Status.BAD_CALL not in statuses or "Error" in observation
    info = info if ends else env.step("Answer: Kemu")[-1]
    assert [call.status for call in info["attempt"].calls] == statuses


class Hasty(TwoHop):
    """TwoHop with a turn too few."""

    max_turns = 2


def test_f16_every_way_an_episode_ends_is_reached_and_said():
    """Answered is terminated, and all others are truncated; a call that cannot be read ends nothing (row F15)."""
    who = parrot.learner()

    def ended(world=TwoHop, most=1000, **options):
        arena = ToolVectorEnv(world(), 1)
        engine = parrot.Parrot(who.model, who.agent.chat, tool_rate=1.0, **options)
        (one,) = play(Agent(engine, who.agent.chat), arena, [Start(0, 0)], limits=TokenLimits(200, most))
        arena.close()
        assert one.rows[0].sampled[-1], "it ends on a token that the agent chose"
        return one

    whole, hasty, cut = ended(), ended(Hasty), ended(cut_every=1)
    assert (whole.ending, whole.attempt.turns) == (Ending.ANSWERED, 3)
    assert (hasty.ending, hasty.attempt.answer) == (Ending.TURN_LIMIT, None)
    assert (cut.ending, cut.attempt.answer) == (Ending.LENGTH_LIMIT, None)
    first_turn_ends = int(np.flatnonzero(np.diff(whole.rows[0].sampled))[1]) + 1
    full = ended(most=first_turn_ends + 2)
    assert full.ending is Ending.LENGTH_LIMIT
    assert len(full.rows[0]) == first_turn_ends, "a tool result that does not fit is not appended"
