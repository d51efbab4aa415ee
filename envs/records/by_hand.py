"""One episode stepped by hand: turns can be taken back, looked into and recorded.

Taking a turn back restores the snapshot that was taken before it. Where there is none, because a toolkit has no
snapshots or the turns were recorded ones, the episode is opened again and led by outcomes to where it stood: no tool
runs twice, but what earlier calls had left inside the environment or a toolkit (a variable, a page) is gone then;
`rebuilt` says so. Left out: asking somebody for turns, and printing (`palaestra play`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.envs.core import branches
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.env import ToolEnv
from palaestra.envs.records.replay import Stage, take_turn
from palaestra.episode import Call, Ending, Episode, Event
from palaestra.errors import Broken, UsageError
from palaestra.record import Record


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said, and what came of its calls."""

    text: str
    calls: tuple[Call, ...]


class ByHand:
    """An environment whose episode somebody steps."""

    def __init__(self, env: ToolEnv, env_id: str, options: Mapping[str, Any]) -> None:
        self.env, self.env_id, self.options = env, env_id, options
        self.turns: list[Turn] = []
        self.event: Event
        """The latest: what is new, or how it ended."""
        self.rebuilt = False
        """Whether toolkits were started anew when turns were taken back last, so that they hold nothing."""
        self._stands: list[Snapshot | None] = []
        """Where the episode stood before each turn."""

    def open(self, seed: int | None = None, task: int | None = None) -> Event:
        """Begin an episode; the task is drawn where none is given."""
        self.turns, self._stands = [], []
        return self._opened(self.env.begin_drawn(seed, task))

    def load(self, record: Record) -> Event:
        """Stand where a recorded episode stood before its last turn was taken, or at its end if that was not a turn."""
        episode = record.episode
        event = self._opened(self.env.begin(episode.start, episode.attempt.task))
        said = [m["content"] for m in episode.attempt.messages[len(event.messages) :] if m["role"] == "assistant"]
        if episode.ending in (Ending.LENGTH_LIMIT, Ending.BROKEN) and episode.attempt.messages[-1]["role"] != "tool":
            said = said[:-1]  # What was cut off was never a turn.
        self.turns = []
        outcomes = iter(episode.attempt.calls)
        for text in said:
            before = len(self.env.attempt.calls)
            event = take_turn(self.env, text, outcomes)
            self.turns.append(Turn(text, self.env.attempt.calls[before:]))
        self._stands = [None] * len(self.turns)
        self.event = event
        return event

    def say(self, text: str) -> Event:
        """Take a turn, with real tools. One whose reward raises is taken all the same, so that it can be taken back."""
        before, stand = self.env.attempt, self._stand()
        try:
            self.event = self.env.take(text)
        finally:
            if self.env.attempt.turns > before.turns:
                self._stands.append(stand)
                self.turns.append(Turn(text, self.env.attempt.calls[len(before.calls) :]))
        return self.event

    def undo(self, count: int = 1) -> Event:
        """Take turns back."""
        if not 0 < count <= len(self.turns):
            raise UsageError(f"{count} turns cannot be taken back; {len(self.turns)} have been taken")
        left = len(self.turns) - count
        stand, kept = self._stands[left], self.turns[:left]
        if stand is not None:
            self.event = branches.put(self.env, stand)
        else:
            event = self._opened(self.env.begin(self.event.start, self.env.problem))
            self.event = _led(self.env, kept) or event
        self.rebuilt = stand is None and bool(self.env.toolkits)
        self.turns, self._stands = kept, self._stands[:left]
        return self.event

    def reward(self) -> tuple[float, Mapping[str, float]]:
        """The reward and its parts; of an open episode, what it would get if it were closed now."""
        if self.event.ending is Ending.BROKEN:
            raise UsageError(f"a BROKEN episode has no reward: {self.event.fault}")
        if self.event.reward is not None:
            return self.event.reward, self.event.parts
        return self.env.judge(self.env.attempt)

    def record(self) -> Record:
        """The episode as a record; one that is still open as if it had been closed here."""
        event = self.event
        if event.ending is None:
            twin = Stage().env(Record(self.env_id, self._episode(event), self.options))
            twin.reopen(event.start, self.env.problem)
            _led(twin, self.turns)
            event = twin.finish(Ending.LENGTH_LIMIT)
        return Record(self.env_id, self._episode(event), self.options, agent="by hand")

    def _opened(self, event: Event) -> Event:
        self.event = event
        if event.ending is not None:
            raise Broken(event.fault)
        return event

    def _stand(self) -> Snapshot | None:
        try:
            return self.env.snapshot()
        except UsageError:  # It has none, or nothing runs, which the turn will say.
            return None

    def _episode(self, event: Event) -> Episode:
        ending = event.ending or Ending.LENGTH_LIMIT
        attempt = event.attempt or self.env.attempt
        return Episode(event.start, attempt, (), ending, event.reward, event.parts, event.fault, event.tools)


def _led(env: ToolEnv, turns: Iterable[Turn]) -> Event | None:
    """Lead an episode that has just been opened through these turns."""
    event = None
    for turn in turns:
        event = take_turn(env, turn.text, iter(turn.calls))
    return event
