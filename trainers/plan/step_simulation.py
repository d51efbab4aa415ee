"""Simulate the steps of a run event by event: turns decode together on servers, wait for tools, and are learned from.

An episode stays on its server (sticky turns). A batch may begin when the weights are at most `max_staleness` updates
older than the learner will be. Sending weights stops all servers, which then read again what they had cached.
Left out: failures, retries, groups that are dropped, and evaluation between steps.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from palaestra.trainers.plan.workload import PlannedEpisode

_WARM = 2
"""Steps at the beginning that no figure counts."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that the parts of a step take on one kind of machine."""

    decode_pass: float
    """A decode pass of a server, however many rows it has."""
    decode_row: float
    """Additional seconds of a pass for each of its rows."""
    decode_context: float
    """Additional seconds of a pass for each cached token that it reads."""
    read_token: float
    """Computing the keys and values of a token that was not sampled (prefill)."""
    turn: float
    """Work of the trainer's process for one turn, one turn after the other: text, request, start of a tool."""
    latency: float
    """Delay before a turn that a server has completed is noticed; none if the engine is in the trainer's process."""
    learn_step: float
    learn_token: float
    """Learning from a token of a row, sampled or not; a prompt counts once for its group."""
    publish: float
    """Sending the weights of a step to the servers."""


@dataclass(frozen=True, slots=True)
class ServingLayout:
    """How many servers play, and how a run is divided into batches."""

    servers: int
    slots: int
    """Episodes that are played at once, on all servers together."""
    episodes: int
    """Episodes of a batch."""
    group: int
    """Episodes with the same prompt, which is read once for all of them."""
    max_staleness: int = 0
    own_process: bool = True
    """False if the engine is in the trainer's process: while that works for a turn, nothing decodes."""


@dataclass(frozen=True, slots=True)
class StepForecast:
    """A step as it is simulated."""

    seconds: float
    serving_idle: float
    """Share of the time in which a server has nothing to compute, on average."""
    learning_idle: float
    """Share of the time in which the learner has nothing to compute."""


@dataclass(slots=True, eq=False)
class _Playing:
    episode: PlannedEpisode
    batch: int
    server: "_SimulatedServer"
    turn: int = 0
    context: int = 0
    """Tokens that are cached for the episode."""


@dataclass(slots=True, eq=False)
class _SimulatedServer:
    waiting: list[_Playing] = field(default_factory=list)
    rows: list[tuple[int, int, _Playing]] = field(default_factory=list)
    """Heap of running turns: the pass in which each ends, a number that breaks ties, and the episode."""
    passes: int = 0
    since: float = 0.0
    """Time at which the next pass begins or began."""
    pass_seconds: float = 0.0
    busy: float = 0.0
    load: int = 0
    """Episodes that the server holds."""
    context: int = 0
    """Cached tokens of the running rows."""
    wake: int = 0
    """Number of the latest wake-up; earlier ones are void."""


