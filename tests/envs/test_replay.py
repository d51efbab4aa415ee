"""Recorded episodes, of one seat and of games, are run again and scored anew; what is not identical is found."""

import sys
from dataclasses import replace

import game_worlds
import pytest
import worlds as of_worlds

import palaestra
from palaestra import Call, Ending, Episode, Start, Status, Task, UsageError
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs import Done, Game, RewardPart, ToolEnv, Toolkit, tool
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.opening import open_machine, spec_of
from palaestra.envs.core.machine import Machine
from palaestra.envs.records.gathering import GameCollector, ReplayMachines
from palaestra.envs.records.replay import replay
from palaestra.envs.records.rescore import find_scorer, rescore, rescore_game
from palaestra.formats import ParsedCall, hermes
from palaestra.record import Record, from_line, to_line

DUEL, MARKET, SHOP = "test/replayed_duel-v0", "test/Market-v0", "test/Shop-v0"
LEFT, RIGHT = "left_0", "right_0"
ran: list[str] = []
"""What really ran: tools, and starts, ends and closings of toolkits."""


def calls(*named):
    return hermes.render([ParsedCall(name, given) for name, given in named])


class Till(Toolkit):
    """What was sold; it has no snapshots."""

    def start(self, task, rng):
        ran.append("start")
        self.sold = []

    def close(self):
        ran.append("close")

    @tool
    def sell(self, what: str, price: int = 3) -> str:
        ran.append(what)
        self.sold.append((what, price))
        return Done("sold out", answer="all") if what == "last" else f"{what} for {price}"

    @tool(terminal=True)
    def stop(self) -> str:
        return "closed"

    def final(self):
        ran.append("final")
        return {"sold": self.sold}


class Shop(ToolEnv):
    """Judged, by somebody who takes time, by what it leaves behind."""

    toolkits = (Till,)

    def task(self, rng):
        return Task(f"Sell {rng.integers(1000)}.", answer=2)

    async def reward(self, attempt):
        return float(len(attempt.final["sold"]) == attempt.task.answer)


class Shout(ToolEnv):
    """Judged by the end of what its tool returns, of which the agent is shown little."""

    max_result_chars, max_kept_chars = 100, 1000

    def task(self, rng):
        return Task(f"Shout {rng.integers(1000)}.", answer="z")

    @tool
    def shout(self, size: int) -> str:
        return "\u00e4" * size + "needle" + "z" * 200

    @tool
    def end(self, size: int) -> str:
        return Done("a" * size)

    def reward(self, attempt):
        return float(any("needle" in (call.result or call.text) for call in attempt.calls))


class Market(Game):
    """Seats that share a till; its rounds see what was sold, and `reward` judges each seat alone."""

    seats = ("ann_0", "bob_0")
    seat_tools = dict.fromkeys(seats, ("sell",))
    toolkits = (Till,)

    def task(self, rng):
        return Task(f"Sell {rng.integers(1000)}.")

    def rounds(self, task, rng):
        said = yield dict.fromkeys(self.seats, task.prompt)
        while len(said.world["sold"]) < 3:
            said = yield {self.seats[int(rng.integers(2))]: f"sold {len(said.world['sold'])}"}

    def reward(self, attempt):
        return float(any(call.name == "sell" for call in attempt.calls) and len(attempt.worlds) == 2)


def sells(messages, rng, tool_rate=1.0):
    """A demonstrator for both."""
    if messages[-1]["role"] == "tool":
        return "done"
    return calls(("sell", {"what": "abc"[int(rng.integers(3))]}))


@pytest.fixture(autouse=True)
def _registered(worlds, monkeypatch):
    ran.clear()
    game_worlds.gate.clear()  # Other tests open it.
    monkeypatch.setitem(sys.modules, "of_replays", sys.modules[__name__])
    palaestra.register_game(DUEL, "game_worlds:Duel")
    palaestra.register_game(MARKET, "of_replays:Market", demonstrator="of_replays:sells")
    palaestra.register(SHOP, "of_replays:Shop", demonstrator="of_replays:sells")
    palaestra.register("test/Shout-v0", "of_replays:Shout")


