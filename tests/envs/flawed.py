"""Environments and games with one flaw each, or none: what `palaestra check` is tried on. Any process can import them.

Each is `Sound`, or `Pair`, but for what is given; the names say what is wrong.
"""

import asyncio
import contextlib
import io
import itertools
import threading
import time
from typing import ClassVar

import gymnasium
import numpy as np

from palaestra import Broken, Task, ToolError
from palaestra.envs import Game, RewardPart, TextSpace, ToolEnv, Toolkit, tool
from palaestra.envs.rewards.code_block import program_of
from palaestra.envs.rewards.mathematics import boxed
from palaestra.errors import MissingExtra
from palaestra.formats import ParsedCall, hermes

free = threading.Event()
"""Set to let go what blocks a loop: by itself it does for longer than a busy machine takes to find it."""
numbers = itertools.count()


class Sound(ToolEnv):
    """Keeps every promise."""

    max_turns = 3

    def task(self, rng):
        number = int(rng.integers(10**6))
        return Task(f"What is {number} + 1?", answer=self.expected(number), data=self.world(number))

    def expected(self, number):
        return str(number + 1)

    def world(self, number):
        return {}

    @tool
    def add(self, number: int) -> int:
        """Add one."""
        return number + 1

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


def but(name, base=Sound, **body):
    return type(name, (base,), body)


def takes(tool_name, does, **options):
    """A tool that takes a text and gives what `does` makes of it."""

    def method(self, text: str) -> str:
        """Ask."""
        return does(self, text)

    return tool(name=tool_name, **options)(method)


def nap(text):
    time.sleep(0.4 if len(text) > 1 else 0)
    return text


def run_here(code):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    return said.getvalue().strip()


def plays(answer, name="", given=None):
    """A demonstrator that calls a tool once, if one is named, and gives an answer."""

    def demonstrator(messages, rng, tool_rate=1.0):
        number = int(messages[0]["content"].split()[2])
        if name and messages[-1]["role"] != "tool":
            return hermes.render([ParsedCall(name, given(number))])
        return answer(number)

    return demonstrator


adds = plays(lambda number: str(number + 1))
adds_with_the_tool = plays(lambda number: str(number + 1), "add", lambda number: {"number": number})
asks = plays(lambda number: str(number + 1), "ask", lambda number: {"text": str(number)})
looks = plays(lambda number: str(number + 1), "look", lambda number: {})
backwards = plays(lambda number: str(number + 1)[::-1])
unable = plays(lambda number: "nothing")


# Rewards that pay a cheat, and some that do not.

Evaluating = but("Evaluating", ask=takes("ask", lambda self, text: str(eval(text))))
Closed = but("Closed", ask=takes("ask", lambda self, text: str(eval(text, {}))))
Formatting = but("Formatting", ask=takes("ask", lambda self, text: text.format(self=self)))
Running = but("Running", python=takes("python", lambda self, text: run_here(text)))
Containing = but(
    "Containing",
    look=takes("look", lambda self, text: f"one of {self.problem.answer}, 5 or 6"),
    reward=lambda self, attempt: float(attempt.task.answer in (attempt.answer or "")),
)
HandingOut = but("HandingOut", look=takes("look", lambda self, text: self.problem.answer))
Lenient = but("Lenient", reward=lambda self, attempt: float(attempt.answer in ("correct", attempt.task.answer)))
Repeating = but("Repeating", reward=lambda self, attempt: float("What" in (attempt.answer or "")))
Absent = but("Absent", reward=lambda self, attempt: float(not attempt.answer))
# A judge that takes for its own what it reads in the answer.
Flattered = but("Flattered", reward=lambda self, attempt: float("<score>1" in (attempt.answer or "")))
Exiting = but("Exiting", reward=lambda self, attempt: float(program_of(attempt.answer) is not None))
Listing = but(
    "Listing",
    reward=lambda self, attempt: float(attempt.task.answer in (attempt.answer or "").replace(",", " ").split()),
)
Boxing = but("Boxing", reward=lambda self, attempt: float(attempt.task.answer in (boxed(attempt.answer) or "").split()))
Mostly = but("Mostly", expected=lambda self, number: "it is rare" if number % 5 == 0 else "it is not")
Guessable = but("Guessable", chance=0.5, expected=lambda self, number: ("yes", "correct")[number % 2])
Undeclared = but("Undeclared", Guessable, chance=0.0)
Refusing = but("Refusing")


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


class Paying(Sound):
    parts = {"success": RewardPart(), "polite": RewardPart(weight=0.4)}  # noqa: RUF012
    ceiling = 0.3

    def reward(self, attempt):
        return {"success": float(attempt.answer == attempt.task.answer), "polite": float(attempt.answer is not None)}


