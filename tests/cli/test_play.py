"""`palaestra play`: an episode stepped by hand, from a pipe and from a terminal."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import families
import pytest

import palaestra
from palaestra.cli import main
from palaestra.record import read

ENV = "palaestra/TwoHop-v0"


@pytest.fixture
def play(monkeypatch, capsys):
    """Play typed lines; returns the exit status and what was printed."""

    def run(*lines, args=(ENV, "--seed", "1")):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
        status = main(["play", *args])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def test_an_episode_is_played_to_its_reward(play):
    status, out = play(
        '/call search query="Moka born"', '/call search query="Tila river"', "Answer: Momu", args=(ENV, "--seed", "1")
    )
    assert status == 0
    assert "tool (search): Tila" in out
    assert "tool (search): Momu" in out
    assert "[answered: reward 1]" in out


def test_a_turn_written_out_in_full_is_the_same_as_call(play):
    turn = '<tool_call>{"name": "search", "arguments": {"query": "Moka born"}}</tool_call>'
    _, out = play('"""', *turn.split(" ", 1)[:1], turn.split(" ", 1)[1], '"""')
    assert "tool (search): Tila" in out


def test_tools_are_listed_with_their_arguments(play):
    _, out = play("/tools")
    assert "search(query: string)" in out


def test_the_reward_says_every_part_and_what_it_was_computed_from(play):
    _, out = play("/reward", '/call search query="Moka born"', "Answer: Tila", "/reward")
    assert "reward 0, if the episode were cut off now" in out
    for said in (
        "success = 0, times 1 (from 0 to 1)",
        "answer    Answer: Tila",
        "expected  Momu",
        "calls     search ok",
    ):
        assert said in out
    assert "def reward(self" in out


def test_the_reward_is_explained_by_its_environment_and_no_terminal_obeys_what_it_quotes(play, monkeypatch):
    from palaestra.envs.suite.two_hop import TwoHop

    async def explain(self, attempt):
        return f"one said {attempt.answer}\n  and [bold]another[/bold]"

    monkeypatch.setattr(TwoHop, "explain", explain)
    _, out = play("\x1b[2J Momu", "/reward")
    assert "because\n  one said \\x1b[2J Momu\n    and [bold]another[/bold]\nby " in out
    assert "\x1b" not in out
    monkeypatch.setattr(TwoHop, "explain", lambda self, attempt: "")
    assert "because" not in play("Momu", "/reward")[1]


def test_an_answer_that_a_task_does_not_name_is_shown_where_it_is(play):
    _, out = play("/reward", args=("code-contest", "--task", "0"))
    assert "expected  see /task\n" in out
    assert "because\n  there is no program\n" in out


def test_undo_leads_back_by_recorded_outcomes_and_runs_no_tool_again(play, monkeypatch):
    from palaestra.envs.suite.two_hop import TwoHop

    ran = []
    search = TwoHop.search
    monkeypatch.setattr(TwoHop, "search", lambda self, query: ran.append(query) or search(self, query))
    call = '/call search query="Moka born"'
    _, out = play(call, '/call search query="Tila river"', "Answer: no", "/undo", "/undo 1", "Answer: Momu")
    assert ran == ["Moka born", "Tila river"]
    assert "[answered: reward 1]" in out
    assert "1 taken back; turn 2" in out
    _, out = play(call, "/undo 2")
    assert "2 turns cannot be taken back; 1 have been taken" in out


def test_undo_of_a_toolkit_says_what_is_lost(play, monkeypatch):
    """Unless the toolkit has snapshots: then what it held comes back."""
    from palaestra.envs import Toolkit
    from palaestra.envs.tools.sandboxed import SandboxedToolkit

    lines = ("/call python code=print(1)", "/undo")
    assert "what earlier calls had left" not in play(*lines, args=("arithmetic", "--seed", "0"))[1]
    monkeypatch.setattr(SandboxedToolkit, "snapshot", Toolkit.snapshot)
    assert "what earlier calls had left in them is gone" in play(*lines, args=("arithmetic", "--seed", "0"))[1]


def test_raw_shows_messages_exactly_and_sends_text_with_a_slash(play):
    _, out = play("/raw", "/raw /etc is a folder")
    assert json.loads(next(line for line in out.splitlines() if line.startswith('{"role": "user"')))["role"] == "user"
    assert "assistant: /etc is a folder" in out


def test_an_episode_is_saved_open_or_ended_and_replays(play, tmp_path):
    file = tmp_path / "mine.jsonl"
    play('/call search query="Moka born"', f"/save {file}", "Answer: Momu", f"/save {file}")
    assert [str(record.episode.ending) for record in read(file)] == ["length_limit", "answered"]
    assert main(["replay", str(file)]) == 0


def test_a_recorded_episode_is_taken_up_where_it_ended(play, tmp_path):
    file = tmp_path / "mine.jsonl"
    play('/call search query="Moka born"', "Answer: no", f"/save {file}", "/undo", f"/save {file}")
    _, out = play("/undo", "Answer: Momu", args=(ENV, "--episode", f"{file}:1"))
    assert "tool (search): Tila" in out
    assert "[answered: reward 1]" in out
    _, out = play("Answer: Momu", args=(ENV, "--episode", f"{file}:2"))
    assert "[answered: reward 1]" in out
    assert play(args=(ENV, "--episode", f"{file}:3"))[0] == 2
    assert play(args=("calculator", "--episode", f"{file}"))[0] == 2


def test_tokens_show_what_a_model_would_see(play, tmp_path):
    families.TOKENIZERS["tiny"].save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    _, out = play('/call search query="Moka born"', f"/tokens {tmp_path}", "/tokens", "/tokens ./absent")
    assert "of them the agent's" in out
    assert "‹<tool_call>" in out
    assert "which model's tokens?" in out
    assert "there is no folder './absent'" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nonsense", "there is no /nonsense"),
        ("/call", "expected /call NAME KEY=VALUE"),
        ("/call search query", "expected KEY=VALUE"),
        ('/call search query="open', "No closing quotation"),
        ("/call serch query=x", "no tool is named 'serch'"),
        ("/undo", "0 have been taken"),
        ("/undo x", "expected a number"),
        ("/save", "expected /save FILE"),
        ("/save /nowhere/at/all.jsonl", "No such file"),
        ("<tool_call>{", "malformed call"),
    ],
)
def test_a_wrong_line_is_answered_and_the_episode_goes_on(play, line, said):
    status, out = play(line, "Answer: Momu")
    assert said in out
    assert "[answered: reward" in out
    assert status == 0


def test_after_its_end_an_episode_takes_no_turn_but_can_be_begun_again(play):
    _, out = play("Answer: x", "Answer: y", "/reset 3", "Answer: z")
    assert "the episode has ended: /undo" in out
    assert out.count("[answered") == 2


def test_text_that_would_move_the_cursor_is_shown_not_obeyed(play):
    _, out = play("\x1b[2J\x07 Answer: [red]Momu[/red]")
    assert "\x1b[2J" not in out
    assert "[red]Momu[/red]" in out


def test_an_open_block_at_the_end_of_input_is_an_error(play):
    status, out = play('"""', "half a turn")
    assert status == 2
    assert "the input ended inside" in out


