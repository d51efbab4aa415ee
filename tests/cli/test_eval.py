"""`palaestra eval`: one agent or two, sampled and greedy, in a table and in a file; nothing stays open."""

import json
import os
import re
from contextlib import closing, contextmanager
from functools import partial

import commands
import families
import pytest
from commands import words
from fake_server import FakeServer, Reply, demonstrated, nobody, said

import palaestra
from palaestra.agents import Agent, ScriptedPolicy
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.cli import main
from palaestra.record import read
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.evaluation.statistics import avg_at_k, compare, maj_at_k, pass_at_k
from palaestra.trainers.run.saved_config import written_config

TWO_HOP = "palaestra/TwoHop-v0"


def run(capsys, *arguments):
    """Exit status, standard output and standard error of `palaestra eval two-hop`."""
    return commands.run(capsys, "eval", "two-hop", *arguments)


@pytest.fixture
def rates(monkeypatch):
    """Agents that are named for how often they use the tool: 0 guesses, 1 is the demonstrator. Says who is open."""
    open_now = []

    @contextmanager
    def open_agent(name, options, env_id):
        rule = partial(palaestra.demonstrator(env_id), tool_rate=float(name))
        open_now.append(name)
        yield Agent(ScriptedPolicy(rule, options.seed))
        open_now.remove(name)

    monkeypatch.setattr("palaestra.cli.eval.open_agent", open_agent)
    return open_now


def test_fewer_tasks_than_were_asked_for_are_told(capsys, tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "What is 2 * 3?", "answer": "6"}\n{"prompt": "What is 2 * 4?", "answer": "8"}\n')
    asked = ("eval", "calculator", "--env-options", f"tasks={path}", "--split", "all")
    for tasks, told in (("3", True), ("2", False)):
        status, _, err = commands.run(capsys, *asked, "--tasks", tasks)
        assert status == 0 and ("there are only 2 tasks in the all split" in words(err)) == told


def test_sampled_and_greedy_play_stand_side_by_side(capsys, tmp_path):
    path = tmp_path / "figures.json"
    status, out, err = run(capsys, "--tasks", "6", "--samples", "3", "--greedy", "--json", str(path))
    assert status == 0
    shown = words(out)
    assert "sampled greedy" in shown
    assert "temperature 1 0" in shown
    assert "samples 3 1" in shown
    assert "sampled 18/18" in words(err)
    assert "greedy 6/6" in words(err)
    assert "pass@3 1.000 0.54-1.00 pass^1 1.000" in shown
    found = json.loads(path.read_text())
    assert (found["model"], found["env_id"], found["split"]) == ("demonstrator", TWO_HOP, "eval")
    assert (found["samples"], found["temperature"], found["success"]) == (3, 1.0, 1.0)
    assert (found["greedy"]["samples"], found["greedy"]["temperature"]) == (1, 0.0)
    assert set(found["at_k"]) >= {"pass@1", "pass@2", "pass@3", "maj@3", "any@3", "bootstrap best@3", "bootstrap maj@3"}


def test_with_a_critic_both_attempts_are_shown_compared_and_saved(capsys, tmp_path, rates):
    def verdict(seen):
        verdict = "<critique>Search twice.</critique><score>0</score>"
        return Reply({"data": []}) if seen.method == "GET" else said(verdict)

    path, file = tmp_path / "figures.json", tmp_path / "played.jsonl"
    asked = ("--tasks", "4", "--model", "0.5", "--json", str(path), "--save", str(file))
    with FakeServer(verdict) as server:
        status, out, _ = run(capsys, *asked, "--critic", server.url)
        assert len(server.questions) == 4, "of second attempts nobody is asked"
    assert status == 0
    assert "first second" in words(out) and "0.5: second attempts less first" in words(out)
    figures = json.loads(path.read_text())
    assert figures["second"]["success"] - figures["success"] == figures["gain of second"]["difference"]
    assert figures["gain of second"]["without_critique"] == 0
    prefixes = [record.episode.start.prefix for record in read(file)]
    assert [bool(prefix) for prefix in prefixes] == [False] * 4 + [True] * 4
    assert all("Search twice." in prefix[-1]["content"] for prefix in prefixes[4:])
    assert main(["replay", str(file)]) == 0
    with nobody() as url:
        status, *_ = run(capsys, *asked, "--critic", url)
    assert status == 2 and not rates