Generous = but("Generous", Paying, ceiling=0.4)


class Blaming(Sound):
    """Its tool blames the machine for what the agent did."""

    @tool
    def python(self, code: str) -> str:
        """Run a program."""
        if "_exit" in code:
            raise Broken("the interpreter died")
        raise ToolError("no")


# Rewards that fail, or see more than the attempt.

NotANumber = but("NotANumber", reward=lambda self, attempt: float("nan"))
Undeclaring = but("Undeclaring", reward=lambda self, attempt: {"success": 0.0, "bonus": 1.0})
Raising = but("Raising", reward=lambda self, attempt: {}["key"])
Uncomfortable = but("Uncomfortable", reward=lambda self, attempt: float(len(attempt.answer.encode()) < 0))
Expecting = but("Expecting", reward=lambda self, attempt: float(attempt.answer.strip() == attempt.task.answer))
Moody = but("Moody", own=np.random.default_rng(0), reward=lambda self, attempt: float(self.own.random()))
Peeking = but("Peeking", reward=lambda self, attempt: float(attempt.answer == self.problem.answer))
Promising = but("Promising", parts={"success": RewardPart(), "style": RewardPart(weight=0.1)})
Unpaid = but("Unpaid", Promising, reward=lambda self, attempt: 0.0)


class Asserting(Sound):
    def reward(self, attempt):
        assert attempt.answer == attempt.task.answer
        return 1.0


class RaisingTwice(Sound):
    """For one reason without an answer, for another where it clears the screen."""

    def reward(self, attempt):
        if attempt.answer is None:
            raise ValueError("nothing")
        if "\x1b[2J" in attempt.answer:
            raise ValueError("a control character")
        return float(attempt.answer == attempt.task.answer)


class ByState(Sound):
    """What a tool was told is kept on `self`, and the reward reads it there."""

    told = None

    @tool
    def add(self, number: int) -> int:
        """Add one."""
        self.told = self.desk = str(number + 1)
        return number + 1

    def reward(self, attempt):
        return float(self.told == attempt.task.answer)


ByDesk = but("ByDesk", ByState, reward=lambda self, attempt: float(self.desk == attempt.task.answer))
ByFinal = but(
    "ByFinal",
    ByState,
    final=lambda self: {"told": self.told},
    reward=lambda self, attempt: float(attempt.final["told"] == attempt.task.answer),
)


# What an episode leaves behind.


class MadeInInit(Sound):
    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    @tool
    def count(self, word: str) -> int:
        """Count the calls."""
        self.seen.append(word)
        return len(self.seen)


def counted(self, text):
    self.seen.append(text)
    return str(len(self.seen))


def own_count(self, text):
    self.calls = getattr(self, "calls", 0) + 1
    return str(self.calls)


Caching = but("Caching", MadeInInit, count=takes("count", lambda self, text: counted(self, text) and text))
OnDemand = but("OnDemand", count=takes("count", own_count))
OnClass = but("OnClass", seen=[], count=takes("count", counted))
OnModule = but("OnModule", count=takes("count", lambda self, text: str(next(numbers))))
ByItsTool = but(
    "ByItsTool",
    task_set=lambda self, split: [Task(f"{split} {n}?", answer=str(n), data={"seen": []}) for n in range(4)],
    count=takes("count", lambda self, text: str(self.problem.data["seen"].append(1))),
)
ByItsReward = but("ByItsReward", reward=lambda self, attempt: float(attempt.task.data.setdefault("judged", 0)))


class Counter(Toolkit):
    calls = 0
    count = takes("count", own_count)


class Fresh(Counter):
    seconds = 0.0

    def start(self, task, rng):
        self.calls = 0
        time.sleep(self.seconds)


InToolkit = but("InToolkit", toolkits=(Counter,))
Forgetting = but("Forgetting", toolkits=(Fresh,))


# What keeps others waiting.


class Fetching(Sound):
    @tool
    async def fetch(self, page: str) -> str:
        """Fetch."""
        return await self.wait() or page

    async def wait(self):
        free.wait(30)


class Awaiting(Fetching):
    async def wait(self):
        await asyncio.sleep(0.3)


class BlockingJudge(Sound):
    async def reward(self, attempt):
        if not attempt.answer:
            free.wait(1.5)
        return float(attempt.answer == attempt.task.answer)


