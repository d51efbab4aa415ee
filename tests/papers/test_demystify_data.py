"""Rows F18 to F27: imitation, curation, measuring and files of arXiv 2510.11701."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import families
import gymnasium
import numpy as np
import pytest
import torch
from batches import TOKENIZER, batch_of, local, restless, scripted, settings
from commands import run
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from test_curation import played

from palaestra import UsageError
from palaestra.agents.model_folder import export
from palaestra.mixture import read_mixture
from palaestra.record import Record, read, write
from palaestra.trainers import find_recipe
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.data.curation import BUCKETS, curate
from palaestra.trainers.evaluation.metrics import GAP, batch_metrics
from palaestra.trainers.evaluation.statistics import any_of_k, avg_at_k, best_of_resamples, maj_at_k, pass_at_k
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.update import update
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.sft import sft_rows
from palaestra.trainers.view import analyse


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "qwen3-2507", "llama3", "tiny"])
def test_f18_consecutive_tool_results_are_context_and_shown_as_the_template_shows_them(family):
    chat = families.chat(family)
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "I look for both."},
        {"role": "tool", "name": "search", "content": "no result"},
        {"role": "tool", "name": "search", "content": "Kemu"},
        {"role": "assistant", "content": "Answer: Kemu"},
    ]
    plain = families.an_episode()
    written = replace(plain, attempt=replace(plain.attempt, messages=tuple(messages)), tools=families.TOOLS)
    made = sft_rows(chat, [("here", written)], 10_000)
    (row,) = made.rows
    edges = np.flatnonzero(np.diff(row.sampled, prepend=False, append=False)).reshape(-1, 2)
    end = chat.tokenizer.decode([chat.end_of_turn])
    spans = [chat.tokenizer.decode(row.ids[begin:stop].tolist()) for begin, stop in edges]
    assert spans == ["I look for both." + end, "Answer: Kemu" + end]
    whole = chat.tokenizer.decode(row.ids.tolist())
    shown = chat.tokenizer.apply_chat_template(messages, tools=list(families.TOOLS), tokenize=False)
    if family not in ("qwen3",):  # Stock Qwen3 puts an empty think block before the last turn only.
        assert shown.startswith(whole)
    assert 0 < whole.index("no result") < whole.index("Kemu")


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORLD = """
from dataclasses import replace
import palaestra
from palaestra.envs.suite.two_hop import TwoHop, demonstrate

class Sourced(TwoHop):
    def task(self, rng):
        made = super().task(rng)
        return replace(made, data={**made.data, "source": ("odd", "even")[made.answer < "M"]})

def seldom(messages, rng):
    return demonstrate(messages, rng, tool_rate=0.5)

