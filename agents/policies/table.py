"""One engine for the several seats of a game: each request goes to the engine of its seat.

Seats may share one engine (and its weights), have a model that does not learn, or be scripts. Only the engines of
learning seats get new weights. All seats of a game have the same task and seed, so each seat's seed is mixed with its
name: otherwise two seats with the same weights and the same messages would sample the same turn. `seated_agent`
combines agents with different tokenizers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import count

from palaestra.agents.agent import Agent
from palaestra.errors import UsageError
from palaestra.protocols import Completion, Engine, Request, TrainedEngine


class SeatedEngine:
    """Engine that passes each request to the engine of the request's `Start.seat`."""

    def __init__(self, engines: Mapping[str, Engine], learning: Collection[str] | None = None) -> None:
        """`learning` names the seats whose engines get new weights; None means all seats whose engines have weights."""
        learning = list(engines) if learning is None else learning
        if unknown := [seat for seat in learning if seat not in engines]:
            raise UsageError(f"{unknown[0]!r} learns but has no engine; the seats are {', '.join(engines)}")
        self._engines = list({id(engine): engine for engine in engines.values()}.values())
        identities = [id(engine) for engine in self._engines]
        self._index = {seat: identities.index(id(engine)) for seat, engine in engines.items()}
        """Index of the engine of each seat."""
        learning_indexes = {self._index[seat] for seat in learning}
        trained = [engine for index, engine in enumerate(self._engines) if index in learning_indexes]
        self.learning = [engine for engine in trained if isinstance(engine, TrainedEngine)]
        """The engines whose weights a trainer changes."""
        self._tickets = count()
        self._live: dict[tuple[int, int], int] = {}
        """Ticket that `submit` returned, by the index of the engine and its own ticket."""

    @property
    def sampled(self) -> int:
        """Return the number of tokens that all engines have sampled."""
        return sum(engine.sampled for engine in self._engines)

    @property
    def remote(self) -> bool:
        """Return whether any engine waits for a server."""
        return any(getattr(engine, "remote", False) for engine in self._engines)

    def submit(self, request: Request) -> int:
        """Submit a request to the engine of its seat."""
        start = request.start
        index = self._index.get(start.seat or "")
        if index is None:
            raise UsageError(f"no engine plays the seat {start.seat!r}; those with one are {', '.join(self._index)}")
        start = replace(start, seed=_mixed(start.seed, str(start.seat)))
        engine_ticket = self._engines[index].submit(replace(request, start=start))
        ticket = self._live[index, engine_ticket] = next(self._tickets)
        return ticket

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return the completions of all engines. The timeout is divided among the engines with unanswered requests."""
        busy = sorted({index for index, _ in self._live})
        ready: list[Completion] = []
        for index in busy:
            seconds = 0.0 if ready else timeout / len(busy)
            for completion in self._engines[index].poll(seconds):
                ticket = self._live.pop((index, completion.ticket), None)
                if ticket is not None:
                    ready.append(replace(completion, ticket=ticket))
        return ready

    def cancel(self, ticket: int) -> None:
        """Cancel a request at the engine of its seat."""
        index, engine_ticket = next(key for key, value in self._live.items() if value == ticket)
        del self._live[index, engine_ticket]
        self._engines[index].cancel(engine_ticket)

    def close(self) -> None:
        """Close every engine. An engine of several seats is closed only once."""
        for engine in self._engines:
            engine.close()


def seated_agent(players: Mapping[str, Agent]) -> Agent:
    """Return one agent that plays each seat with the agent that `players` names for it."""
    return Agent(
        SeatedEngine({seat: player.engine for seat, player in players.items()}),
        chats={seat: player.chat for seat, player in players.items()},
    )


def in_every_seat(agent: Agent, seats: Sequence[str]) -> Agent:
    """Return an agent that plays all seats of a game with `agent`.

    Return `agent` itself if there are no seats, or if its engine is a `SeatedEngine` already.
    """
    if not seats or isinstance(agent.engine, SeatedEngine):
        return agent
    return Agent(SeatedEngine(dict.fromkeys(seats, agent.engine)), agent.chat)


def trained_engines(agent: Agent) -> Sequence[TrainedEngine]:
    """Return the engines of an agent whose weights a trainer changes; an empty list if no engine has weights."""
    if isinstance(agent.engine, SeatedEngine):
        return agent.engine.learning
    return [agent.engine] if isinstance(agent.engine, TrainedEngine) else []


def free_until_play(agent: Agent) -> None:
    """Free the memory that engines share with their trainer. They allocate it again when they play."""
    for engine in trained_engines(agent):
        if engine.shares_memory:
            engine.release()
            engine.reclaim()


def _mixed(seed: int, seat: str) -> int:
    """Return a seed of 63 bits that depends on `seed` and on the seat."""
    return int.from_bytes(blake2b(f"{seed}/{seat}".encode(), digest_size=8).digest(), "big") >> 1
