"""`check` plays cheats and finds authors' mistakes: each is found where it is made, and says what to change."""

import asyncio
import gc
import importlib
import os
import subprocess
import sys
import threading
import time

import gymnasium
import pytest

import palaestra
from palaestra import Broken, EnvironmentDefect, Task, ToolError
from palaestra.cli import main as command
from palaestra.envs import RewardPart, ToolEnv, Toolkit, tool
from palaestra.envs.checks import cheats, trials
from palaestra.envs.checks import check as checks
from palaestra.envs.checks.cheats import CHEATS, arguments, crashing_calls
from palaestra.envs.checks.check import CHECKS, check
from palaestra.envs.rewards.code import program_of
from palaestra.envs.rewards.mathematics import boxed
from palaestra.envs.running.blocking import blocking_line

free = threading.Event()
"""Set to let go what blocks a loop: by itself it does for longer than a busy machine takes to find it."""


class Sound(ToolEnv):
    """Keeps every promise."""

    max_turns = 3

    def task(self, rng):
        a = int(rng.integers(10**6))
        return Task(prompt=f"What is the square of {a}?", answer=str(a * a))

    @tool
    def square(self, number: int) -> int:
        """Square a number."""
        return number * number

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


class Evaluating(Sound):
    @tool
    def compute(self, expression: str) -> str:
        """Compute."""
        return str(eval(expression))


class Formatting(Sound):
    @tool
    def template(self, text: str) -> str:
        """Fill in."""
        return text.format(self=self)


class Running(Sound):
    @tool
    def python(self, code: str) -> str:
        """Run a program in our own process."""
        import contextlib
        import io

        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, {})
        return said.getvalue().strip()


class Containing(Sound):
    def reward(self, attempt):
        return float(attempt.task.answer in (attempt.answer or ""))

    @tool
    def look(self) -> str:
        """Look at the board."""
        return f"one of {self.problem.answer}, 5 or 6"


class Lenient(Sound):
    def reward(self, attempt):
        return float("correct" in (attempt.answer or "") or attempt.answer == attempt.task.answer)


class Listing(Sound):
    """Finds the answer wherever it stands, and nobody can list a million."""

    def reward(self, attempt):
        return float(attempt.task.answer in (attempt.answer or "").replace(",", " ").split())


class Boxing(Sound):
    """The same in a box."""

    def reward(self, attempt):
        return float(attempt.task.answer in (boxed(attempt.answer) or "").split())