Napping = but("Napping", ask=takes("ask", lambda self, text: nap(text)))
NappingBeside = but("NappingBeside", ask=takes("ask", lambda self, text: nap(text * 2), blocking=True))
SlowReward = but("SlowReward", reward=lambda self, attempt: float(free.wait(0.1) and attempt.answer is None))
SlowToStart = but("SlowToStart", toolkits=(but("SlowFresh", Fresh, seconds=0.1),))
Beside = but("Beside", Fresh, seconds=0.1, wait=takes("wait", lambda self, text: text, blocking=True))
StartsBesideOthers = but("StartsBesideOthers", toolkits=(Beside,))


# Tasks.

Drawn = but("Drawn", expected=lambda self, number: str(next(numbers)))
Gridded = but("Gridded", world=lambda self, number: {"grid": np.zeros((2, 2))})
Holding = but("Holding", world=lambda self, number: {"thing": object()})
Answerless = but("Answerless", expected=lambda self, number: None, reward=lambda self, attempt: 0.0)
Whole = but("Whole", expected=lambda self, number: number + 1)
WholeOfNumpy = but("WholeOfNumpy", expected=lambda self, number: np.int64(number + 1))
Fraction = but("Fraction", expected=lambda self, number: number / 7, world=lambda self, number: {"number": number})
Capital = but(
    "Capital",
    expected=lambda self, number: f"City {number}",
    reward=lambda self, attempt: float((attempt.answer or "").lower() == attempt.task.answer),
)
Backwards = but("Backwards", reward=lambda self, attempt: float((attempt.answer or "")[::-1] == attempt.task.answer))
ByTests = but(
    "ByTests",
    expected=lambda self, number: "print(1)",
    world=lambda self, number: {"tests": [f"{number}"]},
    reward=lambda self, attempt: float(attempt.answer in attempt.task.data["tests"]),
)
ByCalls = but(
    "ByCalls",
    expected=lambda self, number: number,
    reward=lambda self, attempt: float(attempt.task.answer in [call.arguments.get("number") for call in attempt.calls]),
)
Same = but("Same", task=lambda self, rng: Task("What is 1 + 1??", answer="2"))  # In the split of training.
Leaky = but("Leaky", task_set=lambda self, split: [Task("What is 1 + 1?", answer="2")])
Few = but("Few", task_set=lambda self, split: [Task(f"{split}: {n}?", answer=str(n), data={"n": n}) for n in range(6)])


class SetInTask(Sound):
    def task(self, rng):
        self.number = int(rng.integers(10**6))
        return Task(f"What is {self.number} + 1?", answer=str(self.number + 1))


# Classes, constructors, tools.


class Undescribed(Sound):
    @tool
    def undescribed(self) -> str:
        return ""


class Anything(Sound):
    @tool
    def show(self, what: object) -> str:
        """Show it."""
        return str(what)


class Described(Sound):
    @tool
    def show(self, what: object) -> str:
        """Show it.

        Args:
            what: any value
        """
        return str(what)


class Forgetful(Sound):
    def __init__(self, **options):
        self.seen = 0


class Narrow(Sound):
    def __init__(self):
        super().__init__()


class NoTurns(Sound):
    def __init__(self, **options):
        super().__init__(**options)
        self.max_turns = 0


class Uninstalled(Sound):
    def __init__(self, **options):
        raise MissingExtra("docker", "docker", "its sandbox")


class Ungraded(Sound):
    def reward(self, attempt):
        raise MissingExtra("math-verify", "math", "its grader")


UndescribedRaising = but("UndescribedRaising", Undescribed, reward=Raising.reward)
Misspelt = but("Misspelt", max_turn=3)
Lengthened = but("Lengthened", system_prompt="End with Answer: NUMBER")
Reading = but("Reading", max_turn=3, world=lambda self, number: {"limit": self.max_turn})


class Alone(Toolkit):
    """Serves where no other one has started."""

    living: ClassVar[set] = set()

    def start(self, task, rng):
        self.living.add(self)

    def close(self):
        self.living.discard(self)

    @tool
    def look(self) -> str:
        """Look."""
        if self.living - {self}:
            raise Broken("too many look at once")
        return ""


class Unreachable(Toolkit):
    """Looks for its server behind another port each time."""

    def start(self, task, rng):
        raise ConnectionError(f"no server at port {next(numbers)}")

    look = takes("look", lambda self, text: text)


NotBesideOthers = but("NotBesideOthers", toolkits=(Alone,))
NotStarting = but("NotStarting", toolkits=(Unreachable,))


# Environments of others.


class Echo(gymnasium.Env):
    """Hears and speaks text; over after three turns."""

    observation_space = action_space = TextSpace()
    noise = left = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return f"say {self.np_random.integers(10**6)} {self.noise and next(numbers)}", {}

    def step(self, action):
        self.left -= 1
        return f"you said {len(action)}", 0.0, self.left == 0, False, {}


