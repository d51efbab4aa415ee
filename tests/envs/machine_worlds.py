"""What tests of the machine play, and a driver by hand: no thread, no clock. Late is what we say is late."""

import asyncio

from driven import call

from palaestra import Start, Task
from palaestra.envs import Done, Game, ToolEnv, Toolkit, tool
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.core.machine import Machine
from palaestra.envs.running.work import Pending, WorkMode

TROUBLE = {}
"""What a method of a toolkit, a reward or rounds are to raise or to return, by name."""
MADE = []
"""All toolkits, in the order in which they were made."""


def troubled(name, value=None):
    found = TROUBLE.get(name, value)
    if isinstance(found, BaseException):
        raise found
    return found


class Stock(Toolkit):
    """Sells, and only computes."""

    def __init__(self):
        self.log, self.sold = [], None
        MADE.append(self)

    def start(self, task, rng):
        self.log.append("start")
        troubled("start")
        self.sold = []

    def close(self):
        self.log.append("close")
        troubled("close")

    def final(self):
        return troubled("final", {"sold": self.sold})

    def snapshot(self):
        return self.sold

    def restore(self, state):
        self.log.append("restore")
        TROUBLE["room"] = TROUBLE.get("room", 9) - 1
        if TROUBLE["room"] < 0:
            raise OSError("full")
        self.sold = state

    @tool
    def sell(self, thing: str) -> str:
        """Sell a thing; the last one ends the sale."""
        self.sold.append(thing)
        return Done("Sold out.", answer=f"all {len(self.sold)}") if thing == "last" else troubled("sell", "sold")


class Warehouse(Stock):
    """Its tool waits, and so it may wait itself."""

    @tool(blocking=True)
    def sell(self, thing: str) -> str:
        return Stock.sell(self, thing)


def awaited(method):
    async def awaiting(self, *given):
        return method(self, *given)

    return awaiting


class Server(Stock):
    """All of it waits on the loop."""

    start, close, final = awaited(Stock.start), awaited(Stock.close), awaited(Stock.final)

    @tool
    async def sell(self, thing: str) -> str:
        return Stock.sell(self, thing)


class Shop(ToolEnv):
    """A reward that reads what was left behind."""

    max_turns = 3
    deadlines = {"start": 1.0, "reward": 2.0, "close": 3.0, "final": 4.0}  # noqa: RUF012

    def task_set(self, split):
        return [Task("Sell one.", answer="sold")]

    @tool
    def look(self) -> str:
        return "shelves"

    def reward(self, attempt):
        return troubled("reward", float(bool(attempt.final["sold"]) and attempt.answer is not None))


class JudgedShop(Shop):
    """A judge is asked."""

    async def reward(self, attempt):
        return super().reward(attempt)


def machine_of(author, *kits):
    return Machine(spec_of(type(author.__name__, (author,), {"toolkits": kits})()))


SELL = call("sell", thing="pen")


def done(pending, late=()):
    """What a runner does with works, those that are late left out."""
    for work in pending.works:
        work.late = work.label in late
        if not work.late:
            asyncio.run(work.perform_async()) if work.conditions.mode is WorkMode.ASYNC else work.perform()
    return pending


def led(machine, reply, late=(), seen=None):
    """The events of a reply; what was to be done for them is written into `seen`."""
    while isinstance(reply, Pending):
        if seen is not None:
            seen += [(reply.about.role, *(str(work.label) for work in reply.works))]
        reply = machine.resume(done(reply, late))
    return reply


def stands(machine, role):
    """Lead an episode of one seat to where something of this role is to be done, and return that."""
    reply = machine.open({None: Start(0, 1)})
    for step in (lambda: machine.act(None, SELL), lambda: machine.act(None, "sold")):
        while isinstance(reply, Pending):
            if reply.about.role == role:
                return reply
            reply = machine.resume(done(reply))
        reply = step()
    while reply.about.role != role:
        reply = machine.resume(done(reply))
    return reply


def aside(machine):
    """Run the closings that nobody waits for."""
    while machine.aside:
        assert machine.resume(done(machine.aside.pop())) == {}


class Till(Toolkit):
    """Without tools nobody knows whether it waits, so it may."""

    __init__, start, close, snapshot, restore = (
        vars(Stock)[name] for name in ("__init__", "start", "close", "snapshot", "restore")
    )


class Notes(Toolkit):
    """Each seat has its own."""

    per_seat = True

    def __init__(self):
        self.lines = []

    def final(self):
        return {"notes": list(self.lines)}

    @tool
    def note(self, line: str) -> str:
        self.lines.append(line)
        return f"{len(self.lines)} kept"


class Market(Game):
    """Goes on until two things are sold."""

    seats = ("ann_0", "bob_0")
    seat_tools = {"ann_0": ("sell", "note"), "bob_0": ("note",)}  # noqa: RUF012
    toolkits = (Warehouse, Notes)

    def task_set(self, split):
        return [Task("Sell two.")]

    def rounds(self, task, rng):
        said = yield dict.fromkeys(self.seats, task.prompt)
        while len(said.world["sold"]) < 2:
            troubled("rounds")
            try:
                said = yield dict.fromkeys(self.seats, f"Sold so far: {said.world['sold']}")
            except GeneratorExit:
                troubled("goodbye")
                raise

    def reward(self, attempt):
        return float(len(attempt.final["notes"][attempt.seat]) == (attempt.seat == "bob_0"))


class Barter(Market):
    """Its rounds say what everybody gets."""

    reward = ToolEnv.reward

    def rounds(self, task, rng):
        yield {"ann_0": "Begin."}
        yield {"bob_0": "Reply."}
        return {"ann_0": 1.0, "bob_0": 0.5}

    def forfeit(self, culprit):
        return troubled("forfeit", {other: 1.0 for other in self.seats if other != culprit})


def opened(author, **options):
    machine = Machine(spec_of(author(**options)))
    return machine, led(machine, machine.open({seat: Start(0, 1, seat=seat) for seat in machine.seats}))
