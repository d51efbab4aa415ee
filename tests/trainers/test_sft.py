"""Imitation learns what the assistant said, and nothing else; a run keeps a model of every epoch."""

import json
import math
import signal
from dataclasses import replace
from itertools import pairwise

import families
import numpy as np
import pytest
import torch

from palaestra import ConfigError, Ending, TrainingHalted, UsageError
from palaestra.agents import Chat
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import load, serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers import sft as room
from palaestra.trainers.interrupts import Interrupted, Interrupts
from palaestra.trainers.sft import Imitation, last_epoch, longest_row, open_folder, rate_at, sft_rows, study, unfit
from palaestra.trainers.sft_config import SFTConfig, sft_config_from, tiny_sft_config

CHAT = families.chat("tiny")
TALKS = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"What is the mayor of the city where {name} was born?"},
        {"role": "assistant", "content": '<tool_call>{"name": "search"}</tool_call>'},
        {"role": "tool", "name": "search", "content": reply},
        {"role": "assistant", "content": f"Answer: {reply}"},
    ]
    for name, reply in (("Bado", "Kemu"), ("Kemu", "391"), ("word", "reply"), ("Tila", "Bado"))
]
ROWS = [row for talk in TALKS for row in written_rows(CHAT, talk)]
CONFIG = tiny_sft_config(batch_rows=4)


def model():
    return tiny_model(len(CHAT.tokenizer), layers=2, seed=4)


def episode(messages, **changes):
    """An episode with these messages."""
    plain = families.an_episode()
    return replace(plain, attempt=replace(plain.attempt, messages=tuple(messages)), **changes)


def losses(imitation, steps, rate=1.0):
    return [imitation.step(rate)["loss"] for _ in range(steps)]


# What is learned.


def test_the_loss_is_the_mean_surprise_of_assistant_tokens():
    pupil = model()
    expected = -np.concatenate([families.fresh_logprobs(pupil, row) for row in ROWS]).mean()
    figures = Imitation(pupil, ROWS, CONFIG).step(rate=0.0)
    assert figures["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert figures["num_tokens"] == sum(row.sampled.sum() for row in ROWS)
    assert figures["learning_rate"] == 0.0


def test_only_assistant_tokens_are_imitated():
    said = "".join(CHAT.tokenizer.decode(row.ids[row.sampled].tolist()) for row in ROWS)
    for talk in TALKS:
        for message in talk:
            if message["role"] == "assistant":
                assert message["content"] + "<|end|>" in said
    assert "What is" not in said
    assert "Be brief" not in said
    assert "<|tool|>" not in said
    assert "<|assistant|>" not in said


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "qwen3-2507", "llama3", "tiny"])
def test_consecutive_tool_results_are_context_and_shown_as_the_template_shows_them(family):
    chat = families.chat(family)
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "I look for both."},
        {"role": "tool", "name": "search", "content": "no result"},
        {"role": "tool", "name": "search", "content": "Kemu"},
        {"role": "assistant", "content": "Answer: Kemu"},
    ]
    made = sft_rows(chat, [("here", episode(messages, tools=families.TOOLS))], 10_000)
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