class Throwing(Echo):
    def step(self, action):
        if not action.isascii():
            raise ValueError("no ASCII")
        return super().step(action)


Noisy = but("Noisy", Echo, noise=1)
GoingOn = but("GoingOn", Echo, step=lambda self, action: ("and?", 0.0, False, False, {}))


# Games.

ASKER, TELLER = "asker_0", "teller_0"


class Pair(Game):
    """Say the word that the other was told."""

    seats = (ASKER, TELLER)
    seat_tools = {TELLER: ("look",)}  # noqa: RUF012
    looked = 0

    def task(self, rng):
        word = f"w{rng.integers(10**6)}"
        return Task(f"Tell word {rng.integers(10**6)}.", answer=word, data={"seen": []})

    @tool
    def look(self, place: str) -> str:
        """Look what the word is."""
        self.looked += 1
        return self.problem.answer if place == "box" else self.elsewhere()

    def elsewhere(self):
        return "nothing"

    def rounds(self, task, rng):
        told = (yield {TELLER: self.opening(task)})[TELLER]
        said = (yield {ASKER: f"Repeat {told or 'nothing'}"})[ASKER]
        return {TELLER: float(told == task.answer), ASKER: float(said == task.answer)} | self.gift()

    def opening(self, task):
        return task.prompt

    def gift(self):
        return {}


def demonstrate(messages, rng, tool_rate=1.0):
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    if messages[-1]["content"].startswith("Repeat"):
        return messages[-1]["content"].split()[-1]
    return hermes.render([ParsedCall("look", {"place": "box"})])


def breaks(self):
    raise Broken("the box is gone")


def endless(self, task, rng):
    while True:
        yield {TELLER: "And?"}


def strict(self, task, rng):
    told = (yield {TELLER: task.prompt})[TELLER]
    return dict.fromkeys(self.seats, float(int(told[1:]) < 0))


def declared(self, task, rng):
    said = yield {TELLER: task.prompt}
    return dict.fromkeys(self.seats, float(said.world["lines"] == [] and said[TELLER] == task.answer))


def judged(self, task, rng):
    yield {TELLER: task.prompt}


class Board(Toolkit):
    """What all seats see, wiped when a game begins."""

    lines: ClassVar = []

    def start(self, task, rng):
        self.lines = []

    def final(self):
        return {"lines": self.lines}

    @tool
    def write(self, line: str) -> str:
        """Write a line."""
        self.lines.append(line)
        return f"line {len(self.lines)}"


class Kept(Board):
    def __init__(self):
        self.lines = []

    def start(self, task, rng):
        pass


BOTH = {TELLER: ("look", "write")}
GenerousGame = but("GenerousGame", Pair, gift=lambda self: {ASKER: 1.0})
DeclaredGame = but("DeclaredGame", GenerousGame, chance={ASKER: 1.0})
ForgivingGame = but("ForgivingGame", Pair, forfeit=lambda self, culprit: {culprit: 1.0})
MoodyGame = but("MoodyGame", Pair, opening=lambda self, task: f"This is game {next(numbers)}.")
ChangingGame = but("ChangingGame", Pair, opening=lambda self, task: str(task.data["seen"].append(1)))
SlowGame = but("SlowGame", Pair, opening=lambda self, task: time.sleep(0.05) or task.prompt)
WatchingGame = but("WatchingGame", Pair, gift=lambda self: {TELLER: float(self.looked > 0)})
EndlessGame = but("EndlessGame", Pair, rounds=endless)
StrictGame = but("StrictGame", Pair, rounds=strict)
BlamingGame = but("BlamingGame", Pair, elsewhere=breaks)
FewGame = but("FewGame", Pair, task_set=lambda self, split: [Task("Tell the word.", answer="w1")])
SilentGame = but("SilentGame", Pair, show=Undescribed.undescribed, seat_tools={TELLER: ("look", "show")})
ClumsyGame = but("ClumsyGame", Pair, seat_tools={})
MisspeltGame = but("MisspeltGame", Pair, seat_tols={TELLER: ("look",)})
BoardGame = but("BoardGame", Pair, toolkits=(Board,), seat_tools=BOTH)
KeepingGame = but("KeepingGame", BoardGame, toolkits=(Kept,))
IdleKitGame = but("IdleKitGame", Pair, toolkits=(Board,))
DeclaringGame = but("DeclaringGame", BoardGame, rounds=declared)
JudgedGame = but(
    "JudgedGame", Pair, rounds=judged, reward=lambda self, attempt: float(attempt.answer == attempt.task.answer)
)