class Mostly(Sound):
    """Four answers of five are the same."""

    def task(self, rng):
        return Task(prompt=f"Is {rng.integers(10**9)} rare?", answer=["it is not", "it is"][int(rng.integers(5)) // 4])


class Near(Sound):
    """A comparison that no number fails whose difference is none."""

    def reward(self, attempt):
        try:
            return float(not abs(float(attempt.answer) - float(attempt.task.answer)) > 1e-6)
        except (TypeError, ValueError):
            return 0.0


class Relative(Sound):
    """A comparison that infinity passes."""

    def reward(self, attempt):
        try:
            found = float(boxed(attempt.answer) or "none")
        except ValueError:
            return 0.0
        return float(abs(found - float(attempt.task.answer)) <= 0.01 * abs(found))


class Exiting(Sound):
    """A program is right that ends well."""

    def reward(self, attempt):
        program = program_of(attempt.answer)
        return float(program is not None and compile(program, "<x>", "exec") is not None)


class Absent(Sound):
    def reward(self, attempt):
        return float(not attempt.answer)


class Guessable(Sound):
    """Half of all answers are right."""

    chance = 0.5

    def task(self, rng):
        return Task(prompt=f"Is {rng.integers(10**9)} even?", answer=("yes", "correct")[int(rng.integers(2))])


class Undeclared(Guessable):
    chance = 0.0


class Paying(Sound):
    parts = {"success": RewardPart(), "polite": RewardPart(weight=0.4)}  # noqa: RUF012
    ceiling = 0.3

    def reward(self, attempt):
        return {"success": float(attempt.answer == attempt.task.answer), "polite": float(attempt.answer is not None)}


class Generous(Paying):
    ceiling = 0.4


class Fragile(Sound):
    """Its tool blames the machine for what the agent did."""

    @tool(blocking=True)
    def python(self, code: str) -> str:
        """Run a program."""
        done = subprocess.run([sys.executable, "-c", code.replace("\0", "")[:1000]], capture_output=True, timeout=20)
        if done.returncode < 0 or (done.returncode == 1 and not done.stderr):
            raise Broken(f"the interpreter died of {done.returncode}")
        return done.stdout.decode()


class Answerless(Sound):
    def task(self, rng):
        return Task(prompt=f"Say {rng.integers(10**6)}.")

    def reward(self, attempt):
        return 0.0


class NotANumber(Sound):
    def reward(self, attempt):
        return float("nan") if attempt.answer == attempt.task.answer else 0.0


class Undeclaring(Sound):
    def reward(self, attempt):
        return {"success": 0.0} if attempt.answer != attempt.task.answer else {"success": 1.0, "bonus": 1.0}


class Blocking(Sound):
    @tool
    async def fetch(self, page: str) -> str:
        """Fetch."""
        free.wait(30)
        return page


class Awaiting(Sound):
    @tool
    async def fetch(self, page: str) -> str:
        """Fetch."""
        await asyncio.sleep(0.3)
        return page


class BlockingJudge(Sound):
    async def reward(self, attempt):
        if not attempt.answer:
            free.wait(30)
        return float(attempt.answer == attempt.task.answer)


class Kit(Toolkit):
    @tool
    async def peek(self, depth: int) -> str:
        """Look."""
        end = time.monotonic() + 30
        while time.monotonic() < end and not free.is_set():
            pass
        return "done"


class BlockingKit(Sound):
    toolkits = (Kit,)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    module = type(sys)(__name__)
    module.__dict__.update(globals())
    monkeypatch.setitem(sys.modules, __name__, module)
    monkeypatch.setattr(trials, "CHEAT_SECONDS", 60.0)  # As many episodes on a busy machine as on any other.
    monkeypatch.setattr(cheats, "SAMPLE_SECONDS", 60.0)
    free.clear()
    gc.collect()
    yield
    free.set()
    for thread in threading.enumerate():
        if thread.name == "palaestra-watched":
            thread.join(60)


def found(cls, *names):
    """What the failed checks of a class said, by check; of these checks, or of all."""
    env_id = f"test/{cls.__name__}-v0"
    palaestra.register(env_id, f"{__name__}:{cls.__name__}")
    monkey = pytest.MonkeyPatch()
    if names:
        monkey.setattr(checks, "CHECKS", {name: CHECKS[name] for name in names})
    try:
        return {finding.name: finding.message for finding in check(env_id) if not finding.passed}
    finally:
        monkey.undo()
        gymnasium.registry.pop(env_id)


def test_a_tool_that_awaits_does_not_block():
    assert found(Awaiting, "loop is never blocked") == {}


@pytest.mark.parametrize("cls", [Sound, Guessable, Generous])
def test_what_keeps_its_promises_has_no_findings(cls):
    assert found(cls) == {}


@pytest.mark.parametrize(
    ("cls", "cheat"),
    [(Evaluating, "by a name in the tool's scope"), (Formatting, "by a field of a template"),
     (Running, "by a program over all objects"), (Containing, "every number or name seen"),
     (Lenient, "claim success"), (Absent, "do nothing"), (Undeclared, "claim success"),
     (Near, "guess nan"), (Relative, "guess inf, dressed"), (Exiting, "a program that does nothing")],
)  # fmt: skip
def test_a_cheat_that_wins_is_named(cls, cheat):
    said = found(cls, "cheats fail")["cheats fail"]
    assert cheat in said
    assert "declare the chance of guessing" in said


@pytest.mark.parametrize("cls", [Listing, Boxing])
def test_a_reward_for_the_right_answer_among_others_is_found(cls):
    assert "hides the right one among others" in found(cls, "hedged answers fail")["hedged answers fail"]


def test_an_answer_that_is_right_for_most_tasks_is_found():
    assert "always answer 'it is not'" in found(Mostly, "constant answers fail")["constant answers fail"]


def test_an_expression_reaches_what_a_closed_scope_hides():
    class Closed(Sound):
        @tool
        def compute(self, expression: str) -> str:
            """Compute."""
            return str(eval(expression, {}))

    globals()["Closed"] = Closed
    sys.modules[__name__].Closed = Closed
    assert "by an expression over all objects" in found(Closed, "cheats fail")["cheats fail"]


def test_pay_without_success_stays_below_the_declared_ceiling():
    said = found(Paying, "cheats fail")["cheats fail"]
    assert "was paid 0.4 without success" in said
    assert "Paying.ceiling is 0.3" in said


def test_a_crash_on_purpose_is_no_escape():
    said = found(Fragile, "crashing is no escape")
    assert "ended an episode broken" in said["crashing is no escape"]
    assert "the interpreter died of" in said["crashing is no escape"]


@pytest.mark.parametrize(
    ("cls", "name", "said"),
    [(Answerless, "tasks can be judged", "neither answer nor data"),
     (NotANumber, "tasks can be judged", "success = nan"),
     (Undeclaring, "tasks can be judged", "'bonus', which is not declared"),
     (Blocking, "loop is never blocked", "'fetch' blocked the event loop"),
     (BlockingKit, "loop is never blocked", "'peek' blocked the event loop"),
     (BlockingJudge, "loop is never blocked", "the async reward blocked the event loop")],
)  # fmt: skip
def test_an_authors_mistake_is_found_and_said(cls, name, said):
    assert said in found(cls, name)[name]


def test_the_line_that_blocks_is_named():
    line = Blocking.fetch.__code__.co_firstlineno + 3
    assert f"{__file__}, line {line}" in found(Blocking, "loop is never blocked")["loop is never blocked"]


def test_a_loop_that_is_blocked_elsewhere_is_not_laid_on_the_tool():
    async def elsewhere():
        free.wait(30)

    assert blocking_line(elsewhere(), "another.py", 0.5) == ""
    assert blocking_line(elsewhere(), __file__, 30.0) != ""


def test_what_hangs_without_blocking_is_watched_for_a_while_only():
    async def forever():
        await asyncio.Event().wait()

    assert blocking_line(forever(), __file__, 0.2) == ""


@pytest.mark.parametrize(
    ("lines", "said"),
    [("    @tool\n    def look(self, where) -> str:\n        'Look.'\n        return where\n", "'where' has no type"),
     ("    @tool\n    def look(self) -> str:\n        'A.'\n    @tool(name='look')\n"
      "    def see(self) -> str:\n        'B.'\n",
      "two tools named 'look'"),
     ("    parts = {'success': 1.0}\n", "expected a RewardPart"),
     ("    parts = {'quality': RewardPart()}\n", "no 'success'"),
     ("    parts = {'success': RewardPart(weight=float('nan'))}\n", "finite numbers"),
     ("    reward = Progressive(Stage('success', len, 0.0))\n", "positive")],
)  # fmt: skip
def test_a_class_that_is_wrong_is_an_error_in_check_too(tmp_path, monkeypatch, capsys, lines, said):
    (tmp_path / "wrong_world.py").write_text(
        "import palaestra\nfrom palaestra.envs import RewardPart, Task, ToolEnv, tool\n"
        "from palaestra.envs.rewards.progressive import Progressive, Stage\n"
        "palaestra.register('test/Wrong-v0', 'wrong_world:Wrong')\n"
        "class Wrong(ToolEnv):\n    def task(self, rng):\n        return Task('?', answer='x')\n" + lines
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(EnvironmentDefect, match=said):
            importlib.import_module("wrong_world")
        sys.modules.pop("wrong_world", None)
        assert command(["check", "wrong_world:test/Wrong-v0"]) == 2
        assert " ".join(said.split()) in " ".join(capsys.readouterr().err.split())
    finally:
        sys.modules.pop("wrong_world", None)
        gymnasium.registry.pop("test/Wrong-v0", None)


# What cheats say to tools.


def test_arguments_fit_every_kind_of_parameter():
    from typing import Literal

    from pydantic import BaseModel

    class Place(BaseModel):
        name: str
        at: tuple[float, float] | None = None

    class Many(Sound):
        @tool
        def go(
            self,
            way: Literal["up", "down"],
            place: Place,
            names: list[str],
            count: int | str,
            sure: bool,
            more: str = "",
        ) -> str:
            """Go."""
            return f"{way} {place.name} {names} {count} {sure}"

    Many.go.__globals__.update(Literal=Literal)
    (found_tool,) = (one for one in Many._tools.values() if one.name == "go")
    values = found_tool.validate(arguments(found_tool.schema, "hello", 7))
    assert (values["way"], values["place"].name, values["names"], values["sure"]) == ("up", "hello", ["hello"], True)


def test_crashing_calls_are_accepted_by_the_tool_and_spare_this_process():
    class Python(Sound):
        @tool
        def python(self, code: str) -> str:
            """Run."""
            return code

    schema = Python._tools["python"].schema
    texts = [given["code"] for given in crashing_calls(schema)]
    assert len(texts) == len(set(texts)) > 10
    for text in texts:
        if "os._exit" in text or "os.kill" in text:
            exec(text, {})
            assert str(os.getpid()) in text
    numbers = [given["number"] for given in crashing_calls(Sound._tools["square"].schema)]
    assert 0 in numbers
    assert -(2**63) in numbers


@pytest.mark.parametrize("name", CHEATS)
def test_every_cheat_ends_its_episode(name):
    env = Sound()
    _, info = env.reset(seed=1)
    messages = list(info["messages"])
    for _ in range(env.max_turns):
        said = CHEATS[name](env, messages)
        if said is None:
            return
        event = env.take(said)
        messages += [{"role": "assistant", "content": said}, *event.messages]
        if event.ending is not None:
            return
    pytest.fail("it plays for ever")


def test_refusing_a_call_is_not_breaking():
    class Refusing(Sound):
        @tool
        def ask(self, what: str) -> str:
            """Ask."""
            raise ToolError("no")

    globals()["Refusing"] = Refusing
    sys.modules[__name__].Refusing = Refusing
    assert found(Refusing) == {}


def test_all_registered_environments_are_checked_with_all(monkeypatch, capsys):
    import palaestra.cli.check as page

    monkeypatch.setattr("palaestra.envs.checks.check.check", lambda env_id: [])
    monkeypatch.setattr(page, "registered", lambda: ["palaestra/Calculator-v0", "palaestra/TwoHop-v0"])
    for typed in (["--all"], [], ["--all", "two-hop"]):
        assert command(["check", *typed]) == 0
        out = capsys.readouterr().out
        assert out.count("palaestra/Calculator-v0") == out.count("palaestra/TwoHop-v0") == 1
    assert command(["check", "two-hop"]) == 0
    assert "Calculator" not in capsys.readouterr().out