def test_loss_and_gradient_are_those_of_labels_at_assistant_tokens_alone():
    """As transformers computes them where every other label is -100."""
    pupil = model()
    for row in ROWS:
        ids = torch.tensor(row.ids, dtype=torch.long)[None]
        labels = ids.masked_fill(~torch.tensor(row.sampled)[None], -100)
        loss = pupil(input_ids=ids, labels=labels).loss
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in pupil.parameters()]).norm()
        pupil.zero_grad()
        figures = Imitation(pupil, [row], CONFIG).step(rate=0.0)
        assert figures["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert figures["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_imitation_lowers_the_loss(optimizer):
    imitation = Imitation(model(), ROWS, replace(CONFIG, optimizer=optimizer))
    found = losses(imitation, 30)
    assert found[-1] < 0.2 * found[0]
    assert imitation.steps == 30


def test_the_split_into_micro_batches_changes_nothing():
    pairs = [losses(Imitation(model(), ROWS, replace(CONFIG, micro_batch_tokens=most)), 2) for most in (1, 100_000)]
    np.testing.assert_allclose(pairs[0], pairs[1], rtol=1e-4)


def test_the_same_seed_imitates_in_the_same_order_and_each_row_once_a_round():
    def order(seed):
        return losses(Imitation(model(), ROWS, replace(CONFIG, batch_rows=1, seed=seed)), 8, rate=0.0)

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert sorted(order(0)[:4]) == sorted(order(0)[4:])


def test_a_batch_holds_no_row_twice_and_every_row_comes_in_each_epoch():
    few = Imitation(model(), ROWS[:3], replace(CONFIG, batch_rows=32, epochs=5))
    assert few.steps_in_all == 5
    assert few.step(0.0)["num_tokens"] == sum(row.sampled.sum() for row in ROWS[:3])
    uneven = Imitation(model(), ROWS, replace(CONFIG, batch_rows=3, epochs=2))
    assert uneven.steps_in_all == 3
    rounds = []
    for _ in range(3):
        uneven.step(0.0)
        rounds.append(uneven.rounds)
    assert rounds == [0, 1, 2]


def test_a_rate_of_zero_changes_nothing():
    pupil = model()
    before = [parameter.detach().clone() for parameter in pupil.parameters()]
    Imitation(pupil, ROWS, CONFIG).step(rate=0.0)
    assert all(torch.equal(one, other) for one, other in zip(pupil.parameters(), before, strict=True))


def test_stock_models_can_imitate():
    """Biases, grouped heads, a head of its own; with either optimizer."""
    for name in ("llama", "qwen2", "qwen3"):
        for config in (CONFIG, SFTConfig(learning_rate=1e-3)):
            found = losses(Imitation(families.stock_model(name, len(CHAT.tokenizer)), ROWS, config), 12)
            assert found[-1] < found[0]


def test_a_loss_that_is_no_number_stops_before_a_weight_is_touched():
    pupil = model()
    with torch.no_grad():
        next(pupil.parameters())[0, 0] = math.nan
    before = [parameter.detach().clone() for parameter in pupil.parameters()]
    with pytest.raises(TrainingHalted, match="step 1 of imitation"):
        losses(Imitation(pupil, ROWS, CONFIG), 5)
    pairs = zip(pupil.parameters(), before, strict=True)
    assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


def test_nothing_to_imitate_is_refused():
    with pytest.raises(ConfigError, match="nothing to imitate"):
        Imitation(model(), [], CONFIG)


# What it is learned from.


def test_episodes_that_teach_something_wrong_are_told_apart():
    talk = TALKS[0]
    assert unfit(episode(talk)) == ""
    assert unfit(episode(talk, ending=Ending.TURN_LIMIT)) == "", "each of its turns is whole"
    assert "BROKEN" in unfit(episode(talk, reward=None, ending=Ending.BROKEN))
    assert "ran out of tokens" in unfit(episode(talk, ending=Ending.LENGTH_LIMIT))
    assert "no turn" in unfit(episode(talk[:2]))
    assert "no text" in unfit(episode([*talk[:2], {"role": "assistant", "content": None, "tool_calls": []}]))
    earlier = replace(families.an_episode().start, prefix=({"role": "assistant", "content": "Answer: no"},))
    assert "earlier attempt" in unfit(episode(talk, start=earlier))
    critic = replace(families.an_episode().start, prefix=({"role": "user", "content": "Mind the river."},))
    assert unfit(episode(talk, start=critic)) == ""


def test_long_rows_are_cut_at_the_end_and_those_left_without_a_turn_are_counted():
    row = ROWS[0]
    first = int(np.flatnonzero(row.sampled)[0])
    episodes = [("here", episode(talk)) for talk in TALKS]
    whole = sft_rows(CHAT, episodes, 10_000)
    assert (whole.truncated, whole.emptied, len(whole.rows)) == (0, 0, 4)
    exact = sft_rows(CHAT, episodes[:1], len(row))
    assert (exact.truncated, len(exact.rows[0])) == (0, len(row))
    cut = sft_rows(CHAT, episodes[:1], first + 2)
    assert (cut.truncated, cut.emptied) == (1, 0)
    assert cut.rows[0].ids.tolist() == row.ids[: first + 2].tolist()
    assert cut.rows[0].sampled.sum() == 2
    gone = sft_rows(CHAT, episodes[:1], first)
    assert (gone.truncated, gone.emptied, gone.rows) == (1, 1, ())


def test_a_row_is_never_longer_than_the_model_has_places():
    pupil = model()
    assert longest_row(pupil, SFTConfig()) == 2048
    assert longest_row(pupil, SFTConfig(max_row_tokens=100)) == 100


def test_thinking_that_a_template_strips_makes_rows_of_its_own_and_each_turn_is_learned_once():
    chat = families.chat("qwen3")
    thought = "<think>\nmusing\n</think>\n\n"
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": thought + "word"},
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": thought + "reply"},
    ]
    made = sft_rows(chat, [("here", episode(messages))], 10_000)
    said = [chat.tokenizer.decode(row.ids[row.sampled].tolist()) for row in made.rows]
    assert said == [thought + "word<|im_end|>", thought + "reply<|im_end|>"]


def with_template(template):
    tokenizer = families._tokenizer(template, families._CHATML_TOKENS, families._CHATML_WORDS, "<|im_end|>")
    return Chat(tokenizer)


