"""What the author's object decides in an episode: the user's reply, the declared final state, the ending, the reward.

Left out: the check of a reward's parts and ranges (`scoring`), and the order of these steps (`machine`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any

from palaestra.envs.core.scoring import score
from palaestra.envs.core.spec import Spec
from palaestra.envs.core.state import EpisodeState, Events, Seat
from palaestra.envs.running.work import Work, WorkMode
from palaestra.episode import Attempt, Ending
from palaestra.errors import Broken, EnvironmentDefect, UsageError
from palaestra.plain import from_plain, to_plain

ANSWERED: Mapping[Seat, tuple[Ending, str]] = {None: (Ending.ANSWERED, "")}
UNANSWERED: Mapping[Seat, tuple[Ending, str]] = {None: (Ending.TURN_LIMIT, "")}
"""Endings of an environment with one seat."""
Takers = Sequence[tuple[Seat, Any]]
"""Objects that declare a final state, each with its seat; None where all seats share it."""
JudgedSeat = tuple[Seat, Attempt, Any]
"""A seat, its attempt, and its reward or the Work that computes the reward."""


def blame(seat: Seat, culprit: Seat, ending: Ending, fault: str) -> tuple[Ending, str]:
    """Return a seat's ending and fault after `culprit` stopped the game. Seats with a fault are not trained on."""
    if seat == culprit:
        return ending, ""
    return Ending.TURN_LIMIT, fault or f"{culprit} could not go on: {ending}"


def stopped(
    spec: Spec, state: EpisodeState, ending: Ending, culprit: Seat, fault: str
) -> dict[Seat, tuple[Ending, str]]:
    """Return every seat's ending and fault after `culprit` could not continue. In a game without a `reward`, also store
    the rewards that its `forfeit` returns."""
    if not spec.solo and not spec.has_reward:
        forfeit = state.play.forfeit(culprit) if culprit is not None else {}
        state.returned = {seat: forfeit.get(str(seat), {"success": 0.0}) for seat in state.seats}
    return {seat: blame(seat, culprit, ending, fault) for seat in state.seats}


def finished(spec: Spec, state: EpisodeState, returned: Any) -> dict[Seat, tuple[Ending, str]]:
    """Return every seat's ending and fault after the last round. In a game without a `reward`, also store the rewards
    that its rounds returned."""
    if not spec.has_reward:
        if not isinstance(returned, Mapping) or set(returned) != set(state.seats):
            raise EnvironmentDefect(
                f"{spec.owner}.rounds returned {returned!r}; expected the reward of each of {tuple(state.seats)}"
            )
        state.returned = returned
    return {
        seat: (Ending.TURN_LIMIT if dialogue.turns and dialogue.answer is None else Ending.ANSWERED, "")
        for seat, dialogue in state.seats.items()
    }


def merged_final(owner: str, takers: Takers, finals: Sequence[Any]) -> Mapping[str, Any]:
    """Merge the final states that the environment and its toolkits declare into one new mapping of plain data.

    If each seat has its own instance of a toolkit, the value of each name in its state is a mapping by seat.
    """
    merged: dict[str, Any] = {}
    by_seat: dict[str, type] = {}
    for (seat, taker), declared in zip(takers, finals, strict=True):
        where = f"{type(taker).__name__}.final()"
        if not isinstance(declared, Mapping) or not all(isinstance(name, str) for name in declared):
            raise EnvironmentDefect(f"{owner}: {where} returned {declared!r:.100}; expected a dict by name")
        for name, value in declared.items():
            try:
                plain = from_plain(to_plain(value, f"{where}[{name!r}]"))
            except UsageError as error:
                raise EnvironmentDefect(f"{owner}: {error}") from error
            if seat is not None and by_seat.get(name, None if name in merged else type(taker)) is type(taker):
                by_seat[name] = type(taker)
                merged.setdefault(name, {})[seat] = plain
            elif name in merged:
                raise EnvironmentDefect(f"{owner}: two toolkits declare {name!r} in final(); rename one")
            else:
                merged[name] = plain
    return merged


