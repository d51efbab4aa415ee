"""One engine for a table of several seats: each request goes to the engine that plays its seat.

Seats may share an engine and so its weights, be frozen, or be scripts; only the engines of learning seats get new
weights. Seats of one game share task and seed, so each seat's seed is mixed with its name: two seats that share weights
and read the same words do not draw the same noise. `seated_agent` combines players with different tokenizers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import count

from palaestra.agents.agent import Agent
from palaestra.errors import UsageError
from palaestra.protocols import Completion, Engine, Request, TrainedEngine


class SeatedEngine:
    """Routes each request to the engine of its `Start.seat`."""

    def __init__(self, engines: Mapping[str, Engine], learning: Collection[str] | None = None) -> None:
        """`learning` names the seats whose engines take new weights; by default all that have weights."""
        self._seats = dict(engines)
        learning = list(engines) if learning is None else learning
        if unknown := [seat for seat in learning if seat not in engines]:
            raise UsageError(f"{unknown[0]!r} learns but has no engine; the seats are {', '.join(engines)}")
        self._engines: list[Engine] = []
        for engine in engines.values():
            if not any(engine is other for other in self._engines):
                self._engines.append(engine)
        self.learning = [
            engine
            for engine in self._engines
            if isinstance(engine, TrainedEngine) and any(engines[seat] is engine for seat in learning)
        ]
        """The engines whose weights a trainer changes."""
        self._tickets = count()
        self._out: dict[int, tuple[Engine, int]] = {}
        """The engine and its ticket, by the ticket that `submit` returned."""
        self._ours: list[dict[int, int]] = [{} for _ in self._engines]
        """For each engine, a mapping from its tickets to those that `submit` returned."""

    @property
    def sampled(self) -> int:
        """Return the count of sampled tokens of all engines."""
        return sum(engine.sampled for engine in self._engines)

    def submit(self, request: Request) -> int:
        """Submit a request to the engine of its seat."""
        engine = self._seats.get(request.start.seat or "")
        if engine is None:
            raise UsageError(
                f"no engine plays the seat {request.start.seat!r}; those with one are {', '.join(self._seats)}"
            )
        start = replace(request.start, seed=_mixed(request.start.seed, str(request.start.seat)))
        engine_ticket = engine.submit(replace(request, start=start))
        ticket = next(self._tickets)
        self._out[ticket] = (engine, engine_ticket)
        self._ours[self._place(engine)][engine_ticket] = ticket
        return ticket

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return the completions of all engines; those that have work share the timeout."""
        busy = [index for index, tickets in enumerate(self._ours) if tickets]
        ready: list[Completion] = []
        for index in busy:
            seconds = 0.0 if ready else timeout / len(busy)
            for completion in self._engines[index].poll(seconds):
                ticket = self._ours[index].pop(completion.ticket, None)
                if ticket is not None:
                    del self._out[ticket]
                    ready.append(replace(completion, ticket=ticket))
        return ready

    def cancel(self, ticket: int) -> None:
        """Cancel a request."""
        engine, engine_ticket = self._out.pop(ticket)
        self._ours[self._place(engine)].pop(engine_ticket, None)
        engine.cancel(engine_ticket)

    def close(self) -> None:
        """Close every engine, once."""
        for engine in self._engines:
            engine.close()

    def _place(self, engine: Engine) -> int:
        return next(index for index, other in enumerate(self._engines) if other is engine)


def seated_agent(players: Mapping[str, Agent]) -> Agent:
    """Combine one agent per seat into a single agent."""
    return Agent(
        SeatedEngine({seat: player.engine for seat, player in players.items()}),
        chats={seat: player.chat for seat, player in players.items()},
    )


def in_every_seat(agent: Agent, seats: Sequence[str]) -> Agent:
    """Put one agent in all seats of a game; return it unchanged if there are no seats or it has a `SeatedEngine`."""
    if not seats or isinstance(agent.engine, SeatedEngine):
        return agent
    return Agent(SeatedEngine(dict.fromkeys(seats, agent.engine)), agent.chat)


def trained_engines(agent: Agent) -> Sequence[TrainedEngine]:
    """Return the engines of an agent whose weights a trainer changes; none if it has no weights."""
    if isinstance(agent.engine, SeatedEngine):
        return agent.engine.learning
    return [agent.engine] if isinstance(agent.engine, TrainedEngine) else []


def _mixed(seed: int, seat: str) -> int:
    """Return a seed of 63 bits for a seat."""
    return int.from_bytes(blake2b(f"{seed}/{seat}".encode(), digest_size=8).digest(), "big") >> 1
