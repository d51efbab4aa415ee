"""The episode machine: what `ToolEnv.step` and the vector environment are both made of, and what an author writes.

`begin` opens an episode, `open_turn` reads what the agent said, `run_call` runs one call, `close_turn` records the
results, `finish` ends from outside. Left out: its tools (`equipment`), Gymnasium's face (`env`), threads and
deadlines (`runner`), several seats, token budgets (the agent's side), and any reward term that needs tokens.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from palaestra import formats
from palaestra.envs.core.calls import Prepared, clip, prepare, refused, run
from palaestra.envs.core.discovery import revealed
from palaestra.envs.core.equipment import Equipped
from palaestra.envs.core.scoring import score
from palaestra.envs.core.tasks import check_task
from palaestra.envs.core.toolkit import described
from palaestra.envs.core.verdict import Outcome, Verdict, awaited, complete, raises
from palaestra.envs.running.errands import open_in_time
from palaestra.envs.running.inbox import shown
from palaestra.episode import Attempt, Call, Ending, Event, Message, Start, Status, Task
from palaestra.errors import Broken, EnvironmentDefect, UsageError

_NO_PARTS: Mapping[str, float] = {}


class EpisodeMachine(Equipped):
    """One episode at a time, turn by turn. Authors subclass ToolEnv."""

    split: str = "train"
    _set: Sequence[Task] | None = None
    _ending: Ending | None = None
    _answer: str | None = None
    _turns: int = 0

    @property
    def tasks(self) -> Sequence[Task]:
        """The task set of this environment's split."""
        if self._set is None:
            self._set = self._make_set()
        return self._set

    @property
    def is_open(self) -> bool:
        """True while an episode runs."""
        return self._start is not None and self._ending is None

    @property
    def turns(self) -> int:
        """How many turns the agent has taken in this episode."""
        return self._turns

    @property
    def attempt(self) -> Attempt:
        """What has happened in this episode so far."""
        return Attempt(self.problem, tuple(self._messages), self._answer, tuple(self._calls), self._turns)

    def begin(self, start: Start, problem: Task | None = None, *, reseed: bool = True) -> Event:
        """Open an episode. The task index decides the problem, the seed only the environment's own randomness.

        A `problem` that is given is played in place of the task set's.
        """
        self._check_seat(start)
        self.discard()
        if reseed:
            self._reseed(start)
        self._set_out(start, problem or self._task_at(start.task))
        return open_in_time(self) if self.toolkits else self.opened(self.start_toolkits())

    def lay_out(self, start: Start, *, reseed: bool = True) -> None:
        """`begin` for those who must not wait: all but the toolkits; `start_toolkits` and `opened` follow."""
        self._check_seat(start)
        if reseed:
            self._reseed(start)
        self._set_out(start, self._task_at(start.task))

    def opened(self, fault: str) -> Event:
        """The episode's first event, once its toolkits have started; `fault` is what broke."""
        return self._broken((), fault) if fault else self._event(tuple(self._messages))

    def reopen(self, start: Start, problem: Task) -> Event:
        """Open an episode again, to run recorded outcomes through it: no task is drawn, no toolkit started."""
        self.discard()
        kits = tuple(make() for make in self.toolkits)
        self._kits, self._owners = None, {}
        self._offer(self._merged(kits))
        self._set_out(start, problem)
        return self._event(tuple(self._messages))

    def open_turn(self, text: str) -> list[Prepared]:
        """Record what the agent said and read its calls. Bad calls come out already answered; no call is the answer."""
        if not isinstance(text, str):
            raise UsageError(f"an action is {type(text).__name__}; expected str, the agent's whole turn")
        self._require_open("step")
        accepted, schemas = self._table, self._schemas
        if self._found:
            accepted = {**accepted, **self._found}
            schemas = described(tuple(accepted.values()))[0]
        parsed = formats.get(self.format).parse(text, schemas)
        self._turns += 1
        self._messages.append({"role": "assistant", "content": text})
        calls, limit = parsed.calls, self.max_turn_calls
        if not calls:
            self._answer = parsed.content
            return []
        self._answer = None
        owners = self._owners
        prepared: list[Prepared] = []
        for item in calls[:limit]:
            prepared.append(prepare(item, accepted, owners, self))
        if len(calls) > limit:
            prepared.append(refused("", {}, f"only {limit} calls are run in a turn; the rest were not"))
        return prepared

    def run_call(self, prepared: Prepared) -> Call:
        """Run one call of a plain or blocking tool, here."""
        return run(prepared)

    def close_turn(self, calls: Sequence[Call]) -> Event:
        """Record the results, in call order. Without calls, or with a terminal one, the turn was the answer."""
        return self._waited(self.closing(calls))

    def closing(self, calls: Sequence[Call]) -> Event | Verdict:
        """`close_turn` for those who must not wait: a Verdict where the reward has to be awaited."""
        if self._answer is not None:
            return self._end(Ending.ANSWERED, ())
        room = self.max_result_chars
        told: list[Message] = []
        broken: Call | None = None
        final: Call | None = None
        for call in calls:
            told.append({"role": "tool", "name": call.name, "content": clip(call.text, room)})
            if call.status is Status.OK:
                if final is None and call.name in self._terminal:
                    final = call
            elif call.status is Status.BROKEN and broken is None:
                broken = call
        self._messages += told
        self._calls += calls
        messages = tuple(told)
        if broken is not None:
            return self._end(Ending.BROKEN, messages, f"{self._where()}: {broken.text}")
        if final is not None:
            self._answer = final.text
            return self._end(Ending.ANSWERED, messages)
        if self._turns >= self.max_turns:
            return self._end(Ending.TURN_LIMIT, messages)
        if self._hidden:
            self._found = {**self._found, **revealed(calls, self._hidden)}
        return self._event(messages)

    def finish(self, ending: Ending, text: str = "", fault: str = "") -> Event:
        """Close the episode from outside. `text` is what the agent had said: recorded, never taken for an answer."""
        return self._waited(self.finishing(ending, text, fault))

    def finishing(self, ending: Ending, text: str = "", fault: str = "") -> Event | Verdict:
        """`finish` for those who must not wait."""
        self._require_open("finish")
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with step or send")
        self._answer = None
        if text:
            self._turns += 1
            self._messages.append({"role": "assistant", "content": text})
        return self._end(Ending(ending), (), fault or f"{self._where()}: closed from outside")

    def judge(self, attempt: Attempt) -> tuple[float, dict[str, float]]:
        """The reward of any attempt at `problem`, and its parts; Broken where it could not be computed."""
        return score(type(self).__name__, self.parts, complete(self.reward(attempt), self.reward_timeout))

    def discard(self) -> None:
        """Drop a running episode without a reward."""
        if self.is_open:
            self._ending = Ending.BROKEN
            self._close_kits()

    def late(self, prepared: Prepared) -> str:
        """What to say of a call that passed our deadline."""
        seconds = prepared.tool.timeout if prepared.tool else 0.0
        return f"{self._where()}: {prepared.name}({shown(prepared.arguments)}) gave no result in {seconds:g} s"

    # Inside.

    def _make_set(self) -> Sequence[Task]:
        found = self.task_set(self.split)
        if not len(found):
            raise EnvironmentDefect(
                f"{type(self).__name__}.task_set({self.split!r}) is empty; expected at least one Task"
            )
        if isinstance(found, list | tuple):  # Named once, and not again in every episode.
            return [check_task(type(self).__name__, task, f"{self.split}/{at}") for at, task in enumerate(found)]
        return found

    def _reseed(self, start: Start) -> None:
        """The generator is made when it is first asked for: most environments never do."""
        self._np_random, self._np_random_seed = None, start.seed

    def _check_seat(self, start: Start) -> None:
        if start.seat is not None:
            raise UsageError(f"{self._where()} has one seat; expected Start(seat=None), found seat={start.seat!r}")

    def _set_out(self, start: Start, problem: Task) -> None:
        """An episode before anything has happened in it."""
        self.problem = problem
        self._start, self._ending, self._answer, self._turns = start, None, None, 0
        if self._found:
            self._found = {}
        self._calls: list[Call] = []
        asked: list[Message] = [{"role": "user", "content": problem.prompt}, *start.prefix]
        self._messages = [{"role": "system", "content": self.system}, *asked] if self.system else asked

    def _task_at(self, index: int) -> Task:
        tasks = self.tasks
        if not 0 <= index < len(tasks):
            raise UsageError(f"task {index} does not exist; {self._where()} has tasks 0 to {len(tasks) - 1}")
        return check_task(type(self).__name__, tasks[index], f"{self.split}/{index}")

    def _event(self, messages: tuple[Message, ...]) -> Event:
        assert self._start is not None
        return Event(self.slot, self._start, messages, self._schemas, None, None, _NO_PARTS)

    def _end(self, ending: Ending, messages: tuple[Message, ...], fault: str = "") -> Event | Verdict:
        """Score what exists while the toolkits still live, then close them."""
        if ending is Ending.BROKEN:
            return self._broken(messages, fault)
        attempt, self._ending = self.attempt, ending
        try:
            returned = self.reward(attempt)
        except BaseException as error:  # Raised again once the toolkits are closed; only `Broken` ends the episode.
            return self._judged(ending, messages, attempt, raises(error))
        if awaited(returned):
            return Verdict(returned, self.reward_timeout, partial(self._judged, ending, messages, attempt))
        return self._judged(ending, messages, attempt, lambda: returned)

    def _judged(self, ending: Ending, messages: tuple[Message, ...], attempt: Attempt, outcome: Outcome) -> Event:
        """The last event, once the reward is known."""
        assert self._start is not None
        try:
            reward, parts = score(type(self).__name__, self.parts, outcome())
        except Broken as error:  # A judge's server that is gone, say.
            return self._broken(messages, f"{self._where()}: its reward could not be computed: {error}")
        finally:
            self._close_kits()
        return Event(self.slot, self._start, messages, self._schemas, ending, reward, parts, attempt)

    def _broken(self, messages: tuple[Message, ...], fault: str) -> Event:
        """The last event of an episode that the infrastructure failed."""
        assert self._start is not None
        if self._ending is None:
            self._close_kits()
        self._ending = Ending.BROKEN
        return Event(self.slot, self._start, messages, self._schemas, Ending.BROKEN, None, {}, self.attempt, fault)

    def _waited(self, found: Event | Verdict) -> Event:
        if isinstance(found, Event):
            return found
        in_time = False
        try:
            in_time = found.wait(self.slot)
        finally:
            if not in_time:  # What is late may still use the toolkits.
                self.abandon()
        return found.event()

    def _require_open(self, verb: str) -> None:
        if self._start is None:
            raise UsageError(f"{verb} before an episode has begun; call reset (or begin) first")
        if self._ending is not None:
            raise UsageError(f"{verb} on an episode that has ended ({self._ending}); call reset (or begin) first")