def recorded(env_id, turns, *, ending=None, culprit=None, last="", prefix=(), task=3, **options):
    """What was played in these turns, of each seat, as it comes back from a file."""
    machine = open_machine(env_id, options)
    starts = {seat: Start(task, 7, seat=seat, prefix=prefix) for seat in machine.seats}
    events = settle(machine, machine.open(starts))
    for turn in turns:
        seat, text = turn if isinstance(turn, tuple) else (None, turn)
        events = settle(machine, machine.act(seat, text))
    if ending is not None:
        events = settle(machine, machine.stop(ending, culprit, last, "it was closed" * (ending is Ending.BROKEN)))
    release(machine)
    return [
        from_line(
            to_line(Record(env_id, Episode(e.start, e.attempt, (), e.ending, e.reward, e.parts, e.fault), options))
        )
        for e in events.values()
    ]


def difference(records):
    """Of a replay in which nothing of the world may run."""
    ran.clear()
    found = ReplayMachines().replay(records)
    assert not ran, "something of the world ran"
    return found


KITCHEN = [calls(("add", {"a": "1"}), ("note", {"line": "x" * 500})), "<tool_call>{nonsense}</tool_call>",
           calls(("refuse", {}), ("wait", {"seconds": 0, "name": "b"}))]  # fmt: skip
PREFIX = ({"role": "assistant", "content": "no"}, {"role": "user", "content": "try again"})
DUELS = [(LEFT, calls(("echo", {"text": "hi"}), ("nap", {}), ("nobody", {}))), (RIGHT, "two"), (LEFT, "one"),
         (RIGHT, "<tool_call>{"), (LEFT, "three"), (RIGHT, "four")]  # fmt: skip
SOLD = [("ann_0", calls(("sell", {"what": "a"}))), ("bob_0", calls(("sell", {"what": "b", "price": "5"}))),
        ("ann_0", "done"), ("bob_0", "done")]  # fmt: skip
MORE = [[("bob_0", calls(("sell", {"what": "last"})))], [("ann_0", calls(("sell", {"what": "last"})))]]
"""Whom the rounds ask then, their own generator decides."""


def sold():
    for more in MORE:
        try:
            return recorded(MARKET, SOLD + more)
        except UsageError:
            continue
    raise AssertionError("nobody is asked")


@pytest.fixture
def kitchen(worlds):
    return recorded("test/Kitchen-v0", [*KITCHEN, "yes"])


@pytest.mark.parametrize(
    ("env_id", "turns", "how"),
    [
        ("test/Kitchen-v0", [*KITCHEN, "yes"], {}),
        ("test/Kitchen-v0", [KITCHEN[0], "yes"], {"prefix": PREFIX}),
        ("test/Kitchen-v0", [KITCHEN[0]] * 5, {}),
        ("test/Kitchen-v0", [], {"ending": Ending.LENGTH_LIMIT}),
        ("test/Kitchen-v0", KITCHEN, {"ending": Ending.LENGTH_LIMIT, "last": "and then"}),
        ("test/Kitchen-v0", KITCHEN[:1], {"ending": Ending.BROKEN}),
        ("test/Kitchen-v0", [], {"ending": Ending.BROKEN, "last": "half a"}),
        ("test/Kitchen-v0", [calls(("add", {"a": 1})), calls(("hang", {}))], {}),
        ("test/Kitchen-v0", [calls(("unplugged", {}))], {}),
        (SHOP, [calls(("sell", {"what": "a"}), ("sell", {"what": "b"})), "done"], {}),
        (SHOP, [calls(("sell", {"what": "a"}))], {"ending": Ending.LENGTH_LIMIT, "last": "I"}),
        (DUEL, DUELS, {}),
        (DUEL, DUELS[:4], {"ending": Ending.LENGTH_LIMIT, "culprit": LEFT, "last": "I was ab"}),
        (DUEL, DUELS[:4], {"ending": Ending.BROKEN}),
        (DUEL, [(RIGHT, "two"), (LEFT, calls(("hang", {})))], {}),
        (MARKET, SOLD[:3], {"ending": Ending.LENGTH_LIMIT, "culprit": "bob_0"}),
        (MARKET, SOLD[:3], {"ending": Ending.BROKEN}),
    ],
)
def test_whatever_ended_it_an_episode_comes_out_identical_and_nothing_runs(worlds, monkeypatch, env_id, turns, how):
    records = recorded(env_id, turns, **how)
    broken = how.get("ending") is Ending.BROKEN or "hang" in turns[-1][1] if turns else False
    for kind, name in ((of_worlds.Kitchen, "add"), (of_worlds.Kitchen, "wait"), (game_worlds.Duel, "echo")):
        monkeypatch.setattr(kind, name, lambda self, **given: ran.append("tool"))
    worlds.opened.clear()
    assert difference(records) is None
    assert worlds.opened == [], "a toolkit was started or closed"
    assert not broken or {record.episode.reward for record in records} == {None}