palaestra.register("me/Sourced-v0", "sourced_rows:Sourced", demonstrator="sourced_rows:seldom")
"""


def test_f19_a_teacher_is_filtered_scored_and_the_best_of_each_source_kept_with_exact_counts(capsys, there):
    (there / "sourced_rows.py").write_text(WORLD)
    asked = ["sourced_rows:me/Sourced-v0", "--tasks", 20, "--samples", 2, "--score", "short", "--top-k", 3]
    status, _, err = run(capsys, "collect", *asked, "--out", "good.jsonl")
    assert status == 0, err
    kept = [one.episode for one in read(there / "good.jsonl")]
    every = [one.episode for one in read(there / "good.played.jsonl")]
    right = [one for one in every if one.parts["success"] == 1]
    distinct = {one.attempt.task.prompt: one for one in right}
    counts = json.loads((there / "good.collect.json").read_text())["counts"]
    assert [len(every), len(kept)] == [counts["played"], counts["kept"]] == [40, 6]
    assert counts["wrong"] == 40 - len(right) > 0
    assert counts["duplicates"] == len(right) - len(distinct) > 0
    assert counts["beyond_top_k"] == len(distinct) - 6 > 0
    assert sorted(one.attempt.task.data["source"] for one in kept) == ["even"] * 3 + ["odd"] * 3
    assert all(one.parts["success"] == 1 for one in kept)


def test_f20_steps_of_a_solution_become_calls_that_are_made_and_the_episode_says_that_it_is_synthetic(capsys, there):
    rows = [
        ("What is 4 * 6 + 1?", "25", "<think>First 4 * 6 = 24. Then 24 + 1 = 25, good.</think>25"),
        ("What is 7 * 8?", "56", "<think>7 * 8 = 54, I think</think>56"),
    ]
    named = [dict(zip(("prompt", "answer", "working"), row, strict=True), split="train") for row in rows]
    (there / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
    asked = ["collect", "calculator", "--out", "s.jsonl", "--stitch", "working", "--env-options", "tasks=tasks.jsonl"]
    assert run(capsys, *asked)[0] == 0
    (record,) = read(there / "s.jsonl")  # What the tool says of 7 * 8 is not what the solution says.
    assert record.synthetic and record.episode.reward == 1.0
    assert [(call.arguments["expression"], call.text) for call in record.episode.attempt.calls] == [
        ("4 * 6", "24"),
        ("24 + 1", "25"),
    ]


PAPER = "CodeMath#dapo=17000,CodeMath#skywork=4902,CodeContest=3586,Science=3000"


@pytest.mark.parametrize("text", ["TwoHop=3,Calculator=1", PAPER])
def test_f21_per_source_counts_and_ratios_match_the_config_and_repeat_with_the_seed(text):
    mixture = read_mixture(text)
    counts = dict.fromkeys(mixture.weights, 40)

    def drawn(seed):
        source = find_recipe("grpo-tcr").sampler(text, counts, Groups(10, 2), seed)
        return [source.draw(group) for group in range(2000)]

    sources = [env for env, _ in drawn(0)]
    assert drawn(0) == drawn(0) != drawn(1)
    for end in range(mixture.block, 2001, mixture.block):
        for env, share in mixture.shares.items():
            assert abs(sources[:end].count(env) - end * share) < 1, (env, end)


def test_f22_eight_episodes_make_the_buckets_of_the_paper():
    found = curate([one for passed in range(9) for one in played(passed, task=passed)])
    assert [(one.task, one.bucket) for one in found.tasks] == [
        *((1, "hard"), (2, "hard")),
        *((3, "medium"), (4, "medium"), (5, "medium")),
        *((6, "easy"), (7, "easy")),
    ]


@settings_of(max_examples=40)
@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.tuples(*[st.sampled_from([0, 0.1, 0.2, 0.3, 1, 1.5, 7])] * 3).filter(any),
    st.integers(0, 3),
)
def test_f22_the_histogram_is_the_targets_within_one_task_and_no_larger_set_would_be(there, target, seed):
    solved = [passed for passed, count in enumerate(there, start=1) for _ in range(count)]
    episodes = [one for task, passed in enumerate(solved) for one in played(passed, 4, task=task)]
    asked = dict(zip(BUCKETS, target, strict=True))
    found = curate(episodes, samples=4, target=asked, seed=seed)
    exact = {name: Fraction(str(value)) / sum(Fraction(str(one)) for one in target) for name, value in asked.items()}
    size = len(found.tasks)
    assert all(abs(found.histogram[name] - exact[name] * size) < 1 for name in BUCKETS)
    assert any((size + 1) * exact[name] > count for name, count in zip(BUCKETS, there, strict=True))
    numbers = [one.task for one in found.tasks]
    assert numbers == sorted(set(numbers))
    assert all(one.passed == solved[one.task] for one in found.tasks)


# One sample of the third task broke. Partial success in the last.
MATRIX = [[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.5, 0.9, 0.0, 0.2]]
ANSWERS = [["a", "b", " a\n", "a"], ["x", "x", None, "y"], ["q", "r", None], ["s", "t", "u", "v"]]


def test_f23_the_figures_of_a_matrix_worked_by_hand():
    assert avg_at_k(MATRIX) == pytest.approx([0.75, 0.25, 1 / 3, 0.4])
    assert pass_at_k(MATRIX, 1) == pytest.approx([0.75, 0.25, 1 / 3, 0.0])
    # 1 - C(1,2)/C(4,2) = 1, 1 - C(3,2)/C(4,2) = 1/2, 1 - C(2,2)/C(3,2) = 2/3
    assert pass_at_k(MATRIX, 2) == pytest.approx([1.0, 0.5, 2 / 3, 0.0])
    assert pass_at_k(MATRIX, 4) == pytest.approx([1.0, 1.0, 0.0]), "the third task has three samples"
    assert any_of_k(MATRIX, 1) == pytest.approx([1, 0, 1, 0])
    assert any_of_k(MATRIX, 4) == pytest.approx([1, 1, 0])
    # a wins; x wins and is wrong; a tie of four, each worth a quarter
    assert maj_at_k(MATRIX, ANSWERS, 4) == pytest.approx([1.0, 0.0, 0.4])
    # q and r tie, and q alone is right
    assert maj_at_k(MATRIX, ANSWERS, 3)[2] == pytest.approx(0.5)


def test_f23_the_papers_best_is_drawn_as_their_code_draws_it():
    """1000 times k indices, one after the other, from the generator seeded with 42; then the mean of the best."""
    row = [0.0, 0.2, 1.0, 0.0, 0.7]
    generator = np.random.RandomState(42)
    drawn = [max(row[i] for i in generator.choice(len(row), size=3, replace=True)) for _ in range(1000)]
    assert best_of_resamples([row], 3)[0] == pytest.approx(np.mean(drawn), abs=1e-12)


def test_f24_the_entropy_of_uniform_logits_is_the_log_of_the_vocabulary_and_masked_tokens_are_excluded():
    model = restless()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    vocabulary = model.config.vocab_size
    row = families.token_row(5, [3, 2, 4], logprob=-math.log(vocabulary))
    row.logprobs[~row.sampled] = -77.0
    batch = batch_of([families.an_episode(row), families.an_episode(row, reward=0.0, seed=1)])
    learner = Learner(replace(local(), model=model).agent, model, settings("grpo-t", beta=0.0))
    figures, _ = update(learner, batch, [1.0, -1.0], BatchScores())
    assert figures["entropy/learned"] == pytest.approx(math.log(vocabulary), rel=1e-5)
    assert batch_metrics(batch)["entropy"] == pytest.approx(math.log(vocabulary), rel=1e-6)


def test_f25_calls_tokens_a_round_success_rate_and_modes_of_a_scripted_log(tmp_path):
    path = tmp_path / "played.jsonl"
    write(path, [Record("palaestra/TwoHop-v0", one, agent="script") for one in scripted()])
    (group,) = analyse([path]).groups
    found = group.each[0]
    assert found["tools/call_frequency"] == 10 / 5
    assert 1 - found["tools/failure_frequency"] == 8 / 10
    assert found["completions/tokens_per_turn"] == pytest.approx(242 / 13)
    assert (found["completions/mean_length"], found["completions/max_length"]) == (242 / 5, 90)
    assert (found["completions/clipped_ratio"], found["episodes/turn_limit"]) == (0.2, 0.2)
    # Medians: 20 tokens a turn, 2 calls.
    assert (found["modes/deliberative"], found["modes/deliberative/success"]) == (0.6, pytest.approx(2 / 3))
    assert (found["modes/reactive"], found["modes/reactive/success"]) == (0.2, 0.0)
    assert found["entropy"] == pytest.approx(0.5)
    assert found[GAP] == pytest.approx(1 - 0.4)


@pytest.mark.prove
def test_f26_a_sweep_of_epsilon_high_has_three_values_the_same_seeds_and_data_and_one_table(capsys, there):
    export(restless(), TOKENIZER, there / "model")
    small = "--play.num-prompts 2 --play.num-generations 2 --play.max-turn-tokens 6 --play.max-episode-tokens 256"
    small += " --play.ordered --eval-tasks 1 --optimizer.num-mini-batches 1 --steps 1 --device cpu"
    asked = ["--model", "model", "--over", "recipe.loss.epsilon_high=0.28,0.315,0.35", "--seeds", "0", "--run", "s"]
    status, printed, err = run(capsys, "sweep", "two-hop", *small.split(), *asked, "--json", "s.json")
    assert status == 0, err
    assert printed.count("held-out, after") == 1
    groups = json.loads((there / "s.json").read_text())["groups"]
    assert [one["name"] for one in groups] == [f"epsilon_high {value}" for value in ("0.28", "0.315", "0.35")]
    files = sorted((there / "s").glob("*/seed-0/episodes/step-000001.jsonl"))
    starts = [[one.episode.start for one in read(path)] for path in files]
    assert len(files) == 3 and starts[0] == starts[1] == starts[2]


AIME = {"id": 60, "problem": "2 + 2?", "solution": "Add them.", "answer": "4", "url": "x"}
GPQA = {
    "Question": "Which?", "Correct Answer": "right", "Incorrect Answer 1": "wrong", "Incorrect Answer 2": "false",
    "Incorrect Answer 3": "off", "Record ID": "rec0",
}  # fmt: skip
LIVE = {
    "question_content": "Add two numbers.", "question_id": "a", "starter_code": "", "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "4 5", "output": "9", "testtype": "stdin"}]),
}  # fmt: skip
ADDS = "```python\nprint(sum(map(int, input().split())))\n```"


@pytest.mark.parametrize(
    ("env_id", "row", "right", "wrong"),
    [
        ("palaestra/CodeMath-v0", AIME, r"\boxed{4}", r"\boxed{5}"),
        ("palaestra/Science-v0", GPQA, r"\boxed{RIGHT}", r"\boxed{E}"),
        ("palaestra/CodeContest-v0", LIVE, ADDS, "```python\nprint(3)\n```"),
    ],
    ids=["AIME", "GPQA-Diamond", "LiveCodeBench"],
)
def test_f27_published_files_are_read_and_judged_and_an_absent_one_is_said(env_id, row, right, wrong, there):
    (there / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    env = gymnasium.make(env_id, split="all", tasks="tasks.jsonl").unwrapped
    for answer, success in ((right, 1.0), (wrong, 0.0)):
        prompt, _ = env.reset(seed=0)
        assert "private" not in prompt and "solution" not in prompt
        letter = next((line[0] for line in prompt.splitlines() if line.endswith(") right")), "")
        assert env.step(answer.replace("RIGHT", letter))[-1]["parts"]["success"] == success
    env.close()
    with pytest.raises(UsageError, match=r"gone\.jsonl"):
        gymnasium.make(env_id, split="all", tasks="gone.jsonl").reset()