def test_a_template_that_cannot_show_a_dialogue_is_named_with_the_place():
    plain = "{%- for message in messages -%}{{- '<|im_start|>' + message.role + message.content + '<|im_end|>' -}}"
    end = "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant' -}}{%- endif -%}"
    no_tools = plain.replace(
        "{{-", "{%- if message.role == 'tool' -%}{{- raise_exception('no tools') -}}{%- endif -%}{{-", 1
    )
    with pytest.raises(UsageError, match=r"e\.jsonl, episode 3: this chat template cannot show tool messages"):
        sft_rows(with_template(no_tools + end), [("e.jsonl, episode 3", episode(TALKS[0]))], 100)
    no_system = plain.replace(
        "{{-", "{%- if message.role == 'system' -%}{{- raise_exception('no system') -}}{%- endif -%}{{-", 1
    )
    with pytest.raises(UsageError, match=r"here: the student's chat template cannot show .*no system"):
        sft_rows(with_template(no_system + end), [("here", episode(TALKS[0]))], 100)


# How fast.


def test_the_rate_rises_evenly_and_falls_along_a_cosine():
    rates = [rate_at(step, 100, SFTConfig()) for step in range(100)]
    assert rates[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.001
    assert all(one > other for one, other in pairwise(rates[10:]))


def test_a_constant_rate_stays_and_short_runs_have_one():
    config = SFTConfig(lr_schedule="constant", warmup_share=0.5)
    assert [rate_at(step, 4, config) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert rate_at(0, 1, SFTConfig()) == 1.0
    assert [rate_at(step, 3, SFTConfig(warmup_share=0.0)) for step in range(2)] == pytest.approx([1.0, 0.75])


def test_the_defaults_are_the_papers_and_the_tiny_agent_has_its_own():
    paper = SFTConfig("some/model")
    assert (paper.epochs, paper.batch_rows, paper.max_row_tokens) == (5, 32, 32_768)
    assert (paper.optimizer, paper.learning_rate, paper.adam_beta2) == ("adamw", 5e-5, 0.95)
    assert (paper.lr_schedule, paper.warmup_share, paper.max_grad_norm) == ("cosine", 0.1, 1.0)
    tiny = tiny_sft_config()
    assert (tiny.optimizer, tiny.learning_rate, tiny.matrix_learning_rate) == ("muon", 4e-3, 0.03)
    assert tiny_sft_config(epochs=2).epochs == 2
    assert sft_config_from(paper.as_dict()) == paper


def test_an_unknown_option_is_named_with_the_closest():
    with pytest.raises(ConfigError, match="did you mean 'batch_rows'"):
        tiny_sft_config(batch_row=3)


def test_bad_values_are_refused():
    wrong = {"epochs": 0, "learning_rate": math.nan, "matrix_learning_rate": -1, "max_grad_norm": math.inf}
    wrong |= {"max_row_tokens": 1, "warmup_share": 1.0, "adam_beta2": -0.1, "seed": -1, "optimizer": "sgd"}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            SFTConfig(**{name: value})


# What a run leaves.


def student():
    return serve(model(), CHAT.tokenizer, slots=1)


def run(folder, interrupts=None, local=None, **changes):
    """A run of four rows, two a step; the students' loss of each step."""
    local = local or student()
    config = tiny_sft_config(batch_rows=2, epochs=4, **changes)
    open_folder(folder, config.as_dict())
    stage = study(Imitation(local.model, ROWS, config), local, folder, interrupts)
    return local, list(stage)


def test_each_step_is_a_line_and_each_epoch_a_model(tmp_path):
    local, seen = run(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["epoch"] for line in lines] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert all(line["num_tokens"] > 0 and line["learning_rate"] > 0 for line in lines)
    assert [(one.step, one.total) for one in seen] == [(n, 8) for n in range(1, 9)]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["epoch-2", "epoch-3"]
    assert last_epoch(tmp_path / "run") == tmp_path / "run" / "model"
    kept = load(str(tmp_path / "run" / "model"), slots=1, device="cpu").model
    pairs = zip(kept.parameters(), local.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_same_seed_gives_the_same_weights(tmp_path):
    one, _ = run(tmp_path / "one")
    other, _ = run(tmp_path / "other")
    third, _ = run(tmp_path / "third", seed=1)
    weights = [torch.cat([p.flatten() for p in local.model.parameters()]) for local in (one, other, third)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_folder_with_a_run_is_not_touched(tmp_path):
    run(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="already holds a run"):
        open_folder(tmp_path / "run", {})
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        open_folder(tmp_path / "file", {})


def test_an_interrupt_waits_for_the_model_that_is_being_written(tmp_path, monkeypatch):
    real, calls = room.export, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        real(*arguments)

    monkeypatch.setattr(room, "export", interrupted)
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        run(tmp_path, interrupts)
    assert len(calls) == 1, "and the run ends right after it"
    assert last_epoch(tmp_path) == tmp_path / "checkpoints" / "epoch-1"
    load(str(last_epoch(tmp_path)), slots=1, device="cpu")


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    real, calls = room.export, []

    def full(*arguments):
        calls.append(arguments)
        real(*arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "export", full)
    with pytest.raises(TrainingHalted, match="epoch-2 could not be written: No space left"):
        run(tmp_path)
    assert last_epoch(tmp_path) == tmp_path / "checkpoints" / "epoch-1"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["epoch-1"]