def test_an_agent_whose_turns_are_text_has_no_tokens(capsys, tmp_path):
    """0.0 would say that it wrote none."""
    path = tmp_path / "figures.json"
    with FakeServer(demonstrated(palaestra.demonstrator(TWO_HOP))) as server:
        status, out, err = run(capsys, "--tasks", "4", "-m", "demo", "-b", server.url, "--json", str(path))
    assert status == 0, err
    assert " tokens - " in words(out)
    assert json.loads(path.read_text())["tokens"] is None
    assert re.search(r"demo: 12 answers, [\d,]+ tokens read, [\d,]+ written", out)


def test_greedy_alone_is_a_temperature(capsys):
    status, out, err = run(capsys, "--tasks", "4", "--temperature", "0")
    assert status == 0
    assert "greedy 4/4" in words(err)
    assert "sampled" not in out
    assert "pass@" not in out, "one sample a task is avg@1"


def test_every_figure_of_the_file_follows_from_what_it_says_of_each_task(capsys, rates, tmp_path):
    path = tmp_path / "figures.json"
    status, _, err = run(capsys, "--tasks", "12", "--samples", "4", "--model", "0.5", "--json", str(path))
    assert status == 0, err
    found = json.loads(path.read_text())
    tasks = found["per_task"]
    assert [row["task"] for row in tasks] == list(range(12))
    matrix, answers = [row["success"] for row in tasks], [row["answers"] for row in tasks]
    assert 0 < found["success"] < 1
    assert found["success"] == pytest.approx(avg_at_k(matrix).mean())
    for k in (1, 2, 4):
        assert found["at_k"][f"pass@{k}"]["value"] == pytest.approx(pass_at_k(matrix, k).mean())
        assert found["at_k"][f"maj@{k}"]["value"] == pytest.approx(maj_at_k(matrix, answers, k).mean())
    assert sum(row["broken"] for row in tasks) == found["broken"] == 0


def test_two_agents_play_the_same_tasks_and_their_difference_is_tested(capsys, rates, tmp_path):
    path = tmp_path / "figures.json"
    arguments = ["--model", "1", "--against", "0", "--tasks", "30", "--samples", "2", "--greedy", "--json", str(path)]
    status, out, err = run(capsys, *arguments)
    assert status == 0, err
    shown = words(out)
    assert f"1 in {TWO_HOP}" in shown
    assert f"0 in {TWO_HOP}" in shown
    assert "1 less 0" in shown
    assert "p < 0.001 < 0.001" in shown
    found = json.loads(path.read_text())
    assert (found["model"], found["against"]["model"]) == ("1", "0")
    first = {row["task"]: row["success"] for row in found["per_task"]}
    second = {row["task"]: row["success"] for row in found["against"]["per_task"]}
    again = compare(first, second)
    told = found["comparison"]["sampled"]
    assert (told["wins"], told["losses"], told["p_value"]) == (again.wins, again.losses, again.p_value)
    assert told["difference"] == pytest.approx(found["success"] - found["against"]["success"])
    assert found["comparison"]["greedy"]["tasks"] == 30
    assert found["against"]["greedy"]["samples"] == 1
    assert rates == [], "both are closed"


def test_a_small_model_of_this_process_is_measured_greedily_too_and_its_speed_is_told(capsys, tmp_path):
    tokenizer, path = families.TOKENIZERS["tiny"], tmp_path / "figures.json"
    export(tiny_model(len(tokenizer), layers=1), tokenizer, tmp_path / "newborn")
    asked = ("--tasks", "5", "--max-turn-tokens", "8", "--device", "cpu")
    status, out, err = run(capsys, *asked, "--model", str(tmp_path / "newborn"), "--json", str(path))
    assert status == 0, err
    assert "sampled greedy" in words(out)
    assert re.search(r"newborn: [\d,]+ tokens in [\d.]+ s, [\d,]+ a second", words(out))
    figures = json.loads(path.read_text())
    assert figures["greedy"]["samples"] == 1 and figures["tokens_per_second"] > 0
    status, out, err = run(capsys, *asked, "--against", str(tmp_path / "newborn"), "--no-greedy")
    assert status == 0 and "greedy" not in words(out + err)
    assert "difference +1.000" in words(out) and "tasks won 5" in words(out), "beside the script"