PROGRAM = ("```python", "def f(x):", "", "    return '/call'", "```")


def test_a_program_in_a_fence_is_one_turn(play):
    status, out = play(*PROGRAM, "/reset 1", "~~~~", "~~~", "```", "~~~~ ", "/reset 1", "```x``` is code")
    assert status == 0
    assert out.count("[answered: reward 0]") == 3
    assert "\n".join(PROGRAM) in out
    assert "assistant: ~~~~\n~~~\n```\n~~~~" in out
    assert play("```python", "half a turn")[0] == 2


def test_a_file_is_a_turn_and_a_program_of_python_is_fenced(play, tmp_path):
    program, text = tmp_path / "mine.py", tmp_path / "said.txt"
    program.write_text('"""```\nno end\n```"""\n')
    text.write_text("Answer: Momu")
    _, out = play(f"/file {program}", "/reset 1", f"/file {text}", "/file", f"/file {tmp_path}")
    assert 'assistant: ````python\n"""```\nno end\n```"""\n````\n' in out
    assert "[answered: reward" in out.rpartition("assistant: Answer: Momu")[2]
    assert "expected /file PATH" in out
    assert "there is no such file" in out


def test_the_split_is_the_environments_own_unless_it_is_named(play):
    """HumanEval is a benchmark: by default it is played, and not the problems to train on."""
    assert "id      HumanEval/0\n" in play("/task", args=("human-eval", "--task", "0"))[1]
    assert "id      train/0\n" in play("/task", args=("human-eval", "--task", "0", "--split", "train"))[1]


def test_input_that_is_not_text_is_an_error_and_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "palaestra", "play", ENV, "--seed", "1"],
        input=b"\xff\xfe\x00 caf\xe9\n",
        capture_output=True,
        timeout=120,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert b"Traceback" not in done.stderr


def test_it_can_be_played_at_a_terminal_of_forty_columns():
    """A real terminal: prompts, a call, an answer, /quit."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "palaestra", "play", ENV, "--seed", "1"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        close_fds=True,
        env={**os.environ, "COLUMNS": "40", "TERM": "xterm"},
    )
    os.close(slave)
    os.write(master, b'/call search query="Moka born"\nAnswer: Momu\n/quit\n')
    seen, until = b"", time.monotonic() + 120
    while select.select([master], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            part = os.read(master, 4096)
        except OSError:  # The other end is closed.
            break
        if not part:
            break
        seen += part
    os.close(master)
    try:
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    assert b"Tila" in seen
    assert b"[answered: reward 1]" in seen
    assert b"Traceback" not in seen


def test_a_foreign_environment_is_refused(play):
    status, out = play(args=("CartPole-v1",))
    assert status == 2
    assert "CartPole" in out
    assert play("/task", args=(ENV, "--env-options", "digits=2"))[0] == 2


def test_an_environment_that_breaks_says_so_and_exits_with_one(play, tmp_path, monkeypatch):
    (tmp_path / "breaking.py").write_text(
        "import palaestra\n"
        "from palaestra.envs import Task, ToolEnv, tool\n\n\n"
        "class Breaking(ToolEnv):\n"
        '    """Breaks."""\n\n'
        "    def task(self, rng):\n"
        '        return Task(f"Go {rng.integers(99)}", "x")\n\n'
        "    @tool\n"
        "    def go(self) -> str:\n"
        '        """Go."""\n'
        '        raise palaestra.Broken("the server is gone")\n\n'
        "    def reward(self, attempt):\n"
        "        return 0.0\n\n\n"
        'palaestra.register("test/Breaking-v0", "breaking:Breaking")\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    status, out = play("/call go", args=("breaking:test/Breaking-v0",))
    assert status == 1
    assert "[broken: " in out
    assert "the server is gone" in out
    assert Path(tmp_path).exists()
    palaestra.registry.gymnasium.registry.pop("test/Breaking-v0", None)
