"""The episode machine: plays one episode after another, of one seat or of several, and never waits.

    FREE -open-> [start of toolkits] -> ASKED -act-> [calls] -> ASKED ...           [ ] = a Pending; skipped where empty
                                          |  answer, Done, turn limit, stop, end of rounds
                                          v
                                       [final state] -> [verdicts and closings] -> OVER        a game, after each round:
    whatever is late, and Broken: OVER with BROKEN; toolkits go aside                          [world] -> rounds

Each step gives a Reply: events by seat, or a Pending, whose works somebody runs before `resume`. What only computes is
done in place. Left out: running works (`envs.running`), slots and seats' places (`envs.arena`), token budgets (the
agent's side), and any reward term that needs tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.envs.core import ending as outcome
from palaestra.envs.core.calls import Prepared, clip, prepare, refused
from palaestra.envs.core.course import Course, Finished
from palaestra.envs.core.ending import ANSWERED, UNANSWERED, judged, last_events
from palaestra.envs.core.kits import Kits, is_permanent, start_fault
from palaestra.envs.core.spec import Spec
from palaestra.envs.core.state import NOTHING, Dialogue, Events, Expected, Seat, State, episode_of, not_open
from palaestra.envs.running.work import Pending, Work
from palaestra.episode import Call, Ending, Event, Message, Start, Status, Task
from palaestra.errors import Broken, UsageError

Reply = Events | Pending


class Machine:
    """One episode at a time. Touched by one thread only."""

    __slots__ = ("aside", "eager", "kits", "spec", "state")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.state: State | None = None
        """The episode that runs, or the last one."""
        self.kits = Kits(spec)
        self.aside: list[Pending] = []
        """Closings that nobody waits for: whoever drives the machine runs them and forgets them."""
        self.eager = True
        """False where everything is handed out, also what only computes."""

    @property
    def seats(self) -> Sequence[Seat]:
        """Who plays; None for the one seat that needs no name."""
        return self.spec.seats

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""
        return len(self.spec.tasks)

    @property
    def inline(self) -> bool:
        """True where no tool and no reward waits: order then costs nothing."""
        return self.spec.inline and not self.spec.reward_waits

    @property
    def is_open(self) -> bool:
        """True while an episode runs."""
        return self.state is not None and self.state.endings is None

    @property
    def asked(self) -> Events:
        """Who is asked now, each with all that came after its last turn."""
        return outcome.asked_events(self.spec, self.state) if self.is_open and self.state is not None else {}

    def open(
        self, starts: Mapping[Seat, Start], problem: Task | None = None, slots: Mapping[Seat, int] = NOTHING
    ) -> Reply:
        """Begin an episode; one that runs is discarded. The task index decides the problem, the seed only the
        environment's own randomness. A `problem` that is given is played in place of the task set's."""
        spec = self.spec
        start = starts.get(None)
        if start is None or start.seat is not None or not spec.solo:
            start = spec.start_of(starts)
        if problem is None:
            problem = spec.task(start.task)
        if self.state is not None:
            self.discard()
        seats: dict[Seat, Dialogue] = {}
        for seat in spec.seats:
            system = spec.system[seat]
            messages: list[Message] = [{"role": "system", "content": system}] if system else []
            if seat is None:
                messages.append({"role": "user", "content": problem.prompt})
                messages += start.prefix
            seats[seat] = Dialogue(starts[seat], slots.get(seat, 0), messages)
        state = self.state = State(problem, start.seed, episode_of(spec.author, problem, start.seed), seats)
        if not spec.has_kits:
            return self._begun(state)
        try:
            state.owners = self.kits.owners()
        except Exception as error:
            return self._not_started(state, error)
        return self._start(state, 0)

    def act(self, seat: Seat, text: str) -> Reply:
        """Take a turn of a seat that is asked. A turn without a call is its answer."""
        state = self.state
        if state is None or state.endings is not None:
            raise not_open(state, "step")
        if not isinstance(text, str):
            raise UsageError(f"an action is {type(text).__name__}; expected str, the agent's whole turn")
        spec, one = self.spec, state.seats.get(seat)
        if one is None or not one.left or one.busy:
            raise UsageError(f"{spec.name}: it is not the turn of {seat!r}")
        offer = spec.offers[seat]
        parsed = spec.parse(text, offer.schemas)
        one.turns += 1
        one.left -= 1
        one.messages.append({"role": "assistant", "content": text})
        one.heard = len(one.messages)
        written = parsed.calls
        if not written:
            return self._replied(state, seat, one, parsed.content)
        owners, play, table, limit = state.owners.get(seat, NOTHING), state.play, offer.table, spec.max_turn_calls
        items: list[Any] = []
        works: list[Work] = []
        for item in written[:limit]:
            ready = prepare(item, table, owners, play, self.eager)
            if type(ready) is Prepared:
                works.append(ready.work())
            items.append(ready)
        if len(written) > limit:
            items.append(refused("", NOTHING, f"only {limit} calls are run in a turn; the rest were not"))
        if works:
            one.busy = True
            return state.wait(works, "calls", seat, items)
        return self._heard(state, seat, one, items)

    def resume(self, pending: Pending) -> Reply:
        """Go on from works that are all over or late. Of an episode that is no longer played nothing comes."""
        expected: Expected = pending.about
        state, role = expected.state, expected.role
        if state is None or state is not self.state:
            return {}
        state.out -= 1
        if role == "end":
            found, closings = expected.items
            self.kits.closed(self._where(), closings)
            return last_events(self.spec, state, found)
        if state.endings is not None and role != "final":
            return {}
        if (late := pending.late) is not None:
            what = "a toolkit did not start: " if role == "start" else ""
            return self._lost(state, f"{self._where()}: {what}{late} gave no result in {late.conditions.seconds:g} s")
        if role == "calls":
            one = state.seats[expected.seat]
            one.busy = False
            works = iter(pending.works)
            calls = [item.call(next(works)) if type(item) is Prepared else item for item in expected.items]
            return self._heard(state, expected.seat, one, calls)
        if role == "start":
            error = pending.works[0].error
            return self._not_started(state, error) if error else self._start(state, expected.items + 1)
        try:
            declared = outcome.merged_final(self.spec.owner, expected.items, [work.outcome() for work in pending.works])
        except Broken as error:
            return self._break(state, f"{self._where()}: {error}")
        return self._seen(state, role, declared)

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> Reply:
        """End the episode from outside; what the culprit had begun to say is recorded, never taken for an answer.

        The culprit's ending is this one; the others' are not their doing. Where calls run, it ends after them.
        """
        state = self.state
        if state is None or (state.endings is not None and not state.out):
            raise not_open(state, "finish")
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with step or send")
        if state.out:  # Of several who end it the first counts; where its end is under way already, nobody does.
            state.stopping = state.stopping or (ending, culprit, text, fault)
            return {}
        if culprit in state.seats:
            one = state.seats[culprit]
            one.answer = None
            if text:
                one.say(text)
        if ending is Ending.BROKEN:
            return self._break(state, fault or f"{self._where()}: closed from outside")
        return self._end(state, outcome.stopped(self.spec, state, Ending(ending), culprit, fault))

    def discard(self) -> None:
        """Drop what runs without a reward. Toolkits that may wait, or that may be in use, close aside."""
        state, self.state = self.state, None
        if state is None:
            return
        if not state.closed or state.out:
            self.give_kits_up(in_use=bool(state.out), closing=state.closed)
        if state.course is not None:
            state.course.close()

    close = discard
    """Nothing is kept beyond an episode but toolkits that are closed."""

    # Inside: the way through an episode.

    def _start(self, state: State, place: int) -> Reply:
        """Start toolkits one after the other, for they draw from one generator."""
        for at in range(place, len(self.kits.make())):
            try:
                work = self.kits.start(at, state, lambda: self.state is not state or bool(state.endings), self.eager)
            except Exception as error:
                return self._not_started(state, error)
            if work is not None:
                return state.wait([work], "start", None, at)
        return self._begun(state)

    def _not_started(self, state: State, error: BaseException) -> Reply:
        """The agent has not acted yet: whatever failed, it was not the agent. What cannot heal is raised."""
        if is_permanent(error):
            self.discard()
            raise error
        return self._break(state, f"{self._where()}: {start_fault(error)}")

    def _begun(self, state: State) -> Reply:
        """The first events, once toolkits have started."""
        if state.stopping is not None:
            return self.stop(*state.stopping)
        spec = self.spec
        if spec.solo:
            one = state.seats[None]
            one.left, one.heard = spec.max_turns, len(one.messages)
            schemas = spec.offers[None].schemas
            return {None: Event(one.slot, one.start, tuple(one.messages), schemas, None, None, NOTHING)}
        start = next(iter(state.seats.values())).start
        state.course = Course(state.play, state.problem, state.seed, start.task)
        return self._ask(state)

    def _heard(self, state: State, seat: Seat, one: Dialogue, calls: Sequence[Call]) -> Reply:
        """Record the results of a turn, in call order."""
        room = self.spec.max_result_chars
        broken: Call | None = None
        final: Call | None = None
        messages = one.messages
        for call in calls:
            text = call.text
            if len(text) > room or not text.isascii():
                text = clip(text, room)
            messages.append({"role": "tool", "name": call.name, "content": text})
            if call.answer is not None and final is None:
                final = call
            elif call.status is Status.BROKEN and broken is None:
                broken = call
        one.calls += calls
        if broken is not None:
            return self._break(state, f"{self._where()}: {broken.text}")
        if state.stopping is not None:
            return {} if state.out else self.stop(*state.stopping)
        if final is not None or not one.left:
            return self._replied(state, seat, one, final.answer if final else None)
        new, one.heard = tuple(messages[one.heard :]), len(messages)
        return {seat: Event(one.slot, one.start, new, self.spec.offers[seat].schemas, None, None, NOTHING)}

    def _replied(self, state: State, seat: Seat, one: Dialogue, reply: str | None) -> Reply:
        """A seat has answered, or has used up its turns."""
        one.answer = reply
        one.left = 0
        if state.course is None:
            return self._end(state, UNANSWERED if reply is None else ANSWERED)
        state.course.replies[str(seat)] = reply
        for other in state.seats.values():
            if other.left or other.busy:
                return {}
        return self._declared(state, "world") or self._ask(state)

    def _ask(self, state: State, world: Mapping[str, Any] | None = None) -> Reply:
        """Run the rounds of a game to the next question, or to the end."""
        assert state.course is not None
        try:
            asks = state.course.ask(world)
        except Finished as end:
            return self._over(state, end.args[0])
        except Broken as error:  # A judge's server that is gone, say.
            return self._break(state, f"{self._where()}: {error}")
        for seat, text in asks.items():
            one = state.seats[seat]
            one.hear(text)
            one.left = self.spec.max_turns
        offers = self.spec.offers
        return {seat: state.seats[seat].event(offers[seat].schemas) for seat in asks}

    def _over(self, state: State, returned: Any) -> Reply:
        """The rounds of a game have run their course. What toolkits declare was taken after the last one."""
        state.endings = outcome.finished(self.spec, state, returned)
        return self._judge(state)

    def _end(self, state: State, endings: Mapping[Seat, tuple[Ending, str]]) -> Reply:
        """The episode is over; what it declares of its state is taken before it is judged."""
        state.endings = endings
        if self.kits.made or self.spec.own_final:
            return self._declared(state, "final") or self._judge(state)
        return self._judge(state)

    def _break(self, state: State, fault: str) -> Reply:
        """The infrastructure failed."""
        if state.out:  # Calls of other seats still use the toolkits.
            return self._lost(state, fault)
        state.break_off(fault)
        return self._judge(state)

    def _declared(self, state: State, role: str) -> Reply | None:
        """Take what the environment and its toolkits declare of their state; None where none declares any."""
        takers: list[tuple[Seat, Any]] = [(None, state.play)] if self.spec.own_final else []
        takers += self.kits.declaring()
        if not takers:
            return None
        if works := self.kits.finals(takers, self.eager):
            return state.wait(works, role, None, takers)
        try:
            found = outcome.merged_final(self.spec.owner, takers, [one.final() for _, one in takers])
        except Broken as error:
            return self._break(state, f"{self._where()}: {error}")
        return self._seen(state, role, found)

    def _seen(self, state: State, role: str, found: Mapping[str, Any]) -> Reply:
        state.final = found
        if role != "world":
            return self._judge(state)
        return self._ask(state, found) if state.stopping is None else self.stop(*state.stopping)

    def _judge(self, state: State) -> Reply:
        """Compute the rewards, and close the toolkits: a reward sees the attempt alone, so they close beside it."""
        found, waits = ((), ()) if state.broken else judged(self.spec, state)
        closings: Sequence[Work] = self.kits.close(self.eager) if self.kits.made else ()
        state.closed = True
        if waits or closings:
            return state.wait([*waits, *closings], "end", None, (found, closings))
        return last_events(self.spec, state, found)

    def _lost(self, state: State, fault: str) -> Events:
        """Something runs on, and may still use the toolkits: they close aside, and new ones are made."""
        state.break_off(fault)
        state.closed = True
        self.give_kits_up(in_use=True)
        return outcome.broken_events(self.spec, state)

    def give_kits_up(self, in_use: bool, closing: bool = False) -> None:
        """Close the toolkits of an episode that nobody waits for, aside where that takes time."""
        if works := self.kits.give_up(in_use, closing):
            self.aside.append(Pending(works, Expected("closing", None)))

    def _where(self) -> str:
        assert self.state is not None
        return f"{self.spec.name} slot {self.state.slot}"