def test_a_model_that_plays_with_other_options_than_its_run_is_told(capsys, tmp_path):
    table = tmp_path / "table.jsonl"
    table.write_text('{"prompt": "What is 2 * 3?", "answer": "6", "split": "eval"}\n')
    tokenizer = families.TOKENIZERS["tiny"]
    export(tiny_model(len(tokenizer), layers=1), tokenizer, tmp_path / "run" / "model")
    trained = tiny_config("palaestra/Calculator-v0", env_options=(f"tasks={table}",))
    (tmp_path / "run" / "config.json").write_text(written_config(trained))
    how = ["--model", str(tmp_path / "run" / "model"), "--tasks", "1", "--no-greedy"]
    notes = []
    for env_id, options in ("calculator", []), ("calculator", [f"tasks={table}"]), ("arithmetic", []):
        said = words(commands.run(capsys, "eval", env_id, *how, *["--env-options", *options] * bool(options))[2])
        notes.append(re.findall(r"was trained with other --env-options: (\S+); here they are (\S+)", said))
    assert notes == [[(f"tasks={table}", "none")], [], []]


def test_forty_columns_are_enough(capsys, rates, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    status, out, _ = run(capsys, "--model", "1", "--against", "0.3", "--tasks", "100", "--samples", "4", "--greedy")
    assert status == 0
    tables = [line for line in out.splitlines() if "/400" not in line and "/100" not in line]  # lines of progress wrap
    assert max(map(len, tables)) <= 40
    assert "…" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temperature", "0", "--greedy"], "leave out --greedy"),
        (["--against", "demonstrator"], "name another agent"),
        (["--temperature", "inf"], "temperature"),
        (["--samples", "0"], "at least 1"),
        (["--json", "/nowhere/at/all/figures.json"], "cannot be written"),
        (["--json", "/"], "cannot be written"),
        (["--against", "/nowhere/at/all"], "no folder '/nowhere/at/all'"),
        (["--max-episode-tokens", "1"], "max_episode_tokens"),
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_refused_before_anything_is_played(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr("palaestra.cli.eval.arena", lambda *_, **__: pytest.fail("an arena was opened"))
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert said in words(err)
    assert "Traceback" not in err


class Failing(families.Echo):
    """An engine that dies in its third turn."""

    closed = False

    def submit(self, request):
        if len(self.submitted) == 2:
            raise self.failure
        return super().submit(request)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), palaestra.TrainingHalted("enough")], ids=["ctrl-c", "error"])
def test_nothing_stays_open_when_play_ends_early(capsys, monkeypatch, failure):
    arena, engine = families.Talk(4), Failing()
    engine.failure = failure

    @contextmanager
    def open_agent(name, options, env_id):
        with closing(engine):
            yield Agent(engine)

    monkeypatch.setattr("palaestra.cli.eval.open_agent", open_agent)
    monkeypatch.setattr("palaestra.cli.eval.arena", lambda *_, **__: arena)
    status, _, _ = run(capsys, "--tasks", "50")
    assert status in (2, 130)
    assert arena.closed
    assert engine.closed
    assert not engine.waiting, "what ran is cancelled"


def test_ctrl_c_while_progress_is_shown_cancels_what_runs(capsys, monkeypatch):
    arena, engine, kept = families.Talk(4), families.Echo(delay=3), []

    @contextmanager
    def interrupted():
        def show(_):
            if engine.waiting:
                raise KeyboardInterrupt

        yield show

    @contextmanager
    def open_agent(name, options, env_id):
        try:
            yield Agent(engine)
        finally:
            kept.append(dict(engine.waiting))

    monkeypatch.setattr("palaestra.cli.eval.open_agent", open_agent)
    monkeypatch.setattr("palaestra.cli.eval.arena", lambda *_, **__: arena)
    monkeypatch.setattr("palaestra.cli.measuring.display", interrupted)
    status, _, _ = run(capsys, "--tasks", "50")
    assert status == 130
    assert kept == [{}], "before the agent is closed"
    assert arena.closed


@pytest.mark.parametrize(
    ("broken", "status"), [(lambda start, tries: True, 1), (lambda start, tries: start.task == 1, 0)]
)
def test_broken_episodes_are_counted_and_told(capsys, monkeypatch, tmp_path, broken, status):
    arena, path = families.Talk(4, broken=broken), tmp_path / "figures.json"
    monkeypatch.setattr("palaestra.cli.eval.arena", lambda *_, **__: arena)
    monkeypatch.setattr("palaestra.cli.eval.open_agent", lambda *_: closing_agent())
    found, out, err = run(capsys, "--tasks", "4", "--samples", "2", "--json", str(path))
    assert found == status, err
    count = 8 if status else 2
    assert f"{count} episodes are BROKEN, and count in no figure: {count} it broke" in words(out)
    figures = json.loads(path.read_text())
    assert figures["causes"] == {"broken": {"it broke": count}}
    rows = figures["per_task"]
    assert [row["broken"] for row in rows] == ([2] * 4 if status else [0, 2, 0, 0])
    assert rows[1]["success"] == []
    assert arena.closed
    if status:
        assert "success - 95 % - reward - calls - failed - tool used - success - tokens - answered 0" in words(out)
        assert [figures[name] for name in ("success", "low", "high", "reward", "tokens")] == [None] * 5
        assert figures["at_k"]["pass@2"] == {"value": None, "low": None, "high": None, "tasks": 0}
    else:
        assert 0 <= figures["low"] <= figures["success"] <= figures["high"]


