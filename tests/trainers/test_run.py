"""A run's folder: never used twice, never by two, never half a summary; and what it keeps of each step."""

import fcntl
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import replace

import families
import numpy as np
import pytest

import palaestra
from palaestra import ConfigError, UsageError
from palaestra.record import Lesson, read
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.config.recipes import find_recipe
from palaestra.trainers.config.sft_config import tiny_sft_config
from palaestra.trainers.reward.reward_model import ReasoningReward
from palaestra.trainers.run.atomic_files import PART, whole_folder, write_text
from palaestra.trainers.run.folder import Run, fresh_folder
from palaestra.trainers.run.progress import Progress
from palaestra.trainers.run.run_clock import cpu_seconds
from palaestra.trainers.run.run_lock import claimed
from palaestra.trainers.run.saved_config import FREE, ROUNDING, VERSION, read_config, refused, written_config
from palaestra.trainers.run.versions import versions
from palaestra.trainers.validation import changed, flat, plain
from palaestra.trainers.view.report import save_curve, transcript

CONFIG = tiny_config("palaestra/TwoHop-v0", steps=3, lr_schedule="constant", recorded_groups=1)


def played():
    """Two groups of two, one episode of each BROKEN, in the order of a busy arena."""
    row = families.token_row(3, [4])
    lesson = Lesson(1, {"outcome": 1.0}, 0.5, (np.zeros(len(row), np.float32),))
    return [
        (families.an_episode(row, reward=reward, group=group, seed=seed), (lesson,) if reward is not None else ())
        for group, seed, reward in ((1, 3, None), (0, 1, 0.0), (1, 2, 1.0), (0, 0, None))
    ]


STEPS = [
    Progress("grpo", n + 1, 3, {"rewards/success/mean": n / 10, "loss": -0.1}, rollouts=played()) for n in range(3)
]


def after_steps(folder, steps=STEPS, config=CONFIG):
    run = Run(folder, config)
    for progress in steps:
        run.add(progress)
    return run


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_leaves_its_config_its_steps_its_episodes_and_its_summary(tmp_path):
    folder = tmp_path / "a" / "b"
    with after_steps(folder) as run:
        assert not run.finished
        written = run.finish({"curve": run.curve})
        assert run.finished
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": step.step, **step.metrics} for step in STEPS]
    assert json.loads((folder / "summary.json").read_text()) == written
    assert written["curve"] == [0.0, 0.1, 0.2]
    expected = {"env_id": "palaestra/TwoHop-v0", "model": "tiny", "recipe": "grpo-tcr", "seed": 0, "steps": 3}
    assert expected.items() <= written.items()
    assert written["eval_tasks"] == CONFIG.eval_tasks
    assert written["versions"]["torch"]
    assert read_config(folder) == CONFIG
    expected = ["config.json", "episodes", "lock", "metrics.jsonl", "seconds.json", "summary.json"]
    assert sorted(os.listdir(folder)) == expected
    assert sorted(os.listdir(folder / "episodes")) == [f"step-{n:06}.jsonl" for n in (1, 2, 3)]


def test_the_first_groups_are_kept_whole_and_broken_episodes_always(tmp_path):
    config = changed(CONFIG, {"env_options": ("hops=2",)})
    after_steps(tmp_path, STEPS[:1], config).close()
    records = list(read(tmp_path / "episodes" / "step-000001.jsonl"))
    found = [(r.episode.start.group, r.episode.start.seed, r.episode.reward) for r in records]
    assert found == [(0, 0, None), (0, 1, 0.0), (1, 3, None)]
    assert [[one.advantage for one in r.lessons] for r in records] == [[], [0.5], []]
    assert {(r.env_id, r.agent) for r in records} == {("palaestra/TwoHop-v0", "tiny")}
    assert all(r.options == {"split": "train", "hops": 2} for r in records)


def test_no_episode_is_kept_where_none_is_wanted(tmp_path):
    with after_steps(tmp_path, config=changed(CONFIG, {"recorded_groups": 0})) as run:
        run.keep("eval-before", played(), "eval")
    assert os.listdir(tmp_path / "episodes") == []


