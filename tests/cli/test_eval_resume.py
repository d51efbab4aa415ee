"""`palaestra eval --save`: what was played before a kill is not played again, and the figures are the same."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import commands
import pytest
from commands import refused, words
from fake_server import FakeServer, Reply, demonstrated, said

import palaestra
from palaestra.record import read

TWO_HOP = "palaestra/TwoHop-v0"


def figures_of(capsys, *arguments):
    """The figures of a successful `palaestra eval`, without its times, and all that it said."""
    status, out, err = commands.run(capsys, "eval", *arguments, "--json", "-")
    assert status == 0, err
    figures = json.loads(out)
    for agent in (figures, figures.get("against", {})):
        [agent.pop(name, None) for name in ("seconds", "tokens_per_second")]
    return figures, words(err)


def test_an_evaluation_that_was_killed_goes_on_with_the_same_command(capsys, tmp_path):
    file, answered = tmp_path / "played.jsonl", 40
    behave, let_go = demonstrated(palaestra.demonstrator(TWO_HOP)), None

    async def until_stopped(seen):
        if len(server.questions) > answered:
            await let_go.wait()
        return behave(seen)

    with FakeServer(until_stopped) as server:
        let_go = asyncio.Event()
        command = ["eval", "two-hop", "-m", "demo", "-b", server.url, "-c", "4", "--tasks", "24", "--slots", "4"]
        child = subprocess.Popen([sys.executable, "-m", "palaestra", *command, "--save", str(file)])
        while len(server.questions) <= answered:  # It cannot get further than that.
            assert child.poll() is None
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        before = file.read_bytes()
        assert 6 <= before.count(b"\n") < 24
        file.write_bytes(before + before[: len(before.splitlines()[0]) // 2])
        server.behave = behave
        server.seen.clear()
        found, told = figures_of(capsys, *command[1:], "--save", file)
        asked, kept = len(server.questions), before.count(b"\n")
        assert f"{kept} episodes are played already" in told and "was cut off" in told
        assert asked == 3 * (24 - kept), "three turns an episode"
        assert len(list(read(file))) == 24
        server.seen.clear()
        assert figures_of(capsys, *command[1:], "--save", file)[0] == found and not server.questions
        assert figures_of(capsys, *command[1:])[0] == found, "as of one that nothing stopped"
        saved = file.read_bytes()
        for changed in (("--temperature", "0.5"), ("--seed", "3"), ("--samples", "2"), ("--env-options", "hops=3")):
            refused(capsys, "was begun with other settings", *command, "--save", file, *changed)
        assert file.read_bytes() == saved


@pytest.mark.parametrize(
    "asked",
    [
        ("two-hop", "--samples", "2", "--greedy", "--tool-rate", "0.5"),
        ("two-hop=3 calculator=1", "--tool-rate", "0.5"),
        ("solver-critic",),
    ],
    ids=lambda asked: asked[0],
)
def test_a_file_that_ends_anywhere_is_filled_up_to_the_same_figures(capsys, tmp_path, asked):
    file = tmp_path / "played.jsonl"
    command = (*asked[0].split(), *asked[1:], "--tasks", "6", "--save", file)
    whole, _ = figures_of(capsys, *command)
    content = file.read_bytes()
    lines = sorted(line for line in content.splitlines())
    for share in (0.1, 0.5, 0.99):
        file.write_bytes(content[: int(share * len(content))])
        assert figures_of(capsys, *command)[0] == whole
        assert len(file.read_bytes().splitlines()) == len(lines)


def test_a_second_attempt_is_not_paid_twice(capsys, tmp_path):
    def verdict(seen):
        text = "<critique>Search twice.</critique><score>0</score>"
        return Reply({"data": []}) if seen.method == "GET" else said(text)

    file = tmp_path / "both.jsonl"
    with FakeServer(verdict) as server:
        command = ("two-hop", "--tasks", "4", "--tool-rate", "0.5", "--critic", server.url, "--save", file)
        whole, _ = figures_of(capsys, *command)
        first, second = file.read_bytes().splitlines()[:4], file.read_bytes().splitlines()[4:]
        server.seen.clear()
        file.write_bytes(b"\n".join([*first[:3], *second[:2], b""]))
        assert figures_of(capsys, *command)[0] == whole
        assert len(server.questions) == 2, "one first attempt was there without its second, one was not there"


@pytest.mark.parametrize("limit", [("--max-tokens", "1500"), ("--max-cost", "0.0015", "--price-in", "1")])
def test_at_a_spending_limit_what_was_played_is_reported_and_a_higher_one_plays_the_rest(capsys, tmp_path, limit):
    behave = demonstrated(palaestra.demonstrator(TWO_HOP))

    def costly(seen):
        reply = behave(seen)
        reply.body["usage"] = {"prompt_tokens": 100, "completion_tokens": 20}
        return reply

    file = tmp_path / "played.jsonl"
    with FakeServer(costly) as server:
        command = (
            "two-hop",
            "-m",
            "demo",
            "-b",
            server.url,
            "-c",
            "2",
            "--slots",
            "2",
            "--tasks",
            "24",
            "--save",
            file,
        )
        status, out, _ = commands.run(capsys, "eval", *command, *limit)
        assert status == 0 and "ended early: the server has" in words(out)
        assert 13 <= len(server.questions) <= 17, "two were under way"
        played = len(list(read(file)))
        assert 3 <= played < 24 and f"the {played} episodes played until then" in words(out)
        figures, _ = figures_of(capsys, *command, *limit)
        assert figures["stopped"] and figures["tasks"] == len(figures["per_task"]) < 24
        figures, _ = figures_of(capsys, *command)
        assert figures["stopped"] == "" and figures["tasks"] == 24


def test_a_file_that_no_evaluation_has_made_is_left_alone(capsys, tmp_path):
    file = tmp_path / "notes.jsonl"
    file.write_text("mine\n")
    refused(capsys, "is not beside it", "eval", "two-hop", "--tasks", "2", "--save", file)
    assert file.read_text() == "mine\n"