def test_agents_without_a_task_that_both_were_scored_in_have_no_difference(capsys, monkeypatch, tmp_path):
    arena, path = families.Talk(2, broken=lambda start, tries: True), tmp_path / "figures.json"
    monkeypatch.setattr("palaestra.cli.eval.arena", lambda *_, **__: arena)
    monkeypatch.setattr("palaestra.cli.eval.open_agent", lambda *_: closing_agent())
    assert run(capsys, "--tasks", "2", "--against", "other", "--json", str(path))[0] == 1
    found = json.loads(path.read_text())["comparison"]["sampled"]
    assert [found[name] for name in ("difference", "low", "high", "p_value", "tasks")] == [None] * 4 + [0]


@contextmanager
def closing_agent():
    """An agent that says something."""
    yield Agent(families.Echo())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_costs_the_file_and_not_the_figures(capsys):
    status, out, err = run(capsys, "--tasks", "4", "--json", "/dev/full")
    assert status == 2
    assert "could not be written (No space left on device); the figures are above" in words(err)
    assert "success 1.000" in words(out)


def test_the_same_seed_gives_the_same_figures(capsys, rates, tmp_path):
    def figures(seed):
        path = tmp_path / "figures.json"
        run(capsys, "--model", "0.5", "--tasks", "20", "--samples", "2", "--seed", seed, "--json", str(path))
        return json.loads(path.read_text())["per_task"]

    assert figures("0") == figures("0")
    assert figures("0") != figures("1")


def test_the_episodes_of_all_agents_are_saved_and_replay(capsys, tmp_path, rates):
    file = tmp_path / "played.jsonl"
    options = ("--model", "1", "--against", "0", "--tasks", "3", "--samples", "2", "--save", str(file))
    assert run(capsys, *options)[0] == 0
    found = {(record.env_id, record.agent, record.options["split"]) for record in read(file)}
    assert found == {(TWO_HOP, "1", "eval"), (TWO_HOP, "0", "eval")}
    assert len(list(read(file))) == 12
    assert main(["replay", str(file)]) == 0


def test_the_environment_takes_its_options_from_the_command(capsys, tmp_path):
    tasks, file = tmp_path / "tasks.jsonl", tmp_path / "played.jsonl"
    tasks.write_text('{"prompt": "What is 2 * 3?", "answer": "6", "split": "eval"}\n')
    common = ["eval", "calculator", "--tasks", "5", "--save", str(file), "--env-options"]
    assert main([*common, f"tasks={tasks}"]) == 0
    assert [record.episode.attempt.task.prompt for record in read(file)] == ["What is 2 * 3?"]
    assert main([*common, "colour=7"]) == 2
    assert "colour" in capsys.readouterr().err


def test_a_task_that_cannot_be_written_is_found_out_with_its_first_episode(tmp_path, monkeypatch, capsys):
    (tmp_path / "unwritable.py").write_text(
        "import palaestra\nfrom palaestra.envs import Task, ToolEnv\n\n\n"
        "class Odd(ToolEnv):\n    judged = 0\n\n"
        "    def task(self, rng):\n        return Task(f'{rng.random()}', data={'o': object()})\n\n"
        "    def reward(self, attempt):\n        Odd.judged += 1\n        return 1.0\n\n\n"
        "palaestra.register('test/Odd-v0', 'unwritable:Odd', demonstrator='unwritable:say')\n\n\n"
        "def say(messages, rng, tool_rate=1.0):\n    return 'x'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "played.jsonl"
    assert main(["eval", "unwritable:test/Odd-v0", "--tasks", "40", "--slots", "1", "--save", str(file)]) == 2
    assert "Task.data['o'] is of type object, which cannot be written" in capsys.readouterr().err
    assert __import__("unwritable").Odd.judged == 1
    assert not file.exists()
