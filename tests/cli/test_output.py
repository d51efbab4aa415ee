"""Results on standard output and progress on standard error; `--json -` prints the results alone, on every command."""

import json
import re

import families
import pytest
from commands import refused, run, words

from palaestra.cli.display import display
from palaestra.trainers.run.progress import Progress

ENVIRONMENT = '''
import palaestra
from palaestra.envs import ToolEnv, Task
class Loud(ToolEnv):
    """Says on standard output what belongs nowhere."""
    def task(self, rng):
        print("LOUD")
        return Task(prompt=f"Say {rng.integers(1000)}.", answer="yes")
    def reward(self, attempt):
        print("LOUD")
        return 1.0
palaestra.register("mine/Loud-v0", "loud_output:Loud")
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small run of a random agent, with its episodes and a file of tasks."""
    folder = tmp_path_factory.mktemp("output")
    families.random_agent(folder / "model", layers=1)
    (folder / "tasks.jsonl").write_text('{"prompt": "What is 6 * 7?", "answer": "42"}\n')
    return folder


SMALL = "--steps 2 --eval-tasks 2 --play.num-prompts 2 --play.num-generations 2 --play.max-turn-tokens 10 --device cpu"
COMMANDS = {
    "train": ("train two-hop --model {0}/model --run {0}/run --play.max-episode-tokens 256 " + SMALL, "after"),
    "train again": ("train --resume {0}/run", "after"),
    "view": ("view {0}/run", "episodes"),
    "compare": ("view {0}/run {0}/run --out {0}/compare.html", "bytes"),
    "replay": ("replay {0}/run", "identical"),
    "rescore": ("rescore {0}/run --reward two-hop", "mean_reward_new"),
    "collect": ("collect two-hop --tasks 2 --out {0}/good.jsonl", "counts"),
    "sft": ("sft {0}/good.jsonl --model {0}/model --run {0}/sft --epochs 1 --device cpu", "loss_last"),
    "eval": ("eval two-hop --tasks 2", "success"),
    "check": ("check two-hop", "environments"),
    "data": ("data {0}/tasks.jsonl", "tasks"),
    "doctor": ("doctor tiny", "findings"),
}
"""In an order in which each finds what it needs."""


def test_every_command_that_reports_figures_prints_them_alone_when_asked(capsys, folder):
    for name, (line, key) in COMMANDS.items():
        status, out, err = run(capsys, *line.format(folder).split(), "--json", "-")
        assert status == 0, (name, err)
        figures = json.loads(out)
        assert isinstance(figures, dict), name
        assert key in figures, name
        assert err or name == "train again", f"{name}: who watches is told"


def test_what_an_author_prints_does_not_spoil_the_figures(capsys, tmp_path, monkeypatch):
    (tmp_path / "loud_output.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    status, out, err = run(capsys, "check", "loud_output:mine/Loud-v0", "--json", "-")
    assert (json.loads(out)["failed"] > 0) == (status != 0)
    assert "LOUD" in err


def test_figures_go_to_a_file_beside_what_is_printed_and_progress_to_standard_error(capsys, folder, tmp_path):
    status, out, err = run(capsys, "eval", "two-hop", "--tasks", "2", "--json", tmp_path / "figures.json")
    assert status == 0
    assert "sampled" in err
    assert "tool used" in out
    assert "left" not in out
    assert json.loads((tmp_path / "figures.json").read_text())["tasks"] == 2


@pytest.mark.parametrize("command", ["check two-hop", "doctor tiny", "eval two-hop", "replay nothing.jsonl"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(capsys, command):
    refused(capsys, "a file cannot be written there", *command.split(), "--json", "/nowhere/at/all.json")


def test_after_the_first_step_it_is_said_when_the_run_ends(capsys, monkeypatch):
    monkeypatch.setattr("palaestra.cli.display.time.perf_counter", lambda: 1000.0)

    with display() as show:
        show(Progress("grpo", 3, 100, note="going on"))
        show(Progress("grpo", 4, 100, {"reward": 0.5, "step_time": 60.0}))
        show(Progress("held-out", 1, 8, {"rewards/success/mean": 0.5}))
        show(Progress("grpo", 5, 100, {"reward": 0.5, "step_time": 60.0}))
    out, err = capsys.readouterr()
    assert out == ""
    first = err.splitlines()[1]
    assert first.startswith("grpo              4/100  reward 0.50  1 h 36 min left, to "), err
    assert "held-out" not in err


def test_a_line_is_printed_after_ten_seconds_of_silence_and_none_says_that_no_time_is_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("palaestra.cli.display.time.perf_counter", lambda: now[0])
    with display() as show:
        for step in range(1, 1000):
            now[0] = step if step < 50 else 49 + step / 1000
            show(Progress("sampled", step, 1000, {"rewards/success/mean": 0.5}))
    lines = capsys.readouterr().err.splitlines()
    steps = [int(line.split()[1].partition("/")[0]) for line in lines]
    assert steps[:4] == [11, 21, 31, 41], "the tenth part is 100"
    assert steps[4:] == list(range(100, 1000, 100))
    assert not [line for line in lines if " 0 s left" in line]


def test_a_step_shows_how_many_episodes_were_cut_if_these_are_more_than_a_tenth(capsys):
    with display() as show:
        for step, share in enumerate((0.1, 0.25), 1):
            show(Progress("grpo", step, 2, {"reward": 0.5, "completions/clipped_ratio": share}))
    few, many = capsys.readouterr().err.splitlines()
    assert "cut" not in few
    assert many.endswith("reward 0.50  cut by length 25%")


def test_a_step_shows_its_broken_episodes_if_there_are_any(capsys):
    with display() as show:
        for step, broken in enumerate((0, 3), 1):
            show(Progress("grpo", step, 2, {"reward": 0.5, "episodes/broken": broken}))
    none, some = capsys.readouterr().err.splitlines()
    assert none.endswith("reward 0.50")
    assert some.endswith("reward 0.50  BROKEN 3")


def test_an_evaluation_is_a_table_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("palaestra.cli.display.time.perf_counter", lambda: now[0])

    def shown():
        with display() as show:
            for way, value in (("sampled", 0.25), ("greedy", 0.5)):
                figures = {"rewards/success/mean": value, "success/low": 0.1, "success/high": 0.625, "tokens": 1234.0}
                show(Progress(way, 2, 8, figures))
                now[0] += 15  # Two episodes in 15 s: four more in 30.
                show(Progress(way, 4, 8, figures))
        return capsys.readouterr().err

    assert shown().splitlines()[0].startswith("sampled           2/8  success 0.25  [0.10, 0.62]  1,234 tokens")
    monkeypatch.setenv("FORCE_COLOR", "1")
    last = words(shown()).rpartition("episodes success, 95 % tokens s left")[2]
    assert re.search(r"sampled 4/8 0.250 \[0.10, 0.62\] 1,234 30 greedy 4/8 0.500 \[0.10, 0.62\] 1,234 30", last)
