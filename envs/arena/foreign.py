"""External environments as machines: Gymnasium's of one seat, PettingZoo's of several, AEC or Parallel.

Their observations and actions must be text. Each `reset` and `step` is a job in a thread, with a deadline. This module
decides what their interfaces leave open:

- The task index gives the seed of `reset`, which decides the problem: train takes the even seeds, eval the odd ones,
  unless the environment's own constructor takes `split`. An environment that has `tasks`, as ours do, gets
  `options={"task": index}` and the start's seed instead.
- The reward is the sum of the rewards of `step`; it is also the part "reward". The part "success" is the last
  info["success"]. Without one, it says whether the sum reaches `success_at`, or Gymnasium's `reward_threshold`. Without
  these, a sum of 1 is a success, 0 or less is not, and any other sum is a UsageError that asks for `success_at`, since
  it may be partial credit for a lost game.
- A terminated episode ends ANSWERED, a truncated one TURN_LIMIT. It ends BROKEN if `reset` fails or `step` raises
  Broken. The agent may have caused any other error in `step`, and must gain nothing by it: the episode is truncated
  without success, and the error is logged and is the last message to the agent. If `step` returns another shape than
  the API's, that is the author's defect.
- If the space of actions is a `gymnasium.spaces.Text` that does not contain a turn, the turn is not passed on: the
  agent gets an error text, up to 8 times.
- If an info has "messages" (as ours have), they are read one by one; otherwise the observation is a user's message.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gymnasium.spaces import Space, Text

from palaestra.envs.arena.foreign_success import UndecidedSuccess, success_of
from palaestra.envs.arena.foreign_text import limits, read
from palaestra.envs.core.calls import clip
from palaestra.envs.core.ending import blame
from palaestra.envs.core.machine import MachineReply
from palaestra.envs.core.state import Dialogue, Events, Seat
from palaestra.envs.running.work import Conditions, Pending, Work, WorkMode
from palaestra.episode import Attempt, Ending, Event, Start, Task
from palaestra.errors import Broken, EnvironmentDefect, UsageError

log = logging.getLogger("palaestra.envs")
SEEDS = 2**30
_MAX_REFUSED = 8
_MAX_SAID = 500
"""Maximum characters of an environment's error that the episode's record keeps."""


class SeatRecord(Dialogue):
    """Messages, turns and rewards of one seat in an episode."""

    total = 0.0
    """Sum of the rewards."""
    success: Any = None
    """Last info["success"]; None if there was none."""
    ending: Ending | None = None
    refused = 0
    """Number of turns that the action space does not contain."""


class Foreign:
    """Base class of the three kinds: it runs one job at a time in a thread, and keeps messages, rewards and endings."""

    seats: Sequence[Seat]
    inline = False

    def __init__(
        self, make: Callable[[], Any], name: str, split: str | None, success_at: float | None, timeout: float
    ) -> None:
        self._make, self.name, self.split, self.success_at = make, name, split, success_at
        self.env = make()
        env_tasks = getattr(self.env.unwrapped, "tasks", None)
        self._own_tasks = isinstance(env_tasks, Sequence)
        self.task_count = len(env_tasks) if isinstance(env_tasks, Sequence) else SEEDS
        self.aside: list[Pending] = []
        self._conditions = Conditions(WorkMode.BLOCKING, timeout)
        self._out: Pending | None = None
        """Job that runs now; None if there is none."""
        self._next: deque[tuple[str, Callable[[], Events]]] = deque()
        """Jobs that follow, with their labels."""
        self._records: dict[Seat, SeatRecord] = {}
        self._problem = Task(prompt=name)

    def open(
        self, starts: Mapping[Seat, Start], problem: Task | None = None, slots: Mapping[Seat, int] = {}
    ) -> MachineReply:
        """Begin an episode. `problem` is ignored: external environments draw their own."""
        self.discard()
        start = next(iter(starts.values()))
        if not 0 <= start.task < self.task_count:
            raise UsageError(f"task {start.task} does not exist; {self.name} has tasks 0 to {self.task_count - 1}")
        self._problem = Task(prompt=self.name, id=f"{self.split or 'train'}/{start.task}")
        self._records = {seat: SeatRecord(starts[seat], slots.get(seat, 0), []) for seat in starts}
        if self._own_tasks:
            seed, options = start.seed, {"task": start.task}
        else:
            seed, options = 2 * start.task + (self.split == "eval"), None
        return self._do("reset", partial(self._opened, start.task, seed, options))

    def act(self, seat: Seat, text: str) -> MachineReply:
        """Take a turn of a seat whose turn it is."""
        if not isinstance(text, str):
            raise UsageError(f"an action is {type(text).__name__}; expected str, the agent's whole turn")
        if seat not in self._records:
            raise UsageError(f"{self.name}: it is not the turn of {seat!r}")
        record = self._records[seat]
        record.say(text)
        record.answer = text
        space = self._action_space(seat)
        if isinstance(space, Text) and not space.contains(text):
            record.refused += 1
            if record.refused > _MAX_REFUSED:
                return self.stop(Ending.TURN_LIMIT, seat, fault=f"{seat} wrote nothing that is legal")
            return {seat: self._tell(seat, limits(space))}
        return self._do("step", partial(self._acted, seat, text))

    def resume(self, pending: Pending) -> MachineReply:
        """Continue after a reset or step that has finished or timed out."""
        if pending is not self._out:
            return {}
        self._out, work = None, pending.works[0]
        if work.late:  # A thread may still be in the environment, so it is never used again.
            self.env = None
            return self.stop(Ending.BROKEN, fault=f"{self.name}: {work.label} gave no result in {work.patience:g} s")
        if isinstance(work.error, Broken):
            return self.stop(Ending.BROKEN, fault=f"{self.name}: {work.error}")
        if work.error is not None:
            raise work.error
        events: Events = work.value
        if self._next and all(event.ending is None for event in events.values()):
            label, following = self._next.popleft()
            return self._do(label, following)
        return events

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> MachineReply:
        """End the episode from outside; the environment itself first notices this at its next `reset`."""
        if self._out is not None:
            self._next.clear()
            self._next.append(("stop", partial(self._stopped, ending, culprit, text, fault)))
            return {}
        return self._stopped(ending, culprit, text, fault)

    def discard(self) -> None:
        """Drop the running episode."""
        if self._out is not None:  # A thread is still in the environment.
            self.env = None
        self._out = None
        self._next.clear()

    def close(self) -> None:
        """Release the environment."""
        self.discard()
        if self.env is not None:
            self.env.close()

    def _do(self, label: str, what: Callable[[], Events]) -> MachineReply:
        if self._out is not None:
            self._next.append((label, what))
            return {}
        self._out = Pending([Work(label, what, self._conditions)])
        return self._out

    def _opened(self, task: int, seed: int, options: dict[str, Any] | None) -> Events:
        try:
            if self.env is None:
                self.env = self._make()
            return self._reset(seed, options)
        except EnvironmentDefect:
            raise
        except Exception as error:  # The agents have not acted yet.
            raise Broken(f"reset of task {task} failed: {type(error).__name__}: {error}") from error

    def _acted(self, seat: Seat, text: str) -> Events:
        try:
            return self._step(seat, text)
        except (EnvironmentDefect, UndecidedSuccess, Broken):
            raise
        except Exception as error:
            log.warning("%s raised in step (%s: %s)", self.name, type(error).__name__, error, exc_info=error)
            for record in self._records.values():
                record.success = 0.0
            # A message, not a fault: an episode with a fault is left out of training, and this one must count.
            error_text = f"Error: the environment failed on this turn: {type(error).__name__}: {error}"
            self._records[seat].hear(clip(error_text, _MAX_SAID))
            return self._stopped(Ending.TURN_LIMIT, seat, "", f"the environment failed on the turn of {seat}")

    def _stopped(self, ending: Ending, culprit: Seat, text: str, fault: str) -> Events:
        if culprit in self._records and text:
            self._records[culprit].say(text)
        if ending is Ending.BROKEN:
            fault = fault or f"{self.name}: closed from outside"
            return {
                seat: Event(record.slot, record.start, ending=ending, attempt=self._attempt(seat), fault=fault)
                for seat, record in self._records.items()
            }
        return {seat: self._closing(seat, *blame(seat, culprit, ending, fault)) for seat in self._records}

    # Methods that each kind defines.

    def _reset(self, seed: int, options: dict[str, Any] | None) -> Events:
        raise NotImplementedError

    def _step(self, seat: Seat, text: str) -> Events:
        raise NotImplementedError

    def _action_space(self, seat: Seat) -> Space[Any]:
        raise NotImplementedError

    # Methods that all kinds share.

    def _ask(self, seat: Seat, observation: Any, info: Mapping[str, Any]) -> Event:
        messages = info.get("messages")
        if not (isinstance(messages, tuple) and messages and all(isinstance(m, Mapping) for m in messages)):
            return self._tell(seat, read(observation))
        for message in messages:
            more = {"name": str(message["name"])} if message.get("name") else {}
            self._records[seat].hear(str(message.get("content") or ""), str(message["role"]), **more)
        return self._records[seat].event()

    def _tell(self, seat: Seat, text: str) -> Event:
        self._records[seat].hear(text or "(nothing)")
        return self._records[seat].event()

    def _note(self, seat: Seat, reward: Any, terminated: Any, truncated: Any, info: Mapping[str, Any]) -> None:
        """Record the result of a step for a seat."""
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise EnvironmentDefect(f"{self.name} gave the reward {reward!r}; expected a finite number")
        record = self._records[seat]
        record.total += value
        if "success" in info:
            record.success = info["success"]
        if (terminated or truncated) and record.ending is None:
            record.ending = Ending.ANSWERED if terminated else Ending.TURN_LIMIT

    def _over(self) -> Events:
        """Return the endings of a game that is over."""
        return {
            seat: self._closing(seat, record.ending or Ending.TURN_LIMIT, "") for seat, record in self._records.items()
        }

    def _closing(self, seat: Seat, ending: Ending, fault: str) -> Event:
        record = self._records[seat]
        if ending is not Ending.ANSWERED:
            record.answer = None
        value = success_of(self.name, record.success, record.total, self.success_at)
        parts = {"success": value, "reward": record.total}
        return record.last_event(ending, record.total, parts, self._attempt(seat), fault)

    def _attempt(self, seat: Seat) -> Attempt:
        """Return the attempt of a seat so far. Lists are copied, since a thread that hangs in a step may hold them."""
        record = self._records[seat]
        return Attempt(
            self._problem, record.start.without_prefix(record.messages), record.answer, (), record.turns, seat=seat
        )