def test_a_game_whose_rounds_see_the_world_comes_out_identical_without_it():
    records = sold()
    assert [record.episode.attempt.seat for record in records] == ["ann_0", "bob_0"]
    assert [len(world["sold"]) for world in records[0].episode.attempt.worlds] == [2, 3]
    assert {record.episode.reward for record in records} == {1.0}
    assert difference(records) is None


GAMES = ["palaestra/debate_v0", "palaestra/negotiation_v0", "palaestra/solver_critic_v0", MARKET]


@pytest.mark.parametrize("options", [{}, {"split": "eval", "format": "llama3"}, {"seat": "first"}])
@pytest.mark.parametrize("env_id", ["palaestra/TwoHop-v0", *GAMES])
def test_what_demonstrators_play_comes_out_identical(env_id, options):
    """All seats of a game, or one against the others: then those play by rule again, with their tools."""
    if "seat" in options:
        options = {"seat": palaestra.registry.author_class(env_id).seats[0]} if env_id in GAMES else {}
    arena = palaestra.arena(env_id, 6, **options)
    seats = getattr(arena, "seats", None) or (None,)
    starts = [Start(task, 9 + task, seat=seat) for task in range(4) for seat in seats]
    agent = Agent(ScriptedPolicy(palaestra.demonstrator(env_id), format=options.get("format", "hermes")))
    episodes = list(play(agent, arena, starts))
    arena.close()
    gathering, stage = GameCollector(), ReplayMachines()
    records = [from_line(to_line(Record(env_id, one, options))) for one in episodes[::-1]]
    games = [whole for one in records if (whole := gathering.add("", "", one)) is not None]
    assert len(games) == 4
    assert [stage.replay([one for _, one in game]) for game in games] == [None] * 4


def altered(records, seat=None, attempt=None, **changes):
    """The records, with a lie in one of them."""
    found = []
    for record in records:
        if record.episode.attempt.seat == seat:
            of_attempt = replace(record.episode.attempt, **(attempt or {}))
            record = replace(record, episode=replace(record.episode, attempt=of_attempt, **changes))
        found.append(record)
    return found


def with_call(records, place, **changes):
    made = list(records[0].episode.attempt.calls)
    made[place] = replace(made[place], **changes)
    return altered(records, attempt={"calls": tuple(made)})


def test_a_record_that_says_otherwise_is_found(kitchen):
    attempt = kitchen[0].episode.attempt
    messages, own = attempt.messages, attempt.calls
    lies = {
        "reward: recorded 0.25, replayed 0.75": altered(kitchen, reward=0.25),
        "parts:": altered(kitchen, parts={"success": 0.5, "brevity": 0.0}),
        "ending: recorded turn_limit, replayed answered": altered(kitchen, ending=Ending.TURN_LIMIT),
        "answer: recorded no, replayed yes": altered(kitchen, attempt={"answer": "no"}),
        "turns: recorded 9": altered(kitchen, attempt={"turns": 9}),
        "final:": altered(kitchen, attempt={"final": {"more": 1}}),
        "message 1:": altered(kitchen, attempt={"task": Task("What?", "yes")}),
        "message 4:": altered(
            kitchen, attempt={"messages": (*messages[:4], {**messages[4], "content": "9"}, *messages[5:])}
        ),
        "message: recorded 12 of them": altered(kitchen, attempt={"messages": (*messages, messages[0])}),
        "the episode goes on": altered(kitchen, attempt={"messages": messages[:-1]}),
        "message 3:": with_call(kitchen, 0, text="3"),
        "a call: recorded Call(name='note'": with_call(kitchen, 0, name="note"),
        "replayed add({'a': 1, 'b': 1})": with_call(kitchen, 0, written={"a": "2"}),
        "a call: recorded Call(name='add', arguments={'a': 1, 'b': 2}": with_call(
            kitchen, 0, arguments={"a": 1, "b": 2}
        ),
        "the environment now accepts it": with_call(kitchen, 0, status=Status.BAD_CALL),
        "calls 2:": with_call(kitchen, 2, text="Error: another"),
        "calls: recorded no further call": altered(kitchen, attempt={"calls": own[:1]}),
        "calls: recorded 6 of them": altered(kitchen, attempt={"calls": (*own, Call("add", {}, "2", Status.OK))}),
    }
    for said, records in lies.items():
        assert said in str(difference(records)), said


