"""`palaestra collect`: what is played is kept, whatever happens; what is chosen is the same wherever it was stopped."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time

import commands
import families
import pytest
from commands import words
from fake_server import FakeServer, demonstrated, error, replying

import palaestra
from palaestra.agents import Agent
from palaestra.cli import main
from palaestra.record import read

ENV = "palaestra/Calculator-v0"
DEADLINE = 120.0
WORLD = '''
import os
import time
from pathlib import Path
import palaestra
from palaestra.envs import Task
from palaestra.envs.suite import calculator


class Sourced(calculator.Calculator):
    def task(self, rng):
        made = super().task(rng)
        return Task(made.prompt, made.answer, data={"source": ("odd", "even")[int(made.answer) % 2 == 0]})


HOLD_AFTER = int(os.environ.get("HOLD_AFTER", "0"))
PATIENCE = time.monotonic() + 120


def hasty(messages, rng, tool_rate=1.0):
    """Right in two episodes of three, and never at once. It waits for its end where so many episodes are on disk."""
    time.sleep(0.004)
    while HOLD_AFTER and time.monotonic() < PATIENCE:
        if Path("good.played.jsonl").read_bytes().count(b"\\n") < HOLD_AFTER:
            break
        time.sleep(0.01)
    said = calculator.demonstrate(messages, rng, tool_rate)
    return said if messages[-1]["role"] == "user" or rng.random() < 0.66 else "no idea"


palaestra.register("me/Sourced-v0", "sourced_world:Sourced", demonstrator="sourced_world:hasty")
'''
TASKS = 300


def run(capsys, *arguments):
    """Exit status and words of `palaestra collect`."""
    return commands.run_in_words(capsys, "collect", *arguments)


def refused(capsys, said, *arguments):
    return commands.refused(capsys, said, "collect", *arguments)


def counts(out):
    """What FILE.collect.json says became of the episodes: played, broken, wrong, duplicates, beyond top k, kept."""
    return list(json.loads(out.with_name(f"{out.stem}.collect.json").read_text())["counts"].values())


def lines(out):
    return out.with_name(f"{out.stem}.played.jsonl").read_bytes().splitlines(keepends=True)


def played_in(folder):
    return list(read(folder / "good.played.jsonl"))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "good.jsonl"


# What comes out.


def test_what_succeeded_is_kept_and_everything_played_stays(capsys, out):
    status, shown, _ = run(capsys, "calculator", "--out", out, "--tasks", 40, "--samples", 2)
    assert status == 0
    kept, played = list(read(out)), played_in(out.parent)
    assert len(played) == 80
    assert counts(out) == [80, 0, 0, 80 - len(kept), 0, len(kept)]
    assert f"episodes 80 0 0 {80 - len(kept)} 0 {len(kept)}" in shown
    assert {record.episode.start.task for record in kept} <= set(range(40))
    assert len({record.episode.attempt.task.prompt for record in kept}) == len(kept), "the script plays a task one way"
    assert {(record.env_id, record.agent, tuple(record.options.items())) for record in played} == {
        (ENV, "demonstrator", (("split", "train"),))
    }
    assert len({record.episode.start.seed for record in played}) == 80, "no seed is used twice"


def test_kept_episodes_replay_identically(capsys, out):
    run(capsys, "two-hop", "--out", out, "--tasks", 6, "--split", "eval")
    assert main(["replay", str(out)]) == 0
    assert "6 identical" in capsys.readouterr().out


def test_options_reach_the_environment_and_the_record(capsys, out):
    status, _, err = run(capsys, "arithmetic", "--out", out, "--tasks", 4, "--env-options", "digits=2")
    assert status == 0, err
    assert all(dict(record.options) == {"split": "train", "digits": 2} for record in read(out))


@pytest.mark.parametrize(("split", "whole"), [("train", False), ("all", True)])
def test_the_split_all_is_the_whole_of_a_file(capsys, out, tmp_path, split, whole):
    file = tmp_path / "sums.json"
    file.write_text(json.dumps([{"prompt": f"What is {n} * 3?", "answer": str(3 * n)} for n in range(40)]))
    more = ("--env-options", f"tasks={file}", "--tasks", 100, "--split", split)
    status, _, err = run(capsys, "calculator", "--out", out, *more)
    assert status == 0, err
    played = {record.episode.attempt.task.prompt for record in played_in(out.parent)}
    assert (len(played) == 40) == whole


def test_f19_the_best_of_each_source_by_a_score_of_ones_own_or_a_ready_one(capsys, out, tmp_path, monkeypatch):
    (tmp_path / "sourced_world.py").write_text(WORLD.replace("time.sleep(0.004)", ""))
    (tmp_path / "my_score.py").write_text(
        "def latest(episode):\n    return episode.start.task\n\n\ndef silent(episode):\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "sourced_world", raising=False)
    asked = ["sourced_world:me/Sourced-v0", "--out", out, "--tasks", 40, "--samples", 2, "--top-k", 4]
    status, _, err = run(capsys, *asked, "--score", "my_score:latest")
    assert status == 0, err
    kept = list(read(out))
    for source in ("odd", "even"):
        right = {
            one.episode.start.task
            for one in played_in(tmp_path)
            if one.episode.parts["success"] == 1 and one.episode.attempt.task.data["source"] == source
        }
        chosen = {r.episode.start.task for r in kept if r.episode.attempt.task.data["source"] == source}
        assert chosen == set(sorted(right)[-4:]), "those with the highest score"
    for name in ("calls-worked", "short", "reward"):
        status, shown, err = run(capsys, *asked, "--score", name)
        assert status == 0
        assert "80 of 80 are played already" in err
        assert counts(out)[-1] == 8
    assert re.search(r"odd \d+ 0 \d+ \d+ \d+ 4 ", shown)
    assert re.search(r"all 80 0 \d+ \d+ \d+ 8 ", shown)
    refused(capsys, "returned None for an episode; expected a number", *asked, "--score", "my_score:silent")
    refused(capsys, "expected reward, calls-worked, short, or a function", *asked, "--score", "beauty")
    refused(capsys, "'lates' is not in", *asked, "--score", "my_score:lates")
    refused(capsys, "say with --top-k how many", *asked[:-2], "--score", "short")
    assert len(lines(out)) == 80, "nothing was played again"


def test_more_tasks_or_samples_play_only_what_is_new_and_fewer_choose_among_fewer(capsys, out):
    def starts():
        return [(r.episode.start.task, r.episode.start.seed) for r in played_in(out.parent)]

    run(capsys, "two-hop", "--out", out, "--tasks", 5)
    first = starts()
    run(capsys, "two-hop", "--out", out, "--tasks", 8, "--samples", 2)
    assert starts()[:5] == first
    assert len(set(starts())) == len(starts()) == 16
    run(capsys, "two-hop", "--out", out, "--tasks", 3)
    assert len(starts()) == 16
    assert counts(out)[0] == 3


# What happens on the way.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a collection that nobody touched."""
    folder = tmp_path_factory.mktemp("whole")
    finished(folder)
    return folder


