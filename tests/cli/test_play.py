"""`palaestra play`: episodes and games stepped by hand, from a pipe and from a terminal."""

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
import gymnasium
import pytest
from commands import run

import palaestra
from palaestra.cli import main
from palaestra.envs import Task, ToolEnv, tool
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.suite.solver_critic import SolverCritic
from palaestra.record import read, write

ENV = "palaestra/TwoHop-v0"


@pytest.fixture
def play(monkeypatch, capsys):
    """Play typed lines; returns the exit status and what was printed."""

    def played(*lines, args=(ENV, "--seed", "1")):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
        status, out, err = run(capsys, "play", *args)
        return status, out + err

    return played


def test_an_episode_is_played_to_its_reward_which_says_what_it_was_computed_from(play):
    turn = '<tool_call>{"name": "search", "arguments": {"query": "Tila river"}}</tool_call>'
    status, out = play(
        "/tools", '/call search query="Moka born"', "/reward", '"""', *turn.split(" ", 1)[:1], turn.split(" ", 1)[1],
        '"""', "Answer: Momu", "/reward",
    )  # fmt: skip
    assert status == 0
    for said in (
        "search(query: string)",
        "tool (search): Tila",
        "reward 0, if the episode were cut off now",
        "answer    none",
        "tool (search): Momu",
        "[answered: reward 1]",
        "success = 1, times 1 (from 0 to 1)",
        "answer    Answer: Momu",
        "expected  Momu",
        "calls     search ok, search ok",
        "turns     3 of 4",
        "def reward(self",
    ):
        assert said in out, said


def test_the_reward_is_explained_by_its_environment_and_no_terminal_obeys_what_it_quotes(play, monkeypatch):
    from palaestra.envs.suite.two_hop import TwoHop

    async def explain(self, attempt):
        return f"one said {attempt.answer}\n  and [bold]another[/bold]"

    monkeypatch.setattr(TwoHop, "explain", explain)
    _, out = play("\x1b[2J\x07 [red]Momu[/red]", "/reward")
    assert "because\n  one said \\x1b[2J\\x07 [red]Momu[/red]\n    and [bold]another[/bold]\nby " in out
    assert not {"\x1b", "\x07"} & set(out)
    monkeypatch.setattr(TwoHop, "explain", lambda self, attempt: "")
    assert "because" not in play("Momu", "/reward")[1]


def test_an_answer_that_a_task_does_not_name_is_shown_where_it_is(play):
    _, out = play("/reward", args=("code-contest", "--task", "0"))
    assert "expected  see /task\n" in out
    assert "because\n  there is no program\n" in out


def test_undo_runs_no_tool_again_and_says_what_toolkits_without_snapshots_lose(play, monkeypatch):
    from palaestra.envs import Toolkit
    from palaestra.envs.suite.two_hop import TwoHop
    from palaestra.envs.tools.sandboxed import SandboxedToolkit

    ran, search = [], TwoHop.search
    monkeypatch.setattr(TwoHop, "search", lambda self, query: ran.append(query) or search(self, query))
    call = '/call search query="Moka born"'
    _, out = play(call, '/call search query="Tila river"', "Answer: no", "/undo", "/undo 1", "Answer: Momu", "/undo 9")
    assert ran == ["Moka born", "Tila river"]
    for said in ("[answered: reward 1]", "1 taken back; turn 2", "9 turns cannot be taken back; 2 have been taken"):
        assert said in out, said
    lines = ("/call python code=print(1)", "/undo")
    assert "what earlier calls had left" not in play(*lines, args=("arithmetic", "--seed", "0"))[1]
    monkeypatch.setattr(SandboxedToolkit, "snapshot", Toolkit.snapshot)
    assert (
        "what earlier calls had left is gone, for the reward too" in play(*lines, args=("arithmetic", "--seed", "0"))[1]
    )


def test_raw_shows_messages_exactly_and_sends_text_with_a_slash(play):
    _, out = play("/raw", "/raw /etc is a folder")
    assert json.loads(next(line for line in out.splitlines() if line.startswith('{"role": "user"')))["role"] == "user"
    assert "assistant: /etc is a folder" in out