def test_a_lie_about_a_game_is_named_with_its_seat():
    records = sold()
    attempt, others = records[0].episode.attempt, records[1].episode.attempt.messages
    heard = next(at for at, one in enumerate(others) if one["role"] == "user")
    other = (*others[:heard], {**others[heard], "content": "Buy."}, *others[heard + 1 :])
    lies = {
        "reward of bob_0: recorded 0.5, replayed 1.0": altered(records, "bob_0", reward=0.5),
        f"message of bob_0 {heard}:": altered(records, "bob_0", {"messages": other}),
        "the game goes on, and asks ann_0": altered(records, "ann_0", {"messages": attempt.messages[:1]}),
        "worlds of bob_0 0:": altered(records, "ann_0", {"worlds": ({"sold": [1, 2]}, attempt.worlds[1])}),
        "worlds: recorded no further one": altered(altered(records, "ann_0", {"worlds": ()}), "bob_0", {"worlds": ()}),
    }
    for said, lie in lies.items():
        assert said in str(difference(lie)), said


def test_an_author_who_changed_the_environment_is_told_where(kitchen, worlds, monkeypatch):
    monkeypatch.setattr(worlds.Kitchen, "reward", lambda self, attempt: 1 / 0)
    assert "ZeroDivisionError" in str(difference(kitchen))
    games = recorded(DUEL, DUELS)
    monkeypatch.setattr(game_worlds.Duel, "rounds", lambda self, task, rng: iter(()))
    assert "rounds: recorded a game that ended" in str(difference(games))


def test_after_a_replay_the_machine_plays_on_as_before(kitchen, worlds):
    stage = ReplayMachines()
    assert stage.replay(kitchen) is None
    assert stage.replay(with_call(kitchen, 0, name="note")) is not None
    worlds.opened.clear()
    machine = stage.machine("test/Kitchen-v0", {})
    settle(machine, machine.open({None: Start(1, 1)}))
    (event,) = settle(machine, machine.act(None, calls(("note", {"line": "a"})))).values()
    assert event.messages[0]["content"] == "1 kept"
    assert worlds.opened == ["start"], "what was never started was closed"
    release(machine)


def test_a_class_that_was_never_registered_is_replayed_on_its_machine():
    (record,) = recorded(SHOP, [calls(("sell", {"what": "last"}))])
    assert replay(Machine(spec_of(Shop())), {None: record.episode}) is None


def test_a_rule_that_never_lets_anybody_else_speak_is_no_endless_replay(monkeypatch):
    monkeypatch.setattr("palaestra.envs.records.replay.MAX_BY_RULE", 20)

    def rounds(self, task, rng):
        yield dict.fromkeys(self.seats, task.prompt)
        while True:
            yield {RIGHT: "and?"}

    records = recorded(DUEL, DUELS)[:1]
    monkeypatch.setattr(game_worlds.Duel, "rounds", rounds)
    found = replay(open_machine(DUEL, {}), {LEFT: records[0].episode}, lambda messages, rng: "word")
    assert "the game goes on" in str(found)


def test_seats_are_gathered_by_game_and_source():
    records = [*recorded(DUEL, DUELS), *recorded(DUEL, DUELS, task=4)]
    gathering = GameCollector()
    assert gathering.add("one", "1", records[0]) is None
    assert gathering.add("two", "2", records[1]) is None
    assert [place for place, _ in gathering.incomplete] == ["1", "2"]
    assert gathering.add("one", "3", records[0]) is None  # The same seat again is another game.
    assert gathering.add("one", "4", records[3]) is None  # Another task.
    assert [place for place, _ in gathering.add("one", "5", records[1])] == ["1", "5"]


# Another reward.


def shout(attempt):
    return {"success": 0.5, "loud": 2.0 * (attempt.answer or "").isupper() + 1.0}


def fails(attempt):
    raise KeyError("gone")


def careless(attempt):
    return 1.0


twice, half, nothing = (lambda attempt: 2.0), (lambda attempt: {"extra": 2}), (lambda attempt: float("nan"))
shout.parts = {"success": RewardPart(), "loud": RewardPart(weight=0.25, high=3.0)}
careless.parts = {"won": RewardPart()}


def test_a_function_or_an_environment_is_another_reward(kitchen):
    new = rescore(kitchen[0], find_scorer("of_replays:shout")).episode
    assert (new.reward, new.parts) == (0.75, {"success": 0.5, "loud": 1.0})
    assert new.attempt == kitchen[0].episode.attempt
    assert rescore(kitchen[0], find_scorer("test/Kitchen-v0")).episode == kitchen[0].episode
    (record,) = recorded(SHOP, [calls(("sell", {"what": "a"}), ("sell", {"what": "b"})), "done"])
    ran.clear()
    assert rescore(record, find_scorer(SHOP)).episode.reward == 1.0
    assert not ran
    broken = recorded("test/Kitchen-v0", [], ending=Ending.BROKEN)[0]
    assert rescore(broken, find_scorer("of_replays:shout")).episode.reward is None