def started(folder, hold=0):
    """The command in a folder of its own, as a process; it goes no further than to `hold` episodes."""
    (folder / "sourced_world.py").write_text(WORLD)
    asked = ["sourced_world:me/Sourced-v0", "--out", "good.jsonl", "--tasks", str(TASKS), "--top-k", "40"]
    return subprocess.Popen(
        [sys.executable, "-m", "palaestra", "collect", *asked, "--slots", "4"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
            "HOLD_AFTER": str(hold),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(folder):
    """The command run to its end; its output."""
    process = started(folder)
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    return output


def stopped(folder, number, episodes, room=0):
    """Start the command and send it a signal once so many more episodes are on disk; its output and status.

    However late the signal comes, the command is at most `room` episodes further, somewhere in its work or waiting.
    """
    path = folder / "good.played.jsonl"
    before = path.read_bytes().count(b"\n") if path.exists() else 0
    process, until = started(folder, before + episodes + room), time.monotonic() + DEADLINE
    try:
        while process.poll() is None and time.monotonic() < until:
            if path.exists() and path.read_bytes().count(b"\n") >= before + episodes:
                process.send_signal(number)
                break
            time.sleep(0.002)
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    return output, process.returncode


def same_end(folder, whole):
    assert list(read(folder / "good.jsonl")) == list(read(whole / "good.jsonl"))
    told = [json.loads((one / "good.collect.json").read_text()) for one in (folder, whole)]
    assert told[0]["counts"] == told[1]["counts"]
    played = [
        sorted((r.episode.start.task, r.episode.start.seed, r.episode.attempt.answer) for r in played_in(one))
        for one in (folder, whole)
    ]
    assert played[0] == played[1]
    assert len(played[0]) == TASKS


@pytest.mark.prove
def test_kills_change_nothing_and_lose_nothing(tmp_path, whole):
    for episodes in (20, 60):
        kept = lines(tmp_path / "good.jsonl") if (tmp_path / "good.played.jsonl").exists() else []
        output, status = stopped(tmp_path, signal.SIGKILL, episodes, room=40)
        assert status == -signal.SIGKILL, output
        assert lines(tmp_path / "good.jsonl")[: len(kept)] == kept
        assert not (tmp_path / "good.jsonl").exists(), "a selection is there whole or not at all"
    begun = len(lines(tmp_path / "good.jsonl"))
    assert 80 <= begun < TASKS
    assert "are played already" in finished(tmp_path)
    same_end(tmp_path, whole)


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_cleanly_and_says_how_to_go_on(tmp_path, whole, number):
    output, status = stopped(tmp_path, number, 30)
    assert status == 128 + number, output
    assert "Traceback" not in output
    said = words(output)
    kept = len(played_in(tmp_path))
    assert f"interrupted; {kept} episodes are in" in said
    assert "the same command plays the rest" in said
    assert 30 <= kept < TASKS
    assert not (tmp_path / "good.jsonl").exists()
    finished(tmp_path)
    same_end(tmp_path, whole)


def altered(content):
    """The third line says something else."""
    whole = content.splitlines(keepends=True)
    whole[2] = whole[2].replace(b'"answer"', b'"anzwer"', 1)
    return b"".join(whole)


@pytest.mark.parametrize(
    ("damage", "told", "left", "size"),
    [
        (lambda content: content[:-50], "last line was cut off", 5, 6),
        (lambda content: content[:9], "last line was cut off (its writer was killed?); these 9 bytes", 0, 6),
        (lambda content: content[:-1], "6 of 6", 6, 6),
        (altered, "line 3: its digest does not fit", 5, 7),
    ],
    ids=["half a line", "nothing else", "only its end is missing", "a changed line"],
)
def test_a_damaged_line_is_told_and_its_episode_alone_is_played_again(capsys, out, damage, told, left, size):
    asked, path = ["two-hop", "--out", out, "--tasks", 6], out.with_name("good.played.jsonl")
    run(capsys, *asked)
    kept, before = list(read(out)), path.read_bytes()
    damaged = damage(before)
    path.write_bytes(damaged)
    status, shown, err = run(capsys, *asked)
    shown += f" {err}"
    assert status == 0
    assert told in shown
    assert (f"{left} of 6 are played already" in shown) == (left > 0)
    assert ("cut off" in shown, "1 lines of" in shown) == ("cut off" in told, size == 7)
    assert list(read(out)) == kept
    assert len(lines(out)) == size
    assert left < 6 or path.read_bytes() == before
    assert size < 7 or path.read_bytes().startswith(damaged), "what somebody changed is left where it is"


def playing(monkeypatch, broken=None, engine=None):
    """Play in a little world where episodes may break; every answer has an odd length now and then."""
    arena = families.Talk(4, broken=broken)
    monkeypatch.setattr("palaestra.cli.rollouts.arena", lambda *_, **__: arena)
    monkeypatch.setattr("palaestra.cli.agents._opened", lambda *_: Agent(engine or families.Echo()))
    return arena


def test_broken_episodes_are_kept_counted_and_tried_again(capsys, monkeypatch, out):
    playing(monkeypatch, lambda start, tries: start.task % 5 == 1)
    asked = ["two-hop", "--out", out, "--tasks", 20, "--least-success", 0]
    status, shown, err = run(capsys, *asked)
    shown += f" {err}"
    assert status == 0
    assert counts(out)[:3] == [20, 4, 0]
    assert "4 episodes are BROKEN, and count in no figure: 4 it broke the same command" in shown
    assert "the same command tries the 4 BROKEN again" in shown
    assert sum(record.episode.reward is None for record in played_in(out.parent)) == 4
    arena = playing(monkeypatch)
    status, shown, err = run(capsys, *asked)
    shown += f" {err}"
    assert status == 0
    assert "16 of 20 are played already" in shown
    assert sorted(start.task for start in arena.begun) == [1, 6, 11, 16]
    assert counts(out)[:3] == [20, 0, 0]


def test_when_all_breaks_it_stops_says_why_and_exits_with_2(capsys, monkeypatch, out):
    arena = playing(monkeypatch, lambda start, tries: True)
    err = refused(capsys, "are all BROKEN: 16 x it broke", "two-hop", "--out", out, "--tasks", 5000)
    assert "no episode is scored yet; the same command plays them" in err
    assert len(arena.begun) < 200
    assert arena.closed
    assert not out.exists()


def test_nothing_kept_writes_nothing_and_exits_with_1(capsys, monkeypatch, out):
    playing(monkeypatch)
    end = families.Talk._end

    def worthless(self, slot, ending):
        self.live[slot][1][-1] = "xx"  # Of even length: no reward.
        return end(self, slot, ending)

    monkeypatch.setattr(families.Talk, "_end", worthless)
    status, shown, _ = run(capsys, "two-hop", "--out", out, "--tasks", 3)
    assert status == 1
    assert "nothing was kept" in shown
    assert not out.exists()


class Failing(families.Echo):
    """A server that refuses everybody from the tenth request on."""

    closed = False

    def submit(self, request):
        if len(self.submitted) == 10:
            raise palaestra.UsageError("the server refused the key")
        return super().submit(request)

    def close(self):
        self.closed = True


def test_an_error_on_the_way_keeps_what_was_played(capsys, monkeypatch, out):
    engine = Failing()
    arena = playing(monkeypatch, engine=engine)
    err = refused(capsys, "the server refused the key", "two-hop", "--out", out, "--tasks", 50)
    kept = len(played_in(out.parent))
    assert kept > 0
    assert f"the server refused the key {kept} episodes are in" in err
    assert arena.closed and engine.closed


def test_a_served_teacher_tells_what_it_has_cost(capsys, out):
    rule = palaestra.demonstrator(ENV)
    with FakeServer(demonstrated(rule)) as server:
        asked = ["calculator", "--out", out, "-m", "demo", "-b", server.url, "--price-in", "1000000"]
        status, shown, err = run(capsys, *asked, "--tasks", 5)
        assert status == 0, err
        assert re.search(r"10 answers, [\d,]+ tokens read, [\d,]+ written, [\d,.]+ paid", shown)
        assert all(record.agent == "demo" for record in read(out))
        assert server.url not in out.read_text(), "where it was served is nobody's business"
        refused(capsys, "temperature was 1.0 and is 0.5", *asked, "--tasks", 5, "--temperature", "0.5")
        asked_before = len(server.questions)
        assert run(capsys, *asked, "--tasks", 5)[0] == 0
        assert len(server.questions) == asked_before, "what is played is not paid again"


def test_a_server_that_refuses_the_key_is_told_before_anything_is_played(capsys, out):
    with replying(error(401, "bad key")) as server:
        err = refused(capsys, "key", "calculator", "--out", out, "-m", "demo", "-b", server.url, "--tasks", 5)
    assert "the same command" not in err
    assert list(out.parent.iterdir()) == [], "a mistake leaves no litter"


def test_a_teacher_from_disk_keeps_its_tokens(capsys, out, tmp_path):
    from palaestra.agents.model_folder import export
    from palaestra.agents.policies.tiny import tiny_model

    tokenizer = families.TOKENIZERS["tiny"]
    export(tiny_model(len(tokenizer), layers=1), tokenizer, tmp_path / "teacher")
    asked = ["two-hop", "--out", out, "-m", tmp_path / "teacher", "--device", "cpu", "--max-turn-tokens", 12]
    status, _, err = run(capsys, *asked, "--tasks", 4, "--least-success", 0)
    assert status == 0, err
    assert all(record.episode.sampled_tokens > 0 for record in read(out))


# What is refused.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--seed", "1"], "seed was 0 and is 1"),
        (["--split", "eval"], "options was {'split': 'train'} and is {'split': 'eval'}"),
        (["--model", "human"], "agent was 'demonstrator' and is 'human'"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("settings", [True, False], ids=["with settings", "from the episodes alone"])
def test_a_file_that_was_begun_otherwise_is_refused_with_what_differs(capsys, out, change, said, settings):
    run(capsys, "calculator", "--out", out, "--tasks", 4)
    before = lines(out)
    if not settings:
        out.with_name("good.collect.json").unlink()
    err = refused(capsys, said, "calculator", "--out", out, "--tasks", 4, *change)
    assert "name another --out" in err
    assert lines(out) == before
    other = "env_id was 'palaestra/Calculator-v0' and is 'palaestra/TwoHop-v0'"
    refused(capsys, other, "two-hop", "--out", out, "--tasks", 4)


def test_files_that_are_somebody_elses_in_use_or_spoiled_are_named_and_left(capsys, out):
    asked = ["calculator", "--out", out, "--tasks", 4]
    out.write_text("precious\n")
    refused(capsys, "no collection has made it", *asked)
    assert out.read_text() == "precious\n"
    out.unlink()
    with out.with_name("good.played.jsonl").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        refused(capsys, "in use by another process", *asked)
    assert run(capsys, *asked)[0] == 0
    for text in ("{", "[]"):
        out.with_name("good.collect.json").write_text(text)
        assert "good.collect.json" in refused(capsys, "Delete it to continue", *asked)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "0"], "at least 1"),
        (["--samples", "5000"], "at most 4096"),
        (["--temperature", "nan"], "temperature"),
        (["--seed", "-1"], "seed"),
        (["--top-k", "0"], "top_k is 0"),
        (["--least-success", "2"], "least_success is 2"),
        (["--env-options", "digits"], "KEY=VALUE"),
        (["--base-url", "http://localhost:1/v1"], "name one of its models"),
        (["--max-turn-tokens", "0"], "max_turn_tokens"),
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_refused_in_a_sentence(capsys, out, arguments, said):
    refused(capsys, said, "calculator", "--out", out, *arguments)
    assert not out.exists()


def test_a_game_without_a_seat_is_refused_with_the_seats_and_no_false_promise(capsys, out):
    err = refused(capsys, "the seats debater_0, debater_1, judge_0", "debate", "--out", out, "--tasks", 2)
    assert "--env-options seat=debater_0" in err
    assert "the same command" not in err
    assert list(out.parent.iterdir()) == []
    assert run(capsys, "debate", "--out", out, "--tasks", 2, "--env-options", "seat=debater_0")[0] == 0


def test_the_file_must_have_a_name_that_can_be_told_apart_and_a_folder_that_can_be_made(capsys, tmp_path):
    for name in ("good", "good.json", "good.played.jsonl"):
        refused(capsys, "ends in .jsonl", "calculator", "--out", tmp_path / name, "--tasks", 2)
    assert list(tmp_path.iterdir()) == []
    assert run(capsys, "calculator", "--out", tmp_path / "a" / "b" / "c.jsonl", "--tasks", 2)[0] == 0
    (tmp_path / "file").touch()
    refused(capsys, "cannot be written", "calculator", "--out", tmp_path / "file" / "c.jsonl", "--tasks", 2)


@pytest.mark.parametrize("size", [1, 5000])
def test_fewer_tasks_than_asked_for_are_said(capsys, tmp_path, monkeypatch, size):
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {n} * 2?", "answer": str(2 * n)}) + "\n" for n in range(3)))
    asked = ["calculator", "--out", tmp_path / "c.jsonl", "--tasks", size, "--env-options", f"tasks={file}"]
    status, shown, err = run(capsys, *asked)
    shown += f" {err}"
    assert status == 0, err
    assert ("there are only" in shown) == (size > 3)


def test_the_demonstrator_uses_its_tool_as_often_as_asked(capsys, out):
    for rate, calls in (("0", {0}), ("1", {1})):
        file = out.with_name(f"rate{rate}.jsonl")
        run(capsys, "calculator", "--out", file, "--tasks", 12, "--tool-rate", rate)
        played = list(read(file.with_name(f"rate{rate}.played.jsonl")))
        assert {len(record.episode.attempt.calls) for record in played} == calls
    refused(capsys, "--tool-rate is 2", "calculator", "--out", out, "--tool-rate", "2")
    refused(
        capsys, "is for the environment's demonstrator", "calculator", "--out", out, "--model", "m", "--tool-rate", "1"
    )