def test_an_episode_is_saved_open_or_ended_replays_and_is_taken_up_where_it_ended(play, tmp_path):
    file = tmp_path / "mine.jsonl"
    play('/call search query="Moka born"', f"/save {file}", "Answer: no", f"/save {file}")
    assert [str(record.episode.ending) for record in read(file)] == ["length_limit", "answered"]
    assert main(["replay", str(file)]) == 0
    _, out = play("/undo", "Answer: Momu", args=(ENV, "--episode", f"{file}:2"))
    assert "tool (search): Tila" in out
    assert "[answered: reward 0]" in out
    assert "[answered: reward 1]" in out
    assert "[answered: reward 1]" in play("Answer: Momu", args=(ENV, "--episode", f"{file}:1"))[1]
    for args in (
        (ENV, "--episode", f"{file}:3"),
        (ENV, "--episode", f"{file}:0"),
        (ENV, "--episode", f"{file}:²"),
        (ENV, "--seed", "-1"),
        ("calculator", "--episode", f"{file}"),
    ):
        assert play(args=args)[0] == 2


def test_tokens_show_what_a_model_would_see(play, tmp_path):
    families.TOKENIZERS["tiny"].save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    _, out = play('/call search query="Moka born"', f"/tokens {tmp_path}", "/tokens", "/tokens ./absent")
    assert "of them the agent's" in out
    assert "‹<tool_call>" in out
    assert "which model's tokens?" in out
    assert "there is no folder './absent'" in out


def test_wrong_lines_are_answered_and_the_episode_goes_on(play):
    wrong = {
        "/show nobody_0": "there is no seat 'nobody_0'; it has one",
        "/file": "expected /file PATH",
        "/nonsense": "there is no /nonsense",
        "/call": "expected /call NAME KEY=VALUE",
        "/call search query": "expected KEY=VALUE",
        '/call search query="open': "No closing quotation",
        "/undo": "0 have been taken",
        "/undo ²": "expected a number",
        "/file ~nobody.at.all/x": "cannot be read",
        "/save .": "cannot be written: Is a directory",
        "/save": "expected /save FILE",
        "/save /nowhere/at/all.jsonl": "No such file",
        "/call serch query=x": "no tool is named 'serch'",
        "<tool_call>{": "malformed call",
    }
    status, out = play(*wrong, "Answer: Momu", "Answer: y", "/reset 3", "Answer: z")
    for said in (*wrong.values(), "the episode has ended: /undo"):
        assert said in out, said
    assert out.count("[answered: reward") == 2
    assert status == 0


PROGRAM = ("```python", "def f(x):", "", "    return '/call'", "```")


def test_a_program_in_a_fence_is_one_turn(play):
    status, out = play(*PROGRAM, "/reset 1", "~~~~", "~~~", "```", "~~~~ ", "/reset 1", "```x``` is code")
    assert status == 0
    assert out.count("[answered: reward 0]") == 3
    assert "\n".join(PROGRAM) in out
    assert "assistant: ~~~~\n~~~\n```\n~~~~" in out
    for opening in ("```python", '"""'):
        status, out = play(opening, "half a turn")
        assert status == 2
        assert "the input ended inside" in out


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


def test_environments_of_others_are_played_where_they_hear_text(play, monkeypatch):
    status, out = play(args=("CartPole-v1",))
    assert status == 2
    assert "CartPole" in out
    assert play("/task", args=(ENV, "--env-options", "digits=2"))[0] == 2
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "envs"))
    gymnasium.register("test/Echoed-v0", "game_worlds:Echo")
    status, out = play(
        "/undo", "/task", "/call say x=1", "/save x", "word1", "/show", "/reward", "/reset",
        args=("test/Echoed-v0", "--task", "1"),
    )  # fmt: skip
    gymnasium.registry.pop("test/Echoed-v0")
    assert status == 0
    assert out.count("is somebody else's environment: it shows no task, cannot go back") == 3
    assert "takes only text; write your turn" in out
    assert "[answered: reward 0]" in out
    assert "success = 0\n" in out
    assert out.count("user: Say word") == 3
    pettingzoo = pytest.importorskip("pettingzoo")
    pettingzoo.register("aec", "test/counted_v0", "game_worlds:Count")
    status, out = play("no", "no", "/reward", args=("test/counted_v0", "--seed", "1"))
    pettingzoo.aec_registry.pop("test/counted-v0")
    assert status == 0
    assert "[one_0 answered: reward 0]" in out
    assert "two_0: 0" in out