def test_a_function_is_held_to_what_environments_are_held_to_and_named_where_it_is_not_there(kitchen):
    wrong = {
        "nothing": "success = nan",
        "fails": r"raised KeyError: 'gone' \(in task train/3\)",
        "twice": r"success = 2.0; its declared range is \[0.0, 1.0\]",
        "half": r"'extra', which is not declared.*half\.parts = \{'success': RewardPart\(\), 'extra': RewardPart",
        "careless": "parts has no 'success'",
    }
    for name, said in wrong.items():
        with pytest.raises(palaestra.EnvironmentDefect, match=said):
            rescore(kitchen[0], find_scorer(f"of_replays:{name}"))
    for name in ("absent_module:x", "of_replays:absent", "test/Kitchn-v0", "json:__name__"):
        with pytest.raises(UsageError):
            find_scorer(name)


def test_a_reward_that_peeks_at_the_episode_is_told_what_to_read(worlds, monkeypatch, kitchen):
    for peeks, error, said in (
        (lambda self: self.problem.answer, palaestra.EnvironmentDefect, r"reads self\.problem.*read attempt\.task"),
        (lambda self: self.absent, AttributeError, "absent"),
    ):
        monkeypatch.setattr(worlds.Kitchen, "reward", lambda self, attempt, peeks=peeks: peeks(self))
        with pytest.raises(error, match=said):
            rescore(kitchen[0], find_scorer("test/Kitchen-v0"))


class Generous(game_worlds.Duel):
    """The same course, other rewards."""

    def rounds(self, task, rng):
        yield from super().rounds(task, rng)
        return {LEFT: 0.25, RIGHT: 0.75}


class Other(game_worlds.Duel):
    """Another course."""

    def rounds(self, task, rng):
        yield {LEFT: "something else"}
        return dict.fromkeys(self.seats, 0.0)


def test_a_game_rewards_what_was_played_by_its_rounds_or_seat_by_seat(monkeypatch):
    records = recorded(DUEL, DUELS)
    game = [("here", record) for record in records]
    for name in ("Generous", "Other"):
        palaestra.register_game(f"test/{name.lower()}_v0", f"of_replays:{name}")
    new = rescore_game(game, "test/generous_v0", ReplayMachines())
    assert [record.episode.reward for record in new] == [0.25, 0.75]
    assert [record.episode.attempt for record in new] == [record.episode.attempt for record in records]
    with pytest.raises(UsageError, match="seats are not those"):
        rescore_game(game, "palaestra/solver_critic_v0", ReplayMachines())
    with pytest.raises(UsageError, match="asks for other turns"):
        rescore_game(game, "test/other_v0", ReplayMachines())
    seats = sold()
    monkeypatch.setattr(Market, "rounds", lambda self, task, rng: pytest.fail("it was played again"))
    assert rescore(seats[0], find_scorer(MARKET)).episode.reward == 1.0, "one seat alone is enough"
    with pytest.raises(UsageError, match="the seats of test/Market-v0 are"):
        rescore(records[0], find_scorer(MARKET))


def test_a_record_holds_what_the_agent_was_shown_and_of_more_a_bounded_part_for_the_reward(arena):
    rule = ScriptedPolicy(
        lambda messages, rng: calls(("shout", {"size": 300}), ("shout", {"size": 10**6}), ("end", {"size": 10**6}))
    )
    (episode,) = play(Agent(rule), arena("test/Shout-v0", 1), [Start(0, 0)])
    record = Record("test/Shout-v0", episode)
    line = to_line(record)
    assert len(line) < 20_000
    again = from_line(line)
    assert again == record
    near, far, end = again.episode.attempt.calls
    shown = [message["content"] for message in again.episode.attempt.messages if message["role"] == "tool"]
    assert [near.text, far.text, end.text] == shown
    assert max(map(len, shown)) <= 100
    assert len(near.result) == 506
    # A note of what was left out stands between: its length decides whether one character less fits.
    assert all(999 <= len(text) <= 1000 for text in (far.result, again.episode.attempt.answer, end.answer))
    assert episode.reward == 1.0
    assert rescore(again, find_scorer("test/Shout-v0")).episode.reward == 1.0
    assert replay(open_machine("test/Shout-v0", {}), {None: again.episode}) is None
