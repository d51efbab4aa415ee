"""One engine for a table of several seats: each request goes to the engine that plays its seat.

Seats may share an engine and so its weights, be frozen, or be scripts; only the engines of learning seats get new
weights. Seats of one game share task and seed, so each seat's seed is mixed with its name: two seats that share weights
and read the same words do not draw the same noise. Players with tokenizers of their own are seated by `seated_agent`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import count

from palaestra.agents.agent import Agent
from palaestra.errors import UsageError
from palaestra.protocols import Completion, Engine, Request, TrainedEngine


class SeatedEngine:
    """Routes by `Start.seat`."""

    def __init__(self, engines: Mapping[str, Engine], learning: Collection[str] | None = None) -> None:
        """`learning` names the seats whose engines take new weights; all that have weights by default."""
        self._seats = dict(engines)
        learning = list(engines) if learning is None else learning
        if unknown := [seat for seat in learning if seat not in engines]:
            raise UsageError(f"{unknown[0]!r} learns but has no engine; the seats are {', '.join(engines)}")
        self._engines: list[Engine] = []
        for engine in engines.values():
            if not any(engine is known for known in self._engines):
                self._engines.append(engine)
        self.learning = [
            engine
            for engine in self._engines
            if isinstance(engine, TrainedEngine) and any(engines[seat] is engine for seat in learning)
        ]
        """The engines whose weights a trainer changes."""
        self._tickets = count()
        self._out: dict[int, tuple[Engine, int]] = {}
        """Our ticket: the engine and its own."""
        self._ours: list[dict[int, int]] = [{} for _ in self._engines]
        """For each engine, its ticket: ours."""

    @property
    def sampled(self) -> int:
        """Tokens of all engines."""
        return sum(engine.sampled for engine in self._engines)

    def submit(self, request: Request) -> int:
        """Ask the seat's engine."""
        engine = self._seats.get(request.start.seat or "")
        if engine is None:
            raise UsageError(
                f"no engine plays the seat {request.start.seat!r}; those with one are {', '.join(self._seats)}"
            )
        start = replace(request.start, seed=_mixed(request.start.seed, str(request.start.seat)))
        theirs = engine.submit(replace(request, start=start))
        ours = next(self._tickets)
        self._out[ours] = (engine, theirs)
        self._ours[self._place(engine)][theirs] = ours
        return ours

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """What any engine has ready; the timeout is shared among those that have work."""
        busy = [place for place, tickets in enumerate(self._ours) if tickets]
        ready: list[Completion] = []
        for place in busy:
            patience = 0.0 if ready else timeout / len(busy)
            for completion in self._engines[place].poll(patience):
                ours = self._ours[place].pop(completion.ticket, None)
                if ours is not None:
                    del self._out[ours]
                    ready.append(replace(completion, ticket=ours))
        return ready

    def cancel(self, ticket: int) -> None:
        """Forget a request."""
        engine, theirs = self._out.pop(ticket)
        self._ours[self._place(engine)].pop(theirs, None)
        engine.cancel(theirs)

    def close(self) -> None:
        """Close every engine, once."""
        for engine in self._engines:
            engine.close()

    def _place(self, engine: Engine) -> int:
        return next(place for place, known in enumerate(self._engines) if known is engine)


def seated_agent(players: Mapping[str, Agent]) -> Agent:
    """Who plays which seat, as one agent: every seat with its own engine and its own chat."""
    return Agent(
        SeatedEngine({seat: player.engine for seat, player in players.items()}),
        chats={seat: player.chat for seat, player in players.items()},
    )


def in_every_seat(agent: Agent, seats: Sequence[str]) -> Agent:
    """One agent in all seats of a game; where there is one seat, or a table is set already, the agent as it is."""
    if not seats or isinstance(agent.engine, SeatedEngine):
        return agent
    return Agent(SeatedEngine(dict.fromkeys(seats, agent.engine)), agent.chat)


def trained_engines(agent: Agent) -> Sequence[TrainedEngine]:
    """The engines of an agent whose weights a trainer changes; none in one that has no weights."""
    if isinstance(agent.engine, SeatedEngine):
        return agent.engine.learning
    return [agent.engine] if isinstance(agent.engine, TrainedEngine) else []


def _mixed(seed: int, seat: str) -> int:
    """A seed of a seat's own, in 63 bits."""
    return int.from_bytes(blake2b(f"{seed}/{seat}".encode(), digest_size=8).digest(), "big") >> 1