class Breaking(ToolEnv):
    """Breaks."""

    def task(self, rng):
        return Task(f"Go {rng.integers(99)}", "x")

    @tool
    def go(self) -> str:
        """Go."""
        raise palaestra.Broken("the server is gone")

    def reward(self, attempt):
        return 0.0


def test_an_environment_that_breaks_says_so_and_exits_with_one(play):
    palaestra.register("test/Breaking-v0", f"{__name__}:Breaking")
    status, out = play("/call go", args=("test/Breaking-v0",))
    gymnasium.registry.pop("test/Breaking-v0")
    assert status == 1
    assert "[broken: " in out
    assert "the server is gone" in out


# Games.

SOLVER, CRITIC = "solver_0", "critic_0"
TASK = spec_of(SolverCritic()).tasks[0]
PRODUCT = TASK.prompt.removeprefix("What is ").removesuffix("?")
GAME = ("solver-critic", "--seed", "1", "--task", "0")


def test_all_seats_of_a_game_are_played_in_turn_to_their_rewards(play):
    status, out = play(
        "/tools", "/reward", f'/call calculator expression="{PRODUCT}"', TASK.answer, "/raw", "Agree.",
        "/show nobody_0", TASK.answer, "/reward", "/task", "6", args=GAME,
    )  # fmt: skip
    assert status == 0
    for said in (
        "calculator(expression: string)",
        f"{SOLVER}: 0, if {SOLVER} were cut off now",
        f"tool (calculator): {TASK.answer}",
        f"[{CRITIC}]",
        '{"role": "user"',
        "user: Agree.",
        f"there is no seat 'nobody_0'; the seats are {SOLVER}, {CRITIC}",
        f"[{SOLVER} answered: reward 1]",
        f"[{CRITIC} answered: reward 1]",
        f"{SOLVER}: 1",
        "first = 1, times 0 (from 0 to 1)",
        "def rounds(self",
        f"answer  {TASK.answer}",
        "the episode has ended: /undo",
    ):
        assert said in out, said


def test_turns_of_a_game_are_taken_back_left_to_the_script_and_of_one_seat_alone(play):
    _, out = play("6", "Agree.", "/undo", "/undo", *["/script"] * 5, f"/show {CRITIC}", args=GAME)
    assert "1 taken back" in out
    assert f"[{CRITIC} answered: reward 1]" in out
    assert out[out.rindex("Begin with Agree") :].count("assistant:") == 2
    _, out = play("Disagree.", args=("solver-critic", "--task", "0", "--env-options", f"seat={CRITIC}"))
    assert out.count(f"[{SOLVER}]") == 0
    assert f"[{CRITIC} answered: reward 0]" in out
    assert play(args=("solver-critic", "--env-options", "seat=jury"))[0] == 2


def test_all_seats_of_a_game_are_saved_replay_and_are_taken_up(play, tmp_path):
    file = tmp_path / "mine.jsonl"
    play("6", f"/save {file}", "/script", "/script", "6", f"/save {file}", args=GAME)
    records = list(read(file))
    assert [record.episode.start.seat for record in records] == [SOLVER, CRITIC] * 2
    assert [str(record.episode.ending) for record in records] == ["turn_limit", "length_limit", "answered", "answered"]
    assert main(["replay", str(file)]) == 0
    _, out = play("/undo", TASK.answer, args=("solver-critic", "--episode", f"{file}:4"))
    assert f"[{SOLVER} answered: reward 1]" in out
    write(tmp_path / "half.jsonl", records[:1])
    status, out = play(args=("solver-critic", "--episode", str(tmp_path / "half.jsonl")))
    assert status == 2
    assert "the file lacks other seats of its game" in out
