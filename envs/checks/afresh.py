"""Rewards computed again from records, in a fresh process with a fresh object of the author's.

A record holds no environment: what a reward reads beside its attempt is not there. The rounds of a game that has no
`reward` are told again what was said. Left out: what a difference means (`reward_checks`).
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any, NamedTuple

from palaestra.authorship import foreign_line
from palaestra.envs.arena.opening import made
from palaestra.envs.checks.findings import Skipped
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.course import Course, Finished
from palaestra.envs.core.scoring import score
from palaestra.envs.core.state import Seat, State, episode_of
from palaestra.episode import Episode, Event
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.plain import from_plain, to_plain
from palaestra.record import Record, from_line, to_line

_SECONDS = 120.0


class Again(NamedTuple):
    """What the reward of a recorded episode comes to."""

    parts: Mapping[str, float]
    named: Sequence[str] = ()
    """The parts that the author's code returned."""
    error: str = ""
    missing: str = ""
    """What it read of the author's object, and was not there."""


def recorded(env_id: str, seat: Seat, event: Event, state: State) -> dict[str, Any]:
    """An episode of a seat as plain data."""
    assert event.attempt is not None
    assert event.ending is not None
    start, course = replace(event.start, seat=seat), state.course
    episode = Episode(start, event.attempt, (), event.ending, event.reward, event.parts, event.fault)
    return {
        "line": to_line(Record(env_id, episode)).decode("utf-8", "surrogatepass"),
        "said": to_plain(course.said if course else []),
        "worlds": to_plain(course.worlds if course else []),
    }


def recomputed(entry_point: str, options: Mapping[str, Any], episodes: Sequence[Any]) -> list[Again]:
    """What the rewards of these come to in a fresh process."""
    if entry_point.startswith("__main__:"):
        raise Skipped("its class is in the program that runs, where no other process finds it; put it into a module")
    try:
        given = {"entry_point": entry_point, "options": to_plain(options, "options"), "episodes": episodes}
    except UsageError as error:
        raise Skipped(str(error)) from error
    done = subprocess.run(
        [sys.executable, "-P", "-m", __spec__.name], input=json.dumps(given), capture_output=True, text=True,
        timeout=_SECONDS, env={**os.environ, "PYTHONPATH": os.pathsep.join(one or os.getcwd() for one in sys.path)},
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        raise EnvironmentDefect(f"its rewards cannot be computed in a fresh process: {last}")
    return [Again(**one) for one in json.loads(done.stdout)]


def _again(author: ToolEnv, episode: Mapping[str, Any]) -> Again:
    """In the fresh process: one episode."""
    record = from_line(episode["line"].encode("utf-8", "surrogatepass")).episode
    try:
        if type(author).reward is ToolEnv.reward:
            returned = _told_again(author, record, from_plain(episode["said"]), from_plain(episode["worlds"]))
        else:
            returned = _judged(author, record)
        named = list(returned) if isinstance(returned, Mapping) else ["success"]
        return Again(score(type(author).__name__, author.parts, returned)[1], named)
    except Exception as error:  # Whatever the author's code raises, it is told.
        missing = error.name if isinstance(error, AttributeError) and isinstance(error.obj, type(author)) else ""
        place = foreign_line(error)
        return Again({}, (), f"{type(error).__name__}: {error}" + (f" ({place})" if place else ""), missing or "")


def _judged(author: ToolEnv, record: Episode) -> Any:
    judged: Any = author.reward(record.attempt)

    async def waited() -> Any:
        return await judged

    return asyncio.run(waited()) if isawaitable(judged) else judged


def _told_again(author: ToolEnv, record: Episode, said: Sequence[Any], worlds: Sequence[Any]) -> Any:
    start, task = record.start, record.attempt.task
    course = Course(episode_of(author, task, start.seed), task, start.seed, start.task)
    try:
        course.ask()
        for number, replies in enumerate(said):
            course.replies = dict(replies)
            course.ask(worlds[number] if worlds else None)
    except Finished as end:
        return end.args[0][start.seat]
    raise EnvironmentDefect("its rounds go on where they had ended when they were played")


def main() -> None:
    """Read episodes, write what their rewards come to. What the author's code prints goes elsewhere."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    given = json.load(sys.stdin)
    author = made(given["entry_point"], from_plain(given["options"]))
    with out:
        json.dump([_again(author, episode)._asdict() for episode in given["episodes"]], out)


if __name__ == "__main__":
    main()