def test_an_episode_that_cannot_be_written_says_how_to_train_without_it(tmp_path):
    episode, lessons = played()[1]
    task = replace(episode.attempt.task, data={"world": object()})
    episode = replace(episode, attempt=replace(episode.attempt, task=task))
    with Run(tmp_path, CONFIG) as run, pytest.raises(UsageError, match=r"Task.data.*object.*--save.recorded-groups 0"):
        run.keep("eval-before", [(episode, lessons)], "eval")
    assert os.listdir(tmp_path / "episodes") == []


def test_a_folder_with_a_run_is_refused_and_left_as_it_is(tmp_path):
    after_steps(tmp_path).close()
    before = everything(tmp_path)
    with pytest.raises(UsageError, match="already holds a run"):
        Run.create(tmp_path, CONFIG)
    assert before == everything(tmp_path)
    with Run(tmp_path, CONFIG) as run:
        assert run.curve == [0.0, 0.1, 0.2], "which is what whoever asks for it by this name goes on with"
    with pytest.raises(UsageError, match="holds a run of the kind grpo, not sft"):
        Run(tmp_path, tiny_sft_config())


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be made \(Not a directory\); choose another with --run"):
        Run(tmp_path / "file" / "run", CONFIG)


def test_a_folder_in_which_a_start_was_killed_can_be_started_in(tmp_path):
    (tmp_path / "lock").write_text("process 1 on nowhere")
    (tmp_path / "config.json.part").write_text("{")
    after_steps(tmp_path).close()
    assert read_config(tmp_path) == CONFIG
    assert not list(tmp_path.rglob("*" + PART))


