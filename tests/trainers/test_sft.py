"""Imitation learns what the assistant said, and nothing else; a run of it is kept and gone on with as any other."""

import json
import math
import signal
from dataclasses import replace
from itertools import pairwise

import families
import numpy as np
import pytest
import torch

from palaestra import Call, ConfigError, Ending, Status, TrainingHalted, UsageError
from palaestra.agents import Chat
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import load, serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.record import Record, write
from palaestra.trainers import Run, train
from palaestra.trainers.config.sections_config import OptimizerConfig
from palaestra.trainers.config.sft_config import SFTConfig, tiny_sft_config
from palaestra.trainers.data.demonstrations import unfit
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.learning_rate import rate_at
from palaestra.trainers.run import session
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.sft import longest_row, sft_rows

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


def model():
    return tiny_model(len(CHAT.tokenizer), layers=2, seed=4)


def episode(messages, **changes):
    """An episode with these messages."""
    plain = families.an_episode()
    return replace(plain, attempt=replace(plain.attempt, messages=tuple(messages)), **changes)


def imitation(rows=ROWS, pupil=None, **changes):
    """Of rows, by a small model or this one."""
    local = serve(pupil or model(), CHAT.tokenizer, slots=1)
    return Imitation(Learner(local.agent, local.model, tiny_sft_config(**{"batch_rows": 4, **changes})), rows)


def losses(imitation, steps, rate=1.0):
    return [imitation.step(rate)["loss"] for _ in range(steps)]


# What is learned.


