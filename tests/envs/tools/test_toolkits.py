"""Toolkits with a sandbox: sessions start late and end, budgets hold, branches fork, only the sandbox is Broken."""

import asyncio
import itertools

import pytest
from desks import Desk

from palaestra import Broken, EnvironmentDefect, SandboxUnavailable, ToolError, UsageError
from palaestra.envs import Task, TextEnv
from palaestra.envs.sandboxes import Limits, Result
from palaestra.envs.tools.python import CodeInterpreter, Python, without_fence
from palaestra.envs.tools.shell import Shell
from palaestra.episode import Status

CRASHED = Result(exit_code=None, signal=9, state_lost=True)


class Fresh(Python):
    stateful = False


@pytest.fixture
def desk(fake):
    """Opens an environment with these toolkits, in an episode."""
    made = []

    def open_desk(*kits, **options):
        made.append(TextEnv(Desk(*kits, **options)))
        made[-1].reset(seed=0, options={"task": 0})
        return made[-1]

    yield open_desk
    for env in made:
        env.close()


def say(env, *programs, tool="python", argument="code"):
    """What a turn of these calls is answered with."""
    *_, info = env.step("".join(env.call(tool, **{argument: program}) for program in programs))
    assert info["ending"] != "broken", info["fault"]
    return [message["content"] for message in info["messages"]]


def test_an_episode_without_a_call_starts_no_session_and_one_with_calls_starts_one(desk, fake):
    env = desk()
    env.step("no")
    assert fake.sessions == []
    env.reset(seed=0, options={"task": 1})
    assert say(env, "x = 6") == ["(no output)"]
    assert say(env, "print(x)\nx * 7", "x * 7", "x += 1", "x") == ["6", "42", "(no output)", "7"]
    env.step("yes")
    assert [session.closed for session in fake.sessions] == [1]
    env.reset(seed=0, options={"task": 1})
    assert "NameError" in say(env, "x")[0]
    assert len(fake.sessions) == 2


def test_without_state_every_call_is_alone(desk, fake):
    class Silent(Fresh):
        show_last = False

    for kit, shown in ((Fresh, "7"), (Silent, "(no output)")):
        env = desk(kit)
        assert say(env, "x = 1\nprint(x)", "7") == ["1", shown]
        assert "NameError" in say(env, "x")[0]
    assert len(fake.sessions) == 6
    assert all(session.closed for session in fake.sessions[:3])


def test_the_agent_is_told_what_stays_and_what_is_shown():
    for stateful, show_last in itertools.product((True, False), repeat=2):
        kit = type("Kit", (Python,), {"stateful": stateful, "show_last": show_last})
        words = kit.tools["python"].schema["function"]["description"]
        assert ("stay" in words, "last line" in words) == (stateful, show_last)


def test_the_first_fence_is_what_is_run():
    for code, run in (
        ("```python\nx = 1\n```", "x = 1\n"),
        ("I try:\n```\na\n```\nand\n```py\nb\n```", "a\n"),
        ("```python\nno end", "no end"),
        ("  ```python\n  x\n  ```", "  x\n"),
        ("x = '```'", "x = '```'"),
        ('t = """\n```\nnot code\n```\n"""', 't = """\n```\nnot code\n```\n"""'),
        ("", ""),
    ):
        assert without_fence(code) == run


def test_the_working_folder_is_laid_out_for_the_task(desk, fake):
    class Sheets(Python):
        def files(self, task):
            return {"sheet.csv": task.data["sheet"].encode()}

    class FreshSheets(Sheets):
        stateful = False

    for kit in (Sheets, FreshSheets):
        say(desk(kit), "1")
        assert fake.sessions[-1].files == {"sheet.csv": b"1,2"}


class Odd(Python):
    """Lays out what it is told to."""

    laid_out = None

    def files(self, task):
        return self.laid_out


WRONG_FILES = [
    (None, "Odd.files gave a NoneType; expected a dict"), ({"a.txt": 3}, r"file a.txt is 3 \(int\); expected bytes"),
    ({"a.txt": "text"}, r"file a.txt is 'text' \(str\); expected bytes; encode the text"),
    ({3: b""}, r"path is 3 \(int\); expected a str"),
    *(({path: b""}, "is no path of a file") for path in ("", "/etc/a", "b/", "b/../../a", "a\0")),
    ({"é" * 200: b""}, "is too long"), ({"a/" * 40 + "b": b""}, "is too long"),
    ({"a": b"", "a/b": b""}, "'a/b' lies in another file"), ({"a": b"12345"}, "has 5 bytes; limit file_bytes is 4"),
    ({"a": b"1234", "b": b"1234"}, "2 files of 8 bytes together; .* limit scratch_bytes 6"),
]  # fmt: skip


def test_a_mistake_in_the_files_is_the_authors_and_no_agent_hears_of_it(desk, monkeypatch):
    monkeypatch.setattr(Odd, "limits", Limits(file_bytes=4, scratch_bytes=6))
    for files, said in WRONG_FILES:
        monkeypatch.setattr(Odd, "laid_out", files)
        with pytest.raises(EnvironmentDefect, match=said):
            pytest.fail(f"{files!r:.80} was taken by {desk(Odd)}")


