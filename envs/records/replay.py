"""Recorded episodes run again: the environment's own rules over recorded outcomes, without tools, network or model.

A turn goes through the same parser, checks, clipping and reward as when it was played; only what a tool said is taken
from the record. So a replay that comes out identical proves that the record is whole, that the environment still is
what it was, and that its reward depends on nothing but the Attempt. A reward that asks a judge asks again: that needs
the judge, and comes out identical only if it says the same. Left out: games (`games`), and reading files
(`palaestra.record`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.envs.core.calls import Prepared
from palaestra.envs.core.env import ToolEnv
from palaestra.envs.core.opening import open_env
from palaestra.episode import Call, Ending, Episode, Event, Status
from palaestra.record import Record


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay left its record."""

    where: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"{self.where}: recorded {_short(self.recorded)}, replayed {_short(self.replayed)}"


class Diverged(Exception):
    """A recorded turn cannot be taken: the environment asks for other calls than were recorded."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class Unfinished(Diverged):
    """There is no outcome left: the call was never recorded, as when it broke the episode."""


class Stage:
    """Environments to replay in, one for each id and its options, made when first needed."""

    def __init__(self) -> None:
        self._made: dict[str, ToolEnv] = {}

    def env(self, record: Record) -> ToolEnv:
        """The environment of a record."""
        # A file of tasks is not needed: the record holds its own task.
        options = {name: value for name, value in record.options.items() if name != "tasks"}
        key = f"{record.env_id} {options!r}"
        if key not in self._made:
            self._made[key] = open_env(record.env_id, options)
        return self._made[key]


def replay(env: ToolEnv, episode: Episode) -> Difference | None:
    """Run an episode again; the first difference to its record, or None when it came out identical.

    A BROKEN episode is run as far as it got; it has no reward to compare.
    """
    attempt = episode.attempt
    opening = env.reopen(episode.start, attempt.task).messages
    try:
        same("opening message", attempt.messages[: len(opening)], opening)
        event = _run(env, episode, len(opening))
        _compare(episode, event)
    except Diverged as diverged:
        return diverged.difference
    except Exception as error:  # Whatever an author's reward raises, the record says that it once did not.
        return Difference("reward", episode.reward, f"{type(error).__name__}: {error}")
    return None


def _run(env: ToolEnv, episode: Episode, opening: int) -> Event:
    """Every turn of the record, and its ending."""
    attempt, outcomes = episode.attempt, iter(episode.attempt.calls)
    from_outside = episode.ending in (Ending.LENGTH_LIMIT, Ending.BROKEN)
    for place, message in enumerate(attempt.messages[opening:], start=opening):
        if message["role"] != "assistant":
            continue
        last = place == len(attempt.messages) - 1
        if last and from_outside:  # What had been said when the episode was closed.
            return env.finish(episode.ending, message["content"])
        event = take_turn(env, message["content"], outcomes)
        if event.ending is not None:
            same("messages", attempt.messages, event.attempt.messages if event.attempt else ())
            return event
    if not from_outside:
        raise Diverged(Difference("ending", episode.ending, "the episode goes on"))
    return env.finish(episode.ending)


def _compare(episode: Episode, event: Event) -> None:
    recorded, found = episode.attempt, event.attempt
    assert found is not None, "an ending carries the attempt"
    same("message", recorded.messages, found.messages)
    if episode.ending is Ending.BROKEN:
        return
    for name in ("calls", "answer", "turns"):
        same(name, getattr(recorded, name), getattr(found, name))
    if event.fault:
        raise Diverged(Difference("ending", episode.ending, event.fault))
    for name in ("ending", "reward", "parts"):
        same(name, getattr(episode, name), getattr(event, name))


def same(where: str, recorded: Any, replayed: Any) -> None:
    """Raise Diverged where two values differ; of sequences, at their first different place."""
    if recorded == replayed:
        return
    if isinstance(recorded, Sequence) and isinstance(replayed, Sequence) and not isinstance(recorded, str):
        for place, (one, other) in enumerate(zip(recorded, replayed, strict=False)):
            if one != other:
                raise Diverged(Difference(f"{where} {place}", one, other))
        recorded, replayed = f"{len(recorded)} of them", f"{len(replayed)} of them"
    raise Diverged(Difference(where, recorded, replayed))


def take_turn(env: ToolEnv, text: str, outcomes: Iterator[Call]) -> Event:
    """Take one turn in which every call that the environment would run has its recorded outcome."""
    return env.close_turn([outcome(prepared, outcomes) for prepared in env.open_turn(text)])


def outcome(prepared: Prepared, outcomes: Iterator[Call]) -> Call:
    """What came of a call when it was recorded: the next of the outcomes, which must be that call's."""
    recorded = next(outcomes, None)
    if recorded is None:
        raise Unfinished(Difference("calls", "no further call", f"{prepared.name}({dict(prepared.arguments)})"))
    if prepared.call is not None:
        if prepared.call != recorded:
            raise Diverged(Difference("a refused call", recorded, prepared.call))
    elif (recorded.name, recorded.arguments) != (prepared.name, prepared.arguments):
        raise Diverged(Difference("a call", recorded, f"{prepared.name}({dict(prepared.arguments)})"))
    elif recorded.status is Status.BAD_CALL:
        raise Diverged(Difference("a call", recorded, "the environment now accepts it"))
    return recorded


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