def test_what_was_left_unfinished_is_swept_away_and_nothing_else(tmp_path):
    after_steps(tmp_path).close()
    (tmp_path / "film.mp4.part").write_text("somebody's")
    before = everything(tmp_path)
    for name in ("model.part/x", "start.old.part/x", "checkpoints/step-000002.part/model/x", "episodes/y.jsonl.part"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    Run.reopened(tmp_path).close()
    assert before == everything(tmp_path)


def test_a_run_is_taken_back_to_a_step(tmp_path):
    after_steps(tmp_path).close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rewards/succ')
    with Run.reopened(tmp_path) as run:
        run.rewind(2)
        assert run.curve == [0.0, 0.1]
        assert run.notes == []
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": step.step, **step.metrics} for step in STEPS[:2]]
    assert sorted(os.listdir(tmp_path / "episodes")) == ["step-000001.jsonl", "step-000002.jsonl"]


def test_a_run_that_no_checkpoint_holds_says_that_it_begins_again(tmp_path):
    after_steps(tmp_path).close()
    with Run.reopened(tmp_path) as run:
        run.rewind(0)
        assert run.notes == ["no checkpoint was whole when it stopped, so it begins again and repeats 3 steps"]
        run.rewind(0)
        assert len(run.notes) == 1, "nothing is left to repeat"


def test_the_seconds_of_a_run_are_those_of_all_its_sittings(tmp_path, monkeypatch):
    clock = {"wall": 1000.0, "cpu": 50.0}
    monkeypatch.setattr("palaestra.trainers.run.run_clock.time.perf_counter", lambda: clock["wall"])
    monkeypatch.setattr("palaestra.trainers.run.run_clock.cpu_seconds", lambda: clock["cpu"])
    with Run.create(tmp_path / "run", CONFIG) as run:
        clock.update(wall=1030.0, cpu=70.0)
        run.add(STEPS[0])
        clock.update(wall=1035.0)  # Of a sitting that is killed, what follows its last step is not known.
    clock.update(wall=5000.0, cpu=1.0)
    with Run.reopened(tmp_path / "run") as run:
        run.rewind(0)  # What it has done in vain took its time.
        clock.update(wall=5004.0, cpu=4.0)
        run.add(STEPS[0])
        clock.update(wall=5006.0, cpu=5.0)
        summary = run.finish({})
    assert (summary["wall_seconds"], summary["cpu_seconds"]) == (36.0, 24.0)


def test_metrics_that_were_lost_are_missed(tmp_path):
    after_steps(tmp_path).close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text(lines[0] + lines[2])
    with Run.reopened(tmp_path) as run:
        run.rewind(3)
        assert run.notes == ["metrics.jsonl lacks 1 of the first 3 steps; was it edited?"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_null_and_every_line_is_json(tmp_path, value):
    figures = {"rewards/success/mean": 0.5, "loss": value}
    after_steps(tmp_path, [Progress("grpo", 1, 3, figures), Progress("grpo", 2, 3, figures)]).close()
    with Run.reopened(tmp_path) as run:
        run.rewind(1)  # What was read is written anew.
        (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "rewards/success/mean": 0.5, "loss": None}
        assert run.curve == [0.5]


def test_a_step_whose_episodes_all_broke_has_no_point_in_the_curve(tmp_path):
    steps = [Progress("grpo", 1, 3, {"rewards/success/mean": 0.5}), Progress("grpo", 2, 3, {"episodes/broken": 8.0})]
    after_steps(tmp_path, steps).close()
    assert Run.read(tmp_path).curve == [0.5]


# Two at once.

_HOLD = """
import sys, time
from pathlib import Path
from palaestra.trainers.run.folder import Run
run = Run.reopened(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_folder_that_its_last_holder_deletes_meanwhile_still_has_one_holder(tmp_path, monkeypatch):
    folder, locked = tmp_path / "run", fcntl.flock

    def after_deletion(file, how):
        monkeypatch.undo()
        (folder / "lock").unlink()
        folder.rmdir()
        locked(file, how)

    monkeypatch.setattr(fcntl, "flock", after_deletion)
    with claimed(folder), pytest.raises(UsageError, match="in use by process"):
        claimed(folder)


def test_two_processes_never_work_in_one_folder_and_a_dead_one_blocks_nobody(tmp_path):
    after_steps(tmp_path).close()
    before = everything(tmp_path)
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            for claim in (lambda: Run.reopened(tmp_path), lambda: Run.create(tmp_path, CONFIG)):
                with pytest.raises(UsageError, match=rf"in use by process {holder.pid} on "):
                    claim()
        finally:
            holder.send_signal(signal.SIGKILL)
    Run.reopened(tmp_path).close()
    assert {k: v for k, v in everything(tmp_path).items() if k.name != "lock"} == {
        k: v for k, v in before.items() if k.name != "lock"
    }


def test_others_may_read_while_one_writes_and_change_nothing(tmp_path):
    """What the writer has half done stays as it is, and the next look sees what was added since."""
    with after_steps(tmp_path, STEPS[:2]) as writer:
        (tmp_path / "model.part").mkdir()
        before = everything(tmp_path)
        code = "import sys; from palaestra.trainers import Run; print(Run.read(sys.argv[1]).curve)"
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        assert done.stdout == "[0.0, 0.1]\n"
        reader = Run.read(tmp_path)
        assert everything(tmp_path) == before
        assert (tmp_path / "model.part").is_dir()
        writer.add(STEPS[2])
        assert reader.curve == [0.0, 0.1, 0.2]
        assert (reader.config, reader.finished) == (CONFIG, False)
    with pytest.raises(UsageError, match="holds no run to go on with"):
        Run.read(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_other_ranks_of_a_job_hold_a_run_open_beside_the_first_and_write_nothing(tmp_path):
    with Run(tmp_path / "run", CONFIG, rank=1) as early:  # Before the first has begun it.
        assert not (tmp_path / "run").exists()
        early.add(STEPS[0])
        assert not (tmp_path / "run").exists()
    with after_steps(tmp_path / "run", STEPS[:1]), Run(tmp_path / "run", CONFIG, rank=1) as other:
        before = everything(tmp_path)
        other.add(STEPS[1])
        other.add_before({"a": 1})
        other.rewind(0)
        other.settle(CONFIG)
        other.keep("eval-after", played(), "eval")
        assert other.finish({})["steps"] == 3
        assert everything(tmp_path) == before


# What a run is gone on with.


def edited(**content):
    return json.dumps({"palaestra": VERSION, "kind": "grpo", "env": {"env_id": "x"}, **content})


OLD = json.dumps({"env_id": "palaestra/TwoHop-v0", "recipe": "grpo-tcr", "algorithm": {"name": "grpo-tcr"}})


@pytest.mark.parametrize(
    ("content", "meant"),
    [
        ("{", "not valid JSON"),
        ("[1]", "is not the config of a run that this palaestra can go on with; begin a new run"),
        (OLD, "is not the config of a run that this palaestra can go on with; begin a new run"),
        (edited(kind="ppo"), "of the kind 'ppo'; expected one of grpo, sft"),
        (edited(stepps=3), "did you mean 'steps'"),
        (edited(steps="many"), "steps is 'many'"),
        (edited(steps=2.5), "steps is 2.5"),
        (edited(env={"env_id": 3}), "env_id is 3"),
        (edited(play={"ordered": 1}), "ordered is 1"),
        (edited(env={"env_id": "x", "env_options": "a=1"}), "env_options is 'a=1'"),
        (edited(optimizer={"learning_rate": None}), "learning_rate is None"),
        (edited(recipe={"loss": {"name": "clap"}}), "loss is 'clap'; did you mean 'clip'"),
        (
            edited(recipe={"advantage": {"name": "group", "shuffle": 3}}),
            "unknown option 'shuffle'; did you mean",
        ),
    ],
)
def test_a_config_that_is_old_or_was_edited_into_nonsense_is_refused_in_one_sentence(tmp_path, content, meant):
    (tmp_path / "config.json").write_text(content)
    for claim in (Run.reopened, Run.read, lambda folder: Run(folder, CONFIG)):
        with pytest.raises(UsageError, match=meant) as error:
            claim(tmp_path)
        assert str(tmp_path / "config.json") in str(error.value)
        assert "\n" not in str(error.value)


def test_a_config_of_version_2_is_read_without_the_settings_that_are_constants_now(tmp_path):
    content = json.loads(written_config(CONFIG)) | {"palaestra": 2}
    content["cold_start"] |= {"gate_tasks": 8, "first_gate": 1, "gate_every": 1, "warmup_steps": 1, "decay_steps": 0}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_config(tmp_path) == CONFIG
    (tmp_path / "config.json").write_text(json.dumps(content | {"palaestra": VERSION}))
    with pytest.raises(UsageError, match="unknown option 'gate_tasks'"):
        read_config(tmp_path)


def test_options_on_which_no_weight_depends_may_change_and_are_remembered(tmp_path):
    after_steps(tmp_path).close()
    other = {"checkpoint_every": 7, "keep_checkpoints": 9, "recorded_groups": 0, "max_broken_share": 0.5}
    other |= {"eval_steps": 5, "early_stopping_patience": 2, "track": ("tensorboard",), "optimizer_offload": True}
    other |= {"rank_timeout": 60.0, "stop_when": "solved"}
    other |= {
        "urls": (),
        "transfer": "nccl",
        "collapse": "off",
        "weights_folder": "w",
        "answer_seconds": 9.0,
        "restart_seconds": 9.0,
        "gpus": ("1",),
        "memory_share": 0.5,
        "python": "python",
    }
    asked = changed(CONFIG, {**other, "max_logprob_gap": 0.5, "fit": False})
    then, now = flat(plain(CONFIG)), flat(plain(asked))
    of_servers = {"engine.urls", *(name for name in FREE if name.startswith("recipe.judge."))}
    assert {name for name in now if now[name] != then[name]} == {*FREE} - of_servers
    with Run.reopened(tmp_path, asked) as run:
        assert run.notes == []
    assert read_config(tmp_path) == asked


def test_a_run_goes_on_with_another_address_of_its_judge_and_no_other_judge():
    def judged(**settings):
        judge = ReasoningReward(**{"url": ("http://127.0.0.1:1/v1",), **settings})
        return replace(CONFIG, recipe=replace(find_recipe("reagent-r"), judge=judge))

    assert refused(judged(), judged(url=("http://127.0.0.1:2/v1",), served_as="other", key_env="KEY")) == ""
    assert "recipe.judge.score_weight" in refused(judged(), judged(score_weight=0.5))
    assert "recipe" in refused(CONFIG, judged())


def test_options_that_change_the_last_bits_may_change_and_say_so(tmp_path):
    after_steps(tmp_path).close()
    asked = changed(CONFIG, {"slots": 7, "micro_batch_tokens": 100, "device": "cpu", "gradient_checkpointing": True})
    asked = changed(asked, {"cache_tokens": 9000, "kind": "process", "reduce_each_pass": True})
    asked = changed(asked, {"sharding": "deepspeed", "sequence_parallel_size": 2})
    with Run.reopened(tmp_path, asked) as run:
        (note,) = run.notes
        assert all(name in note for name in ROUNDING)


@pytest.mark.parametrize(
    ("schedule", "steps", "allowed"), [("constant", 5, True), ("constant", 2, False), ("linear", 5, False)]
)
def test_steps_may_grow_where_no_step_depends_on_their_number(tmp_path, schedule, steps, allowed):
    config = changed(CONFIG, {"lr_schedule": schedule})
    with after_steps(tmp_path, config=config) as run:
        run.finish({})
    if not allowed:
        with pytest.raises(ConfigError, match=f"steps was 3 and is {steps}; steps may grow, and only where"):
            Run.reopened(tmp_path, changed(config, {"steps": steps}))
        return
    with Run.reopened(tmp_path, changed(config, {"steps": steps})) as run:
        assert not run.finished
    with Run.reopened(tmp_path) as run:
        assert run.config.steps == steps


# Whole or not at all.


@pytest.mark.parametrize("at", ["replace", "fsync"])
def test_a_summary_is_whole_or_not_there(tmp_path, monkeypatch, at):
    def power_cut(*_):
        raise KeyboardInterrupt

    with Run(tmp_path, CONFIG) as run:
        with pytest.raises(TypeError):
            run.finish({"figure": object()})
        assert not (tmp_path / "summary.json").exists()
        monkeypatch.setattr(os, at, power_cut)
        with pytest.raises(KeyboardInterrupt):
            run.finish({"seed": 1})
    assert not list(tmp_path.glob("summary.json*"))


def test_a_file_that_cannot_be_written_anew_keeps_what_it_held(tmp_path, monkeypatch):
    write_text(tmp_path / "x", "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(palaestra.TrainingHalted, match=r"x could not be written: No space left on device"):
        write_text(tmp_path / "x", "new")
    assert everything(tmp_path) == {pathlib.Path("x"): b"old"}


def test_a_folder_takes_the_place_of_the_old_one_whole(tmp_path):
    for content in ("old", "new"):
        with whole_folder(tmp_path / "model") as folder:
            (folder / content).write_text(content)
            assert not (tmp_path / "model" / content).exists()
    assert everything(tmp_path) == {pathlib.Path("model/new"): b"new"}

    def interrupted():
        with whole_folder(tmp_path / "model") as folder:
            (folder / "newest").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert everything(tmp_path) == {pathlib.Path("model/new"): b"new"}


def test_a_fresh_folder_is_one_that_is_not_there(tmp_path):
    assert fresh_folder("x", tmp_path) == tmp_path / "x"
    for expected in ("x", "x-2", "x-3"):
        folder = fresh_folder("x", tmp_path)
        assert folder == tmp_path / expected
        Run(folder, CONFIG).close()


def test_processor_seconds_only_grow():
    before, until = cpu_seconds(), time.monotonic() + 60
    while (now := cpu_seconds()) == before and time.monotonic() < until:  # The kernel may count in ticks.
        sum(range(10**5))
    assert now > before > 0
    assert versions()["python"].startswith("3.")


def test_a_curve_is_drawn(tmp_path):
    save_curve(tmp_path / "curve.png", "title", {"GRPO": [0.1, 0.5], "control": [0.1, 0.1]})
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_transcript_moves_no_cursor():
    episode = families.an_episode(families.token_row(1, [1]))
    said = ({"role": "assistant", "content": "\x1b[2J\x07a\nb\u202e"},)
    text = transcript(replace(episode, attempt=replace(episode.attempt, messages=said)))
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "answered: success 1 (expected 'Kemu')" in text
