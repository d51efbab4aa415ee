"""Where an agent is measured: an environment that reads its calls as it writes them and, in a game, who sits with it.

The agent plays the seats that were named, or all; the others are played by another agent, the game's own script by
default. Left out: the playing and the figures (`eval`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from palaestra import formats
from palaestra.cli.agents import AgentOptions, open_agent, read_as
from palaestra.cli.display import note
from palaestra.errors import UsageError
from palaestra.protocols import Arena
from palaestra.registry import arena, chosen_format

if TYPE_CHECKING:
    from palaestra.agents import Agent


@dataclass(frozen=True, slots=True)
class EvalArena:
    """An arena, and who plays in it."""

    agent: "Agent"
    arena: Arena
    environment: Mapping[str, Any]
    """What the arena was made with."""
    seats: tuple[str, ...]
    """Those of the agent that is measured; empty where there is one seat, which has no name."""


@contextmanager
def open_table(
    name: str,
    agent: "Agent",
    others: AgentOptions,
    seats: Sequence[str],
    environment: Mapping[str, Any],
    *,
    env_id: str,
    slots: int,
    seed: int,
) -> Iterator[EvalArena]:
    """Open the arena in which the agent of that name plays, and close everything at the end."""
    agent_options = _made_for(name, agent, env_id, environment)
    with ExitStack() as opened:
        other = None
        if seats:
            other = opened.enter_context(open_agent(others, env_id, slots=slots, seed=seed, environment=agent_options))
            other_options = _made_for(others.model, other, env_id, environment)
            if other.chat is not None and _format(env_id, other_options) != _format(env_id, agent_options):
                agent_options["format"] = "auto"
                note("the agents at this table write calls in different formats; whichever is met is read")
        places = opened.enter_context(closing(arena(env_id, slots, **agent_options)))
        yield _seated(agent, other, seats, places, agent_options)


def _seated(
    agent: "Agent", other: "Agent | None", seats: Sequence[str], places: Arena, made: Mapping[str, Any]
) -> EvalArena:
    from palaestra.agents.policies.table import seated_agent

    there = tuple(getattr(places, "seats", ()))
    if unknown := [seat for seat in seats if seat not in there]:
        has = f"the seats {', '.join(there)}" if there else "one seat, which has no name: leave out --seats"
        raise UsageError(f"--seats names {unknown[0]!r}; the environment has {has}")
    if not there:
        return EvalArena(agent, places, made, ())
    own_seats = tuple(seat for seat in there if not seats or seat in seats)
    players = {seat: agent if seat in own_seats or other is None else other for seat in there}
    return EvalArena(seated_agent(players), places, made, own_seats)


def _made_for(name: str, agent: "Agent", env_id: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    chat = agent.chat
    return dict(environment) if chat is None else read_as(env_id, environment, name, chat.tokenizer)


def _format(env_id: str, environment: Mapping[str, Any]) -> str:
    return chosen_format(env_id, environment) or formats.DEFAULT