def user_reply(spec: Spec, state: EpisodeState, seat: Seat, text: str, eager: bool) -> Work | Callable[[], str | None]:
    """Return the reply of the author's `user` to a turn without a call: a function, or the job that waits for it.

    The user's attempt has `text`, the turn without its thinking, as its answer. Unless `eager`, it is always a job.
    """
    attempt = replace(state.attempt(seat), answer=text)
    ask = partial(state.play.user, attempt)
    if spec.user_waits:
        return Work("user", ask, spec.conditions["user", WorkMode.ASYNC])
    if not eager:
        return Work("user", ask, spec.conditions["user", WorkMode.BLOCKING])
    reply: Any = ask()
    if isawaitable(reply):
        return Work("user", partial(_itself, reply), spec.conditions["user", WorkMode.ASYNC])
    return lambda: reply


def user_message(owner: str, reply: Callable[[], Any]) -> str | None:
    """Return the user's next message, or None if the user ends the episode. Raise Broken if there is no reply."""
    try:
        message = reply()
    except (TimeoutError, asyncio.CancelledError) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    if message is not None and (not isinstance(message, str) or not message):
        raise EnvironmentDefect(f"{owner}.user returned {message!r:.100}; expected the user's text, or None to end")
    return message


def compute_rewards(spec: Spec, state: EpisodeState) -> tuple[Sequence[JudgedSeat], Sequence[Work]]:
    """Return every seat with its reward, and the jobs of rewards that must be awaited.

    An exception of the author's reward is stored; it is raised after the toolkits are closed.
    """
    rewards: list[JudgedSeat] = []
    waits: list[Work] = []
    try:
        for seat in state.seats:
            attempt = state.attempt(seat)
            reward: Any
            if spec.reward_waits:
                reward = Work("reward", partial(state.play.reward, attempt), spec.conditions["reward", WorkMode.ASYNC])
            elif state.returned is not None:
                reward = state.returned[seat]
            else:
                reward = state.play.reward(attempt)
                if type(reward) is not float and isawaitable(reward):
                    reward = Work("reward", partial(_itself, reward), spec.conditions["reward", WorkMode.ASYNC])
            rewards.append((seat, attempt, reward))
            if type(reward) is Work:
                waits.append(reward)
    except BaseException as error:  # It is raised once the toolkits are closed.
        state.failure = error
        return (), ()
    return rewards, waits


def last_events(spec: Spec, state: EpisodeState, rewards: Iterable[JudgedSeat]) -> Events:
    """Return the last event of every seat, with its reward; all seats are BROKEN if a judge did not answer."""
    endings = state.endings
    assert endings is not None
    if state.broken:
        return state.broken_events()
    events: Events = {}
    try:
        if state.failure is not None:
            raise state.failure
        for seat, attempt, reward in rewards:
            if type(reward) is Work:
                reward = verdict(reward)
            total, parts = score(spec.owner, spec.parts, reward)
            ending, fault = endings[seat]
            events[seat] = state.seats[seat].last_event(ending, total, parts, attempt, fault)
    except Broken as error:  # For example, a judge's server that is gone.
        state.break_off(f"{state.where}: its reward could not be computed: {error}")
        return state.broken_events()
    return events


def _itself(awaitable: Any) -> Any:
    return awaitable


def verdict(work: Work) -> Any:
    """Return the result of an awaited reward; raise Broken if its judge did not answer."""
    if work.late:
        raise Broken(f"it took longer than deadlines['reward'] = {work.conditions.seconds:g} s")
    error = work.error
    if isinstance(error, asyncio.CancelledError):
        raise Broken(f"its judge was cancelled: {error}") from error
    if isinstance(error, TimeoutError):  # A timeout of the judge itself.
        raise Broken(f"its judge did not answer: TimeoutError: {error}") from error
    return work.outcome()