def test_the_loss_is_the_mean_surprise_of_assistant_tokens():
    pupil = model()
    expected = -np.concatenate([families.fresh_logprobs(pupil, row) for row in ROWS]).mean()
    figures = imitation(ROWS, pupil).step(rate=0.0)
    assert figures["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert figures["num_tokens"] == sum(row.sampled.sum() for row in ROWS)
    assert figures["learning_rate"] == 0.0


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
        figures = imitation([row], pupil).step(rate=0.0)
        assert figures["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert figures["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_the_split_into_micro_batches_changes_nothing():
    pairs = [losses(imitation(micro_batch_tokens=most), 2) for most in (1, 100_000)]
    np.testing.assert_allclose(pairs[0], pairs[1], rtol=1e-4)


def test_the_same_seed_imitates_in_the_same_order_and_each_row_once_a_round():
    def order(seed):
        return losses(imitation(batch_rows=1, seed=seed), 8, rate=0.0)

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert sorted(order(0)[:4]) == sorted(order(0)[4:])


def test_a_batch_holds_no_row_twice_and_every_row_comes_in_each_epoch():
    few = imitation(ROWS[:3], batch_rows=32, epochs=5)
    assert (few.learner.steps, few.epoch_steps) == (5, 1)
    assert few.step(0.0)["num_tokens"] == sum(row.sampled.sum() for row in ROWS[:3])
    uneven = imitation(batch_rows=3, epochs=2)
    assert (uneven.learner.steps, uneven.epoch_steps) == (3, 2)
    assert [uneven.step(0.0)["epoch"] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_stock_models_can_imitate(name):
    """Biases, grouped heads, a head of its own; with either optimizer."""
    for changes in ({}, {"algorithm": "adamw", "learning_rate": 1e-3}):
        found = losses(imitation(ROWS, families.stock_model(name, len(CHAT.tokenizer)), **changes), 12)
        assert found[-1] < found[0]


def test_a_gradient_that_is_no_number_is_skipped_and_many_of_them_stop_the_run():
    made = imitation(epochs=9)
    pupil, bad = made.learner.model, {1, 3, 4, 5}
    poison = math.nan
    pupil.model.norm.weight.register_hook(lambda grad: grad * poison if made.learner.step in bad else grad)
    seen = []

    def weights():
        return torch.cat([weight.detach().flatten() for weight in pupil.parameters()])

    def step():
        made.learner.require_gradients()
        metrics, now = made.step(), weights()
        seen.append((metrics["skipped_steps"], torch.equal(now, before)))
        return now

    before = weights()
    for _ in range(6):
        before = step()
    assert seen == [(float(n in bad), n in bad) for n in range(6)]
    with pytest.raises(TrainingHalted, match="of the last 3 optimizer steps were not finite"):
        step()
    assert torch.equal(weights(), before)


def test_nothing_to_imitate_is_refused():
    with pytest.raises(ConfigError, match="nothing to imitate"):
        imitation([])


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


def test_a_row_is_never_longer_than_the_pupilhas_places():
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


def learned(chat, messages, calls=(), **options):
    """What a student is taught to say, row by row."""
    shown = episode(messages)
    shown = replace(shown, attempt=replace(shown.attempt, calls=tuple(calls)))
    made = sft_rows(chat, [("here", shown)], 10_000, **options)
    return [chat.tokenizer.decode(row.ids[row.sampled].tolist()) for row in made.rows], made.rows


def tool_dialogue(*said):
    messages = [{"role": "user", "content": "question"}]
    for text in said:
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "name": "search", "content": "reply"}]
    return messages[:-1]


CALL = '<tool_call>{"name": "search"}</tool_call>'


@pytest.mark.parametrize("opening", ["<think>\n", "<think>", ""])
def test_a_student_that_always_thinks_is_taught_inside_the_thinking_that_its_template_opens(opening):
    chat = families.chat("qwen3-thinking")
    messages = tool_dialogue(f"{opening}musing\n</think>\n\n{CALL}", "word")
    kept, rows = learned(chat, messages)
    # The prompt ends with the opened tag, which is no token to learn; a turn without a thought closes it at once.
    assert kept == ["musing\n</think>\n\n" + CALL + "<|im_end|>" + "\n</think>\n\nword<|im_end|>"]
    whole = chat.tokenizer.decode(rows[0].ids.tolist())
    assert whole.count("<think>") == whole.count("</think>") == 2
    stripped, _ = learned(chat, messages, strip_thinking=True)
    assert stripped == ["\n</think>\n\n" + CALL + "<|im_end|>" + "\n</think>\n\nword<|im_end|>"]


def test_thinking_is_kept_as_it_is_or_left_out_for_a_student_that_need_not_think():
    chat = families.chat("qwen3-2507")
    messages = tool_dialogue("<think>\nmusing\n</think>\n\n" + CALL, "word")
    assert learned(chat, messages)[0] == ["<think>\nmusing\n</think>\n\n" + CALL + "<|im_end|>word<|im_end|>"]
    assert learned(chat, messages, strip_thinking=True)[0] == [CALL + "<|im_end|>word<|im_end|>"]


def test_turns_with_a_call_that_failed_can_be_context_so_that_the_way_out_is_learned_and_not_the_fault():
    chat = families.chat("qwen2.5")
    messages = tool_dialogue(CALL, CALL + "again", "word")
    calls = [Call("search", {}, "reply", status) for status in (Status.BAD_CALL, Status.OK)]
    every, rows = learned(chat, messages, calls)
    assert every == [CALL + "<|im_end|>" + CALL + "again<|im_end|>word<|im_end|>"]
    worked, masked = learned(chat, messages, calls, only_worked=True)
    assert worked == [CALL + "again<|im_end|>word<|im_end|>"]
    assert masked[0].ids.tolist() == rows[0].ids.tolist(), "only the mask differs"
    assert (masked[0].versions[~masked[0].sampled] == -1).all()
    assert learned(chat, messages, calls[:1], only_worked=True)[0] == every, "which result is whose is not known"
    both = [replace(call, status=Status.TOOL_ERROR) for call in calls]
    assert learned(chat, messages[:-1], both, only_worked=True)[0] == [], "nothing is left to learn"


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
    rates = [rate_at(step, 100, SFTConfig().optimizer) for step in range(100)]
    assert rates[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.001
    assert all(one > other for one, other in pairwise(rates[10:]))


def test_a_rate_is_constant_or_falls_in_a_line_and_short_runs_have_one():
    def rates(steps, schedule, warmup):
        config = OptimizerConfig(lr_schedule=schedule, warmup_share=warmup)
        return [rate_at(step, steps, config) for step in range(steps)]

    assert rates(4, "constant", 0.5) == [0.5, 1.0, 1.0, 1.0]
    assert rates(3, "linear", 0.0) == pytest.approx([1.0, 0.525, 0.05])
    assert rates(1, "linear", 0.0) == rates(1, "cosine", 0.1) == [1.0]
    assert rates(3, "cosine", 0.0)[:2] == pytest.approx([1.0, 0.75])


# A run of it.


@pytest.fixture
def file(tmp_path):
    """Four demonstrations of one row each."""
    path = tmp_path / "talks.jsonl"
    write(path, [Record("x/Y-v0", episode(talk)) for talk in TALKS])
    return path


def config_of(file, **changes):
    return tiny_sft_config(files=(str(file),), batch_rows=2, epochs=4, device="cpu", **changes)


def imitated(folder, config, stop=99, interrupts=None):
    """Take a run to its end, or leave it after a step; the steps that were taken."""
    seen = []
    with Run(folder, config) as run:
        for step in train(run, interrupts=interrupts):
            seen.append((step.step, step.total))
            if step.step == stop:
                break
    return seen


def model_in(folder):
    return torch.cat([p.detach().flatten() for p in load(str(folder), slots=1, device="cpu").model.parameters()])


def epochs_of(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_each_step_is_a_line_and_each_epoch_a_checkpoint_and_the_seed_decides(file, tmp_path):
    folder = tmp_path / "run"
    assert imitated(folder, config_of(file)) == [(n, 8) for n in range(1, 9)]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["epoch"] for line in lines] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert all(line["num_tokens"] > 0 and line["learning_rate"] > 0 for line in lines)
    assert epochs_of(folder) == ["step-000006", "step-000008"]
    assert torch.equal(model_in(folder / "model"), model_in(folder / "checkpoints" / "step-000008" / "model"))
    summary = Run.read(folder).summary
    assert (summary["epochs"], summary["steps"], summary["rows"]) == (4, 8, 4)
    assert (summary["loss_first"], summary["loss_last"]) == (lines[0]["loss"], lines[-1]["loss"])
    imitated(tmp_path / "same", config_of(file))
    imitated(tmp_path / "other", config_of(file, seed=1))
    assert torch.equal(model_in(tmp_path / "same" / "model"), model_in(folder / "model"))
    assert not torch.equal(model_in(tmp_path / "other" / "model"), model_in(folder / "model"))


def test_imitation_that_stops_after_any_step_is_the_one_that_never_stopped(file, tmp_path):
    """In the middle of an epoch too, where no checkpoint was due."""
    config = config_of(file)
    imitated(tmp_path / "whole", config)
    expected = model_in(tmp_path / "whole" / "model")
    for stop in (1, 2, 5, 7):
        folder = tmp_path / f"stopped-{stop}"
        assert imitated(folder, config, stop) == [(n, 8) for n in range(1, stop + 1)]
        assert imitated(folder, config) == [(n, 8) for n in range(stop + 1, 9)]
        assert torch.equal(model_in(folder / "model"), expected)
        losses = [[line["loss"] for line in Run.read(path).metrics] for path in (folder, tmp_path / "whole")]
        assert losses[0] == losses[1]


def test_a_run_of_imitation_goes_on_with_the_same_files_alone(file, tmp_path):
    imitated(tmp_path / "run", config_of(file), 3)
    elsewhere = file.with_name("elsewhere.jsonl")
    elsewhere.write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match="files was"):
        Run(tmp_path / "run", config_of(elsewhere))
    write(file, [Record("x/Y-v0", episode(talk)) for talk in TALKS[::-1]])
    with pytest.raises(UsageError, match=r"no longer hold what .*step-000003 has imitated; put them back"):
        imitated(tmp_path / "run", config_of(file))
    assert len(Run.read(tmp_path / "run").metrics) == 3


def test_an_interrupt_waits_for_the_checkpoint_that_is_being_written(file, tmp_path, monkeypatch):
    real, calls = session.save, []

    def interrupted(*arguments):
        calls.append(arguments)
        signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(session, "save", interrupted)
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        imitated(tmp_path / "run", config_of(file), interrupts=interrupts)
    assert len(calls) == 1, "and the run ends right after it"
    assert epochs_of(tmp_path / "run") == ["step-000002"]
    monkeypatch.undo()
    assert imitated(tmp_path / "run", config_of(file))[0] == (3, 8)