class StepSimulation:
    """One run. Call `forecast` once."""

    def __init__(self, costs: Costs, layout: ServingLayout, episodes: Sequence[PlannedEpisode]) -> None:
        """`episodes` are played one after the other, and again from the first one if more are needed."""
        self._costs, self._layout, self._episodes = costs, layout, episodes
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._servers = [_SimulatedServer() for _ in range(layout.servers)]
        self._free, self._begun, self._version = layout.slots, 0, 0
        self._missing: dict[int, int] = {}
        """Episodes that a batch still lacks."""
        self._tokens: dict[int, int] = {}
        self._host_until = 0.0
        self._learning, self._learned = False, 0.0
        self._updates: list[tuple[float, float, float]] = []
        """Time of each update, and the seconds that servers and learner had worked by then."""

    def forecast(self, steps: int = 8) -> StepForecast:
        """Simulate this many steps after two of a warm-up. Take an even number: ahead, a long one often follows a short
        one.
        """
        self._fill()
        while len(self._updates) < steps + _WARM:
            self._now, _, act = heapq.heappop(self._events)
            act()
        (first, served, learned), (last, served_in_all, learned_in_all) = self._updates[_WARM - 1], self._updates[-1]
        wall = last - first
        return StepForecast(
            wall / (len(self._updates) - _WARM),
            max(0.0, 1 - (served_in_all - served) / (wall * len(self._servers))),
            max(0.0, 1 - (learned_in_all - learned) / wall),
        )

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def _fill(self) -> None:
        """Begin episodes in free slots, as far as the weights are new enough for their batch."""
        while self._free:
            batch = self._begun // self._layout.episodes
            if batch > self._version + self._layout.max_staleness:
                return
            server = min(self._servers, key=lambda one: one.load)
            playing = _Playing(self._episodes[self._begun % len(self._episodes)], batch, server)
            self._missing.setdefault(batch, self._layout.episodes)
            self._begun, self._free, server.load = self._begun + 1, self._free - 1, server.load + 1
            self._submit(playing)

    def _submit(self, playing: _Playing) -> None:
        """Give a turn to its server, which takes it at the end of the pass in progress."""
        server = playing.server
        server.waiting.append(playing)
        self._advance(server)
        self._wake_at(server, server.since if not server.rows or server.since >= self._now else self._pass_end(server))

    def _pass_end(self, server: _SimulatedServer) -> float:
        return server.since + server.pass_seconds

    def _wake_at(self, server: _SimulatedServer, time: float) -> None:
        server.wake += 1
        number = server.wake
        self._at(max(time, self._now), lambda: self._serve(server) if number == server.wake else None)

    def _advance(self, server: _SimulatedServer) -> None:
        """Count the passes that a server has completed by now."""
        if not server.rows:
            server.since = max(server.since, self._now)
            return
        done = max(0, math.floor((self._now - server.since) / server.pass_seconds + 1e-6))
        done = min(done, server.rows[0][0] - server.passes)
        server.passes += done
        server.since += done * server.pass_seconds
        server.busy += done * server.pass_seconds
        server.context += done * len(server.rows)

    def _serve(self, server: _SimulatedServer) -> None:
        """Take the turns that have ended from a server, let it read those that wait, and plan its next passes."""
        self._advance(server)
        while server.rows and server.rows[0][0] <= server.passes:
            self._complete(heapq.heappop(server.rows)[2])
        costs, reading = self._costs, 0.0
        for playing in server.waiting:
            turns, number = playing.episode.turns, playing.turn
            new = turns[number - 1].tool_tokens if number else math.ceil(playing.episode.prompt / self._layout.group)
            playing.context += turns[number - 1].tool_tokens if number else playing.episode.prompt
            server.context += playing.context
            reading += new * costs.read_token
            heapq.heappush(server.rows, (server.passes + max(1, turns[number].sampled), next(self._numbers), playing))
        if server.waiting:
            server.waiting.clear()
            reading += costs.decode_pass
        server.since, server.busy = server.since + reading, server.busy + reading
        if server.rows:
            ahead, width = server.rows[0][0] - server.passes, len(server.rows)
            context = server.context + width * ahead / 2
            server.pass_seconds = costs.decode_pass + costs.decode_row * width + costs.decode_context * context
            self._wake_at(server, server.since + ahead * server.pass_seconds)

    def _complete(self, playing: _Playing) -> None:
        """Work for a turn that has ended in the trainer's process, then start its tools or end its episode."""
        layout, server, turn = self._layout, playing.server, playing.episode.turns[playing.turn]
        work = self._costs.turn
        server.context -= playing.context + turn.sampled
        playing.context += turn.sampled
        playing.turn += 1
        if not layout.own_process:
            server.since += work
        self._host_until = max(self._host_until, self._now) + work
        noticed = self._host_until + (self._costs.latency if layout.own_process else 0.0)
        self._at(noticed + turn.tool_seconds, lambda: self._answered(playing))

    def _answered(self, playing: _Playing) -> None:
        """Ask for the next turn of an episode whose tools have answered; an episode without one has ended."""
        if playing.turn < len(playing.episode.turns):
            self._submit(playing)
            return
        playing.server.load -= 1
        self._free += 1
        self._missing[playing.batch] -= 1
        computed = playing.episode.computed(self._layout.group)
        self._tokens[playing.batch] = self._tokens.get(playing.batch, 0) + computed
        self._learn()
        self._fill()

    def _learn(self) -> None:
        """Learn from the next batch, if it is complete and the learner is free."""
        if self._learning or self._missing.get(self._version, 1):
            return
        seconds = self._costs.learn_step + self._costs.learn_token * self._tokens[self._version]
        self._learning, self._learned = True, self._learned + seconds
        self._at(self._now + seconds, self._publish)

    def _publish(self) -> None:
        """Send the weights. Meanwhile no server decodes; afterwards it computes its cache again."""
        for server in self._servers:
            self._advance(server)
            again = server.context * self._costs.read_token if server.rows else 0.0
            server.since, server.busy = max(server.since, self._now) + self._costs.publish + again, server.busy + again
            if server.rows:
                self._wake_at(server, server.since + (server.rows[0][0] - server.passes) * server.pass_seconds)
        self._at(self._now + self._costs.publish, self._published)

    def _published(self) -> None:
        self._learning = False
        self._version += 1
        self._updates.append((self._now, sum(server.busy for server in self._servers), self._learned))
        self._learn()
        self._fill()
