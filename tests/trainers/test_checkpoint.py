"""Going on with a run: bit by bit what it would have been, from the newest checkpoint that is whole, or not at all."""

import json
import os
import resource
import shutil
import signal
import stat
from dataclasses import replace

import families
import pytest
import torch
from batches import same
from families import random_agent
from going import STEPS, on, run_of, state, step_folder, steps_kept, told
from safetensors.torch import load_file

from palaestra import TrainingHalted, UsageError
from palaestra.agents.local_model import serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.record import read
from palaestra.trainers import Run, grpo, train
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.losses.policy import Clip
from palaestra.trainers.run import checkpoint
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.setup.open_learner import open_learner
from palaestra.trainers.setup.open_run import open_model, settled
from palaestra.trainers.validation import changed, plain


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_agent(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(model):
    return run_of(model)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    on(folder, run_of(model))
    return folder


@pytest.fixture(scope="module")
def three_steps(model, tmp_path_factory):
    """The folder of a run of three steps."""
    folder = tmp_path_factory.mktemp("runs") / "three"
    on(folder, run_of(model), 3)
    return folder


TWO_HOP = "palaestra/TwoHop-v0"
KL = {"recipe": "grpo-t", "beta": 0.1, "lr_schedule": "constant"}


@pytest.mark.parametrize("changes", [{}, pytest.param(KL, marks=pytest.mark.prove)], ids=["tcr", "kl"])
def test_f56_a_run_that_stops_after_any_step_is_the_one_that_never_stopped(model, tmp_path, changes):
    config = run_of(model, **changes)
    learner = on(tmp_path / "whole", config)
    assert learner.step == STEPS
    assert all(line["optimizer_steps"] > 0 for line in told(tmp_path / "whole")[0]), "nothing was learned"
    for stop in range(STEPS):
        folder = tmp_path / f"stopped-{stop}"
        on(folder, config, stop)
        on(folder)
        assert told(folder) == told(tmp_path / "whole")
        for step in range(1, STEPS + 1):
            assert same(state(step_folder(folder, step)), state(step_folder(tmp_path / "whole", step)))


def test_the_program_of_ten_lines_trains_can_be_left_and_gone_on_with(config, whole, tmp_path):
    """Left after a step of which no checkpoint was due, and after one of which there was."""
    config, seen = changed(config, {"checkpoint_every": 3}), []
    for stop in (2, 3, 99):
        with Run(tmp_path / "run", config) as run:
            for step in train(run):
                seen.append(step.step)
                if step.step == stop:
                    break
    assert seen == [1, 2, 3, 4]
    assert told(tmp_path / "run")[0] == told(whole)[0]
    records = [record for path in (tmp_path / "run" / "episodes").iterdir() for record in read(path)]
    assert {(record.env_id, record.episode.start.env) for record in records if record.lessons} == {(TWO_HOP, TWO_HOP)}
    with Run(tmp_path / "run", config) as run:
        assert run.finished
        assert list(train(run)) == []
    kept = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert same(kept, load_file(step_folder(whole, STEPS) / "model" / "model.safetensors"))


def test_what_came_after_the_checkpoint_is_forgotten_and_happens_again(config, whole, tmp_path):
    on(tmp_path / "killed", changed(config, {"checkpoint_every": 3}), 2)
    shutil.rmtree(tmp_path / "killed" / "checkpoints")  # As after a kill.
    assert len(told(tmp_path / "killed")[0]) == 2
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')  # Killed in the middle of a line.
    with Run.reopened(tmp_path / "killed") as run:
        assert open_learner(run).step == 0
        assert run.curve == []
        assert [path.name for path in (run.folder / "episodes").iterdir()] == ["eval-before.jsonl"]
    on(tmp_path / "killed")
    assert told(tmp_path / "killed") == told(whole)


def test_the_kl_is_measured_from_the_first_policy_not_from_the_resumed_one(model, tmp_path):
    config = run_of(model, "grpo-t", beta=0.1, learning_rate=1e-2)
    on(tmp_path, config, 2)
    learner = on(tmp_path, steps=0)
    assert learner.step == 2
    first = open_model(str(model), config).model
    pairs = list(zip(first.parameters(), learner.reference.parameters(), learner.model.parameters(), strict=True))
    assert all(torch.equal(one, reference) for one, reference, _ in pairs)
    assert not all(torch.equal(reference, now) for _, reference, now in pairs)
    assert not any(reference.requires_grad for _, reference, _ in pairs)
    shutil.rmtree(tmp_path / "start")
    with pytest.raises(UsageError, match="start is gone"):
        on(tmp_path)


def test_the_random_state_is_restored(config, tmp_path):
    """Nothing here draws from it; a model with dropout does."""
    on(tmp_path, config, 1)
    expected = torch.rand(3)
    torch.manual_seed(12)
    on(tmp_path, steps=0)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_is_readable_data_and_a_model_for_everyone(config, model, tmp_path):
    on(tmp_path, config, 1)
    path = step_folder(tmp_path, 1)
    files = [file for file in path.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".jinja"}
    assert len({stat.S_IMODE(file.stat().st_mode) for file in files}) == 1
    again = open_model(str(path / "model"), config)
    assert again.agent.chat.stops == open_model(str(model), config).agent.chat.stops


def test_a_loaded_model_does_not_lie_in_its_file(model, config, tmp_path):
    """A checkpoint is removed while the run that began from it goes on."""
    shutil.copytree(model, tmp_path / "model")
    loaded = open_model(str(tmp_path / "model"), config).model
    path = tmp_path / "model" / "model.safetensors"
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    pairs = zip(loaded.parameters(), open_model(str(model), config).model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_newest_are_kept(config, tmp_path):
    on(tmp_path, changed(config, {"keep_checkpoints": 2}))
    assert steps_kept(tmp_path) == [3, 4]


def test_a_run_that_goes_on_removes_what_a_killed_save_has_left(config, monkeypatch, tmp_path):
    """Also after its last step, when it saves no more."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "prune", lambda folder, count: None)
        on(tmp_path, changed(config, {"keep_checkpoints": 2}))
    assert steps_kept(tmp_path) == [1, 2, 3, 4]
    on(tmp_path)
    assert steps_kept(tmp_path) == [3, 4]


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(bytes(content))


DAMAGES = {
    "weights cut off": lambda path: cut(path / "model" / "model.safetensors"),
    "one bit of the weights": lambda path: flip(path / "model" / "model.safetensors"),
    "one bit of the optimizer": lambda path: flip(path / "training.safetensors"),
    "optimizer missing": lambda path: (path / "training.safetensors").unlink(),
    "tokenizer missing": lambda path: (path / "model" / "tokenizer.json").unlink(),
    "description missing": lambda path: (path / "checkpoint.json").unlink(),
    "description cut off": lambda path: cut(path / "checkpoint.json"),
    "description edited": lambda path: (path / "checkpoint.json").write_text(
        (path / "checkpoint.json").read_text().replace('"step": 3', '"step": 2')
    ),
    "nothing in it": lambda path: [shutil.rmtree(path), path.mkdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_seen_and_the_one_before_it_is_used(three_steps, tmp_path, damage):
    folder = tmp_path / "run"
    shutil.copytree(three_steps, folder)
    DAMAGES[damage](step_folder(folder, 3))
    with Run.reopened(folder) as run:
        learner = open_learner(run)
        assert learner.step == 2
        assert same(
            {name: weight.detach() for name, weight in learner.model.named_parameters()},
            load_file(step_folder(three_steps, 2) / "model" / "model.safetensors"),
        )
        (note,) = run.notes
        assert "step-000003 is damaged" in note
        assert not step_folder(folder, 3).exists()
        assert len(run.curve) == 2


def test_without_a_whole_checkpoint_nothing_is_begun_again_unasked(three_steps, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(three_steps, folder)
    for step in (1, 2, 3):
        flip(step_folder(folder, step) / "training.safetensors")
    before = (folder / "metrics.jsonl").read_bytes()
    with (
        Run.reopened(folder) as run,
        pytest.raises(UsageError, match=r"no checkpoint .* is whole.*step-000001.*changed"),
    ):
        open_learner(run)
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert step_folder(folder, 1).exists()


def test_a_checkpoint_of_another_run_is_refused(three_steps, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(three_steps, folder)
    with Run.reopened(folder) as run:
        run.settle(changed(run.config, {"seed": 5, "learning_rate": 0.01}))
        with pytest.raises(UsageError, match=r"optimizer.learning_rate was 0.001 and is 0.01") as error:
            open_learner(run)
    assert "seed was 0 and is 5" in str(error.value)


def test_a_model_of_other_shapes_is_refused(three_steps, model):
    found, _ = checkpoint.newest(three_steps / "checkpoints")
    tokenizer = families.TOKENIZERS["tiny"]
    other = serve(tiny_model(len(tokenizer), layers=1), tokenizer, slots=2)
    with pytest.raises(UsageError, match="other parameters"):
        checkpoint.restore(found, other, settled(run_of(model), three_steps)[0])


def test_a_renamed_checkpoint_is_not_taken_for_a_later_step(three_steps, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(three_steps, folder)
    step_folder(folder, 3).rename(step_folder(folder, 9))
    found, faults = checkpoint.newest(folder / "checkpoints")
    assert found.step == 2
    assert "renamed" in faults[step_folder(folder, 9)]


def test_weights_that_are_no_numbers_never_replace_good_ones(config, model, tmp_path):
    local = open_model(str(model), config)
    learner = Learner(local.agent, local.model, changed(config, {"keep_checkpoints": 1}), step=1)
    checkpoint.save(learner, tmp_path)
    with torch.no_grad():
        local.model.model.norm.weight[3] = float("nan")
    learner.step = 2
    with pytest.raises(TrainingHalted, match="not finite after step 2"):
        checkpoint.save(learner, tmp_path)
    assert checkpoint.newest(tmp_path)[0].step == 1


# Disks that are full.


@pytest.fixture
def room():
    """Sets the largest size that a file may have; a larger one fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [4_000, 700_000], ids=["weights", "optimizer"])
def test_a_full_disk_leaves_the_checkpoint_before_it_whole(room, config, tmp_path, size):
    config = changed(config, {"recorded_groups": 0, "keep_checkpoints": 1})
    on(tmp_path, config, 2)
    kept = state(step_folder(tmp_path, 2))
    with Run.reopened(tmp_path) as run:
        learner = open_learner(run)
        # Metrics have room; only what is larger has none.
        (tmp_path / "metrics.jsonl").write_text("")
        room(size)
        with pytest.raises(TrainingHalted, match=r"step-000003 could not be written: .*(large|serial)"):
            list(grpo.train(run, learner=learner))
        room(resource.RLIM_INFINITY)
    assert steps_kept(tmp_path) == [2]
    assert same(state(step_folder(tmp_path, 2)), kept)
    assert on(tmp_path).step == STEPS


# Signals.


def struck_in_play(monkeypatch, step, strike):
    """`strike` is called when episodes of a step are played."""
    take = grpo.open_arena

    def opened(config):
        arena = take(config)
        begin = arena.begin

        def struck(slot, start):
            if start.group // 4 == step and start.seed % 16 == 7:
                strike()
            begin(slot, start)

        arena.begin = struck
        return arena

    monkeypatch.setattr(grpo, "open_arena", opened)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_episodes_are_played_ends_at_once_with_a_checkpoint(
    monkeypatch, config, whole, tmp_path, number
):
    struck_in_play(monkeypatch, 2, lambda: os.kill(os.getpid(), number))
    with Interrupts() as interrupts, pytest.raises(Interrupted) as stopped:
        on(tmp_path / "struck", changed(config, {"checkpoint_every": 100}), interrupts=interrupts)
    assert stopped.value.number == number
    assert steps_kept(tmp_path / "struck") == [2]
    monkeypatch.undo()
    on(tmp_path / "struck")
    assert told(tmp_path / "struck") == told(whole)
    assert same(state(step_folder(tmp_path / "struck", STEPS)), state(step_folder(whole, STEPS)))


def test_any_error_leaves_a_checkpoint_of_the_last_whole_step(monkeypatch, config, whole, tmp_path):
    """An author's tool or reward may raise in the middle of play, when no checkpoint was due."""
    struck_in_play(monkeypatch, 2, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        on(tmp_path / "broken", changed(config, {"checkpoint_every": 100}))
    assert steps_kept(tmp_path / "broken") == [2]
    monkeypatch.undo()
    on(tmp_path / "broken")
    assert told(tmp_path / "broken") == told(whole)


def struck_in_update(monkeypatch, step, times):
    """After the first optimizer step of a batch, so many signals come."""
    inner = Learner._tear

    def tear(self, *_):
        first = not self.torn
        inner(self)
        if self.step == step and first:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Learner, "_tear", tear)


def test_a_signal_within_an_update_waits_for_its_end(monkeypatch, capfd, config, whole, tmp_path):
    struck_in_update(monkeypatch, 1, 1)
    with Interrupts("wait for it") as interrupts, pytest.raises(Interrupted):
        on(tmp_path / "struck", changed(config, {"checkpoint_every": 100}), interrupts=interrupts)
    assert capfd.readouterr().err == "wait for it"
    assert steps_kept(tmp_path / "struck") == [2]
    assert same(state(step_folder(tmp_path / "struck", 2)), state(step_folder(whole, 2)))
    on(tmp_path / "struck")
    assert told(tmp_path / "struck") == told(whole)


def test_a_second_signal_within_an_update_ends_at_once_and_half_an_update_is_never_kept(monkeypatch, config, tmp_path):
    struck_in_update(monkeypatch, 2, 2)
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        on(tmp_path, changed(config, {"checkpoint_every": 2}), interrupts=interrupts)
    assert steps_kept(tmp_path) == [2]
    assert len(told(tmp_path)[0]) == 2


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted), Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_what_is_ignored_stays_ignored():
    """`nohup` ignores the closing of the terminal, a shell its background's Ctrl-C."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.pending is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_gradients_that_stay_no_numbers_leave_the_last_good_step_and_figures_that_are_json(
    monkeypatch, config, whole, tmp_path
):
    """Also the losses are none here: null in the metrics."""
    real = Clip.__call__

    def poisoned(self, logprobs, *others):
        result = real(self, logprobs, *others)
        return replace(result, loss_S=result.loss_S * float("nan")) if learners[0].step else result

    learners, make = [], Learner.__post_init__
    monkeypatch.setattr(Learner, "__post_init__", lambda self: learners.append(self) or make(self))
    monkeypatch.setattr(Clip, "__call__", poisoned)
    with pytest.raises(TrainingHalted, match=r"gradients of the last \d+ optimizer steps were not finite"):
        on(tmp_path, changed(config, {"checkpoint_every": 100, "num_mini_batches": 2}))
    text = (tmp_path / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text]
    assert [line["loss"] is None for line in lines] == [False] + [True] * (len(lines) - 1)
    (last,) = steps_kept(tmp_path)
    assert last == len(lines) < STEPS
    good = load_file(step_folder(whole, 1) / "model" / "model.safetensors")
    assert same(load_file(step_folder(tmp_path, last) / "model" / "model.safetensors"), good)


def test_the_config_of_a_checkpoint_is_the_whole_config(three_steps, config):
    found, _ = checkpoint.newest(three_steps / "checkpoints")
    assert found.config == plain(settled(config, three_steps)[0])
    assert found.state == {"first": 4 * 3, "made": 3}
