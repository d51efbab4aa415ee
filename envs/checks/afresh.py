"""Compute rewards again from records, in a new process with a new object of the author's class.

A record holds no environment, so the reward can read nothing but the attempt. If a game has no `reward`, its rounds run
again on the recorded turns. Left out: what a difference means (`reward_checks`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from palaestra.authorship import foreign_line
from palaestra.envs.arena.opening import make_author
from palaestra.envs.checks.findings import Skipped
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.course import Course, Finished
from palaestra.envs.core.scoring import score
from palaestra.envs.core.state import EpisodeState, Seat, episode_of
from palaestra.envs.records.rescore import complete
from palaestra.episode import Episode, Event
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.plain import from_plain, to_plain
from palaestra.record import Record, from_line, to_line

_SECONDS = 120.0


class RecomputedReward(NamedTuple):
    """Reward that the new process computed for a recorded episode."""

    parts: Mapping[str, float]
    part_names: Sequence[str] = ()
    """Names of the parts that the author's code returned."""
    error: str = ""
    missing: str = ""
    """Name of the attribute of the author's object that the reward read and that did not exist; "" for none."""


def recorded(env_id: str, seat: Seat, event: Event, state: EpisodeState | None) -> dict[str, Any]:
    """Return an episode of a seat as plain data; of a game, `state` has its rounds."""
    assert event.attempt is not None
    assert event.ending is not None
    start, course = replace(event.start, seat=seat), state.course if state else None
    episode = Episode(start, event.attempt, (), event.ending, event.reward, event.parts, event.fault)
    return {
        "line": to_line(Record(env_id, episode)).decode("utf-8", "surrogatepass"),
        "said": to_plain([past.replies for past in course.rounds if past.replies] if course else []),
        "worlds": to_plain(course.worlds if course else []),
    }


def recomputed(entry_point: str, options: Mapping[str, Any], episodes: Sequence[Any]) -> list[RecomputedReward]:
    """Compute the rewards of recorded episodes in a new process."""
    if entry_point.startswith("__main__:"):
        raise Skipped("its class is in the program that runs, where no other process finds it; put it into a module")
    try:
        request = {"entry_point": entry_point, "options": to_plain(options, "options"), "episodes": episodes}
    except UsageError as error:
        raise Skipped(str(error)) from error
    done = subprocess.run(
        [sys.executable, "-P", "-m", __spec__.name], input=json.dumps(request), capture_output=True, text=True,
        timeout=_SECONDS, env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        raise EnvironmentDefect(f"its rewards cannot be computed in a fresh process: {last}")
    return [RecomputedReward(**path) for path in json.loads(done.stdout)]


def _again(author: ToolEnv, episode: Mapping[str, Any]) -> RecomputedReward:
    """Compute the reward of one episode; this runs in the new process."""
    record = from_line(episode["line"].encode("utf-8", "surrogatepass")).episode
    try:
        if type(author).reward is ToolEnv.reward:
            returned = _play_rounds(author, record, from_plain(episode["said"]), from_plain(episode["worlds"]))
        else:
            returned = complete(author.reward(record.attempt), _SECONDS)
        part_names = list(returned) if isinstance(returned, Mapping) else ["success"]
        return RecomputedReward(score(type(author).__name__, author.parts, returned)[1], part_names)
    except Exception as error:  # Whatever the author's code raises is reported.
        missing = error.name if isinstance(error, AttributeError) and isinstance(error.obj, type(author)) else ""
        place = foreign_line(error)
        return RecomputedReward(
            {}, (), f"{type(error).__name__}: {error}" + (f" ({place})" if place else ""), missing or ""
        )


def _play_rounds(author: ToolEnv, record: Episode, replies: Sequence[Any], worlds: Sequence[Any]) -> Any:
    start, task = record.start, record.attempt.task
    course = Course(episode_of(author, task, start.seed), task, start.seed, start.task)
    try:
        course.ask()
        for number, round_replies in enumerate(replies):
            course.replies = dict(round_replies)
            course.ask(worlds[number] if worlds else None)
    except Finished as end:
        return end.args[0][start.seat]
    raise EnvironmentDefect("its rounds go on where they had ended when they were played")


def main() -> None:
    """Read episodes from stdin, and write their rewards to stdout. Output of the author's code goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    author = make_author(request["entry_point"], from_plain(request["options"]))
    with out:
        json.dump([_again(author, episode)._asdict() for episode in request["episodes"]], out)


if __name__ == "__main__":
    main()