def test_budgets_have_names_and_are_answers(desk, fake):
    class Thrifty(Python):
        limits = Limits(seconds=2.0)
        max_calls, max_seconds = 3, 3.0

    env = desk(Thrifty)
    fake.script += [Result(stdout="a", duration_s=1.5), Result(exit_code=1, stderr="E", duration_s=1.0)]
    assert say(env, "one") == ["a"]
    assert say(env, "two") == ["Error: E"]
    assert [call.status for call in env.attempt.calls] == [Status.OK, Status.TOOL_ERROR]
    assert say(env, "3", "4")[1].startswith("Error: no call is left: max_calls is 3")
    assert [seconds for _, seconds, _ in fake.asked] == [2.0, 1.5, 0.5]
    env.reset(seed=0, options={"task": 0})
    fake.script += [Result(duration_s=3.1)]
    assert say(env, "1", "2")[1].startswith("Error: no time is left: max_seconds is 3")
    env.reset(seed=0, options={"task": 0})
    assert say(env, "1 + 1") == ["2"]


def test_code_that_cannot_be_sent_is_an_observation(fake):
    for code, said in (("x = '\ud800'", "not valid Unicode"), ("#" * 2**21, "at most 1048576 are run")):
        with pytest.raises(ToolError, match=said):
            asyncio.run(Python("fake").python(code))
    assert fake.asked == []


def test_a_program_that_dies_is_an_observation_and_a_sandbox_that_fails_is_broken(desk, fake):
    env = desk()
    fake.script += [CRASHED]
    assert "variables are gone, files stay" in say(env, "import os; os.abort()")[0]
    assert say(env, "2") == ["2"]
    for fault in (Broken("the supervisor is gone"), UsageError("this backend has no commands")):
        fake.script += [fault]
        info = env.step(env.call("python", code="1"))[-1]
        assert info["ending"] == "broken"
        assert str(fault) in info["fault"]
        env.reset(seed=0, options={"task": 0})
    assert fake.sessions[0].closed == 1


def test_options_reach_the_backend_and_wider_limits_open_one_of_their_own(desk, fake):
    class Narrow(Python):
        limits = Limits(seconds=1.0)

    for kit in (Python, Narrow, CodeInterpreter):
        env = desk(kit, sandbox={"backend": "fake", "pool": 3})
    assert [(one["pool"], one["limits"]) for one in fake.opened] == [(3, None), (3, CodeInterpreter.limits)]
    assert say(env, "```python\n6 * 7\n```", tool="code_interpreter") == ["42"]
    assert [schema["function"]["name"] for schema in env.schemas] == ["code_interpreter"], "it has a name of its own"


def test_a_shell_needs_walls_and_takes_commands(desk, fake):
    with pytest.raises(SandboxUnavailable, match="not enforced here: files"):
        TextEnv(Desk(Shell, sandbox={"backend": "fake", "walls": False})).reset(seed=0)
    env = desk(Shell)
    assert say(env, "ls -a", tool="shell", argument="command") == ["/bin/sh -c ls -a"]
    for command in ("a\0b", "x" * 200_000, "\ud800"):
        assert say(env, command, tool="shell", argument="command")[0].startswith("Error: ")
    assert len(fake.asked) == 1


def test_branches_go_on_in_forks_that_share_nothing(desk, fake):
    env = desk()
    say(env, "x = [1]")
    snapshot = env.snapshot()
    say(env, "x.append(2)")
    children = env.fork(2, own_noise=False)
    assert [say(child, "x.append(9)\nx.append(len(x))", "x")[1] for child in children] == ["[1, 2, 9, 3]"] * 2
    assert say(env, "x") == ["[1, 2]"]
    env.restore(snapshot)
    assert say(env, "x") == ["[1]"]
    for child in children:
        child.close()
    env.close()
    del snapshot
    assert [session.closed > 0 for session in fake.sessions] == [True] * len(fake.sessions)


def test_budgets_files_and_backend_come_along_with_a_branch(desk, fake):
    class Thrifty(Python):
        max_calls = 2

        def files(self, task):
            return {"sheet.csv": b"1"}

    env = desk(Thrifty, sandbox={"backend": "fake", "pool": 3})
    early = env.snapshot()
    say(env, "1", "2")
    (child,) = env.fork(1)
    assert "max_calls" in say(child, "3")[0]
    assert [one.get("pool") for one in fake.opened] == [3]
    child.close()
    env.restore(early)
    assert say(env, "3") == ["3"]
    assert fake.sessions[-1].files == {"sheet.csv": b"1"}


def test_without_forks_a_live_session_is_refused_by_name(desk):
    env = desk(sandbox={"backend": "fake", "forks": False})
    env.snapshot()
    say(env, "1")
    with pytest.raises(UsageError, match=r"Python has no snapshots here: the sandbox 'fake'"):
        env.snapshot()
    stateless = desk(Fresh, sandbox={"backend": "fake", "forks": False})
    say(stateless, "1")
    stateless.restore(stateless.snapshot())


def test_a_session_that_starts_after_the_end_is_closed(fake):
    async def play():
        fake.start_gate = asyncio.Event()
        toolkit = Python("fake")
        toolkit.start(Task(prompt="x", answer="y"), None)
        call = asyncio.create_task(toolkit.python("1"))
        await asyncio.sleep(0)
        toolkit.close()
        fake.start_gate.set()
        with pytest.raises(Broken, match="closed while"):
            await call
        return toolkit

    asyncio.run(play())
    assert [session.closed for session in fake.sessions] == [1]
