"""Machine: plays one episode after another, of one seat or of several, and never waits for a job.

    FREE -open-> [start of toolkits] -> ASKED -act-> [calls, or user] -> ASKED ...  [ ] = a Pending; skipped where empty
                                          |  answer, Done, turn limit, stop, end of rounds
                                          v
                                       [final state] -> [verdicts and closings] -> OVER        a game, after each round:
    any late job, and Broken: OVER with BROKEN; cleanup in `aside`                             [world] -> rounds

Each step returns a MachineReply: events by seat, or a Pending, whose jobs must run before `resume`. Work that only
computes is done in place. Left out: running jobs (`envs.running`), slots of seats (`envs.arena`), token budgets (the
agent's side), and reward terms that need tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.envs.core import ending as outcome
from palaestra.envs.core.calls import Prepared, prepare_turn
from palaestra.envs.core.course import Course, Finished
from palaestra.envs.core.kits import Kits, is_permanent, start_fault
from palaestra.envs.core.spec import Spec
from palaestra.envs.core.state import NOTHING, Dialogue, EpisodeState, Events, Expected, Seat, not_open
from palaestra.envs.running.work import Pending, Work
from palaestra.episode import Call, Ending, Start, Task
from palaestra.errors import Broken, UsageError

MachineReply = Events | Pending


class Machine:
    """Plays the episodes of one author's object, one at a time. Only one thread may use it."""

    __slots__ = ("aside", "eager", "inline", "kits", "seats", "spec", "state")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.state: EpisodeState | None = None
        """State of the running episode, or of the last one."""
        self.kits = Kits(spec)
        self.aside: list[Pending] = []
        """Cleanup jobs that nobody awaits. The driver of the machine must run them."""
        self.eager = True
        """False to hand out all work as jobs, also what only computes."""
        self.seats: Sequence[Seat] = spec.seats
        """Names of the seats; None for the one seat that needs no name."""
        self.inline = spec.inline and not (spec.reward_waits or spec.user_waits)
        """True if no tool, user or reward waits: a fixed order then costs nothing."""

    @property
    def task_count(self) -> int:
        """Number of tasks that a Start may index."""
        return len(self.spec.tasks)

    @property
    def is_open(self) -> bool:
        """True while an episode runs."""
        return self.state is not None and self.state.endings is None

    @property
    def pending_events(self) -> Events:
        """One event for each seat whose turn it is, with the messages since its last turn."""
        return {} if self.state is None else self.state.pending_events()

    def open(
        self, starts: Mapping[Seat, Start], problem: Task | None = None, slots: Mapping[Seat, int] = NOTHING
    ) -> MachineReply:
        """Begin an episode; a running one is discarded. The task index decides the problem, the seed only the
        environment's own randomness. A given `problem` replaces that of the task set."""
        spec = self.spec
        start = spec.start_of(starts)
        if problem is None:
            problem = spec.task(start.task)
        if self.state is not None:
            self.discard()
        state = self.state = spec.new_state(starts, slots, problem)
        return self._start(state, 0) if spec.has_kits else self._first_events(state)

    def act(self, seat: Seat, text: str) -> MachineReply:
        """Take a turn of a seat whose turn it is. A turn without a call is its answer, unless a user replies."""
        state = self.state
        if state is None or state.endings is not None:
            raise not_open(state, "step")
        if not isinstance(text, str):
            raise UsageError(f"an action is {type(text).__name__}; expected str, the agent's whole turn")
        spec, dialogue = self.spec, state.seats.get(seat)
        if dialogue is None or not dialogue.left or dialogue.busy:
            raise UsageError(f"{spec.name}: it is not the turn of {seat!r}")
        parsed = spec.parse(text, dialogue.schemas)
        dialogue.turns += 1
        dialogue.left -= 1
        dialogue.messages.append({"role": "assistant", "content": str(text)})
        dialogue.delivered = len(dialogue.messages)
        if not (written := parsed.calls):
            if not spec.has_user:
                return self._replied(state, seat, dialogue, parsed.content)
            if isinstance(reply := outcome.user_reply(spec, state, seat, text := parsed.content, self.eager), Work):
                return state.wait([reply], "user", seat, text)
            return self._user_replied(state, seat, text, reply)
        owners, table = state.owners.get(seat, NOTHING), spec.offers[seat].table
        items = prepare_turn(written, table, owners, state.play, self.eager, spec.max_turn_calls)
        if works := [item.work() for item in items if type(item) is Prepared]:
            return state.wait(works, "calls", seat, items)
        return self._record(state, seat, dialogue, items)

    def resume(self, pending: Pending) -> MachineReply:
        """Continue the episode after these jobs have finished or timed out. Jobs of an earlier episode are ignored."""
        expected: Expected = pending.about
        state, role = expected.state, expected.role
        if state is None or state is not self.state:
            return {}
        state.out -= 1
        if role == "end":
            rewards, closings = expected.items
            self.kits.closed(state.where, closings)
            return outcome.last_events(self.spec, state, rewards)
        if state.endings is not None and role != "final":
            return {}
        if (late := pending.late) is not None:
            what = "a toolkit did not start: " if role == "start" else ""
            fault = f"{state.where}: {what}{late} gave no result in {late.conditions.seconds:g} s"
            return self._break(state, fault, in_use=True)
        if role in ("calls", "user"):
            dialogue = state.seats[expected.seat]
            dialogue.busy = False
            if role == "user":
                return self._user_replied(state, expected.seat, expected.items, pending.works[0].outcome)
            works = iter(pending.works)
            calls = [item.call(next(works)) if type(item) is Prepared else item for item in expected.items]
            return self._record(state, expected.seat, dialogue, calls)
        if role == "start":
            error = pending.works[0].error
            return self._not_started(state, error) if error else self._start(state, expected.items + 1)
        return self._set_final(state, role, expected.items, lambda: [work.outcome() for work in pending.works])

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> MachineReply:
        """End the episode from outside. `text`, an unfinished turn of the culprit, is recorded, but is not an answer.

        The culprit gets `ending`, other seats TURN_LIMIT; BROKEN is for all. If jobs run, the episode ends after them.
        """
        state = self.state
        if state is None or (state.endings is not None and not state.out):
            raise not_open(state, "finish")
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with step or send")
        if state.out:  # The first of several stops counts; none does if the episode is ending already.
            state.stopping = state.stopping or (ending, culprit, text, fault)
            return {}
        if culprit in state.seats:
            dialogue = state.seats[culprit]
            dialogue.answer = None
            if text:
                dialogue.say(text)
        if ending is Ending.BROKEN:
            return self._break(state, fault or f"{state.where}: closed from outside")
        return self._end(state, outcome.stopped(self.spec, state, Ending(ending), culprit, fault))

    def discard(self) -> None:
        """Drop the running episode without a reward. Jobs in `aside` close toolkits that may wait or may be in use."""
        state, self.state = self.state, None
        if state is None:
            return
        if not state.closed or state.out:
            self.aside += self.kits.give_up(in_use=bool(state.out), closing=state.closed)
        if state.course is not None:
            state.course.close()

    close = discard
    """Closing is the same as discarding: only closed toolkits are kept beyond an episode."""

    def _start(self, state: EpisodeState, place: int) -> MachineReply:
        """Start the toolkits from number `place` on, one after another, because they share one random generator."""
        try:
            for at in range(place, len(self.kits.make())):
                work = self.kits.start(at, state, lambda: self.state is not state or bool(state.endings), self.eager)
                if work is not None:
                    return state.wait([work], "start", None, at)
            state.owners = self.kits.owners()
        except Exception as error:
            return self._not_started(state, error)
        return self._first_events(state)

    def _not_started(self, state: EpisodeState, error: BaseException) -> MachineReply:
        """End the episode BROKEN after a failed start. Raise an error that the next episode would meet too."""
        if is_permanent(error):
            self.discard()
            raise error
        return self._break(state, f"{state.where}: {start_fault(error)}")

    def _first_events(self, state: EpisodeState) -> MachineReply:
        """Return the first events, once toolkits have started."""
        if state.stopping is not None:
            return self.stop(*state.stopping)
        if self.spec.solo:
            dialogue = state.seats[None]
            dialogue.left = self.spec.max_turns
            return {None: dialogue.event()}
        start = next(iter(state.seats.values())).start
        state.course = Course(state.play, state.problem, state.seed, start.task)
        return self._ask(state)

    def _record(self, state: EpisodeState, seat: Seat, dialogue: Dialogue, calls: Sequence[Call]) -> MachineReply:
        """Record the results of a turn, in call order."""
        broken, final = dialogue.record(calls, self.spec.max_result_chars, self.spec.max_kept_chars)
        if broken is not None:
            return self._break(state, f"{state.where}: {broken.text}")
        if state.stopping is not None:
            return {} if state.out else self.stop(*state.stopping)
        if final is not None or not dialogue.left:
            return self._replied(state, seat, dialogue, final.answer if final else None)
        return {seat: dialogue.event()}

    def _user_replied(self, state: EpisodeState, seat: Seat, text: str, reply: Callable[[], Any]) -> MachineReply:
        """Record the user's reply to `text`. If there is none, `text` is the final reply of the seat."""
        dialogue = state.seats[seat]
        try:
            message = outcome.user_message(self.spec.owner, reply)
        except Broken as error:
            return self._break(state, f"{state.where}: its user did not answer: {error}")
        if message is not None:
            dialogue.hear(message, **({} if state.course is None else {"name": "user"}))  # Not a round's question.
        if state.stopping is not None:
            return {} if state.out else self.stop(*state.stopping)
        if message is None or not dialogue.left:
            return self._replied(state, seat, dialogue, text if message is None else None)
        return {seat: dialogue.event()}

    def _replied(self, state: EpisodeState, seat: Seat, dialogue: Dialogue, reply: str | None) -> MachineReply:
        """Record the final reply of a seat; None if it has used up its turns without one."""
        dialogue.answer, dialogue.left = reply, 0
        if state.course is None:
            return self._end(state, outcome.UNANSWERED if reply is None else outcome.ANSWERED)
        state.course.replies[str(seat)] = reply
        for other in state.seats.values():
            if other.left or other.busy:
                return {}
        return self._declared(state, "world") or self._ask(state)

    def _ask(self, state: EpisodeState, world: Mapping[str, Any] | None = None) -> MachineReply:
        """Run the rounds of a game until they ask the next seats for a text, or until they end."""
        assert state.course is not None
        try:
            asks = state.course.ask(world)
        except Finished as end:
            state.endings = outcome.finished(self.spec, state, end.args[0])  # The final state was taken before.
            return self._judge(state)
        except Broken as error:  # For example, a judge's server that is gone.
            return self._break(state, f"{state.where}: {error}")
        for seat, text in asks.items():
            dialogue = state.seats[seat]
            dialogue.hear(text)
            dialogue.left = self.spec.max_turns
        return {seat: state.seats[seat].event() for seat in asks}

    def _end(self, state: EpisodeState, endings: Mapping[Seat, tuple[Ending, str]]) -> MachineReply:
        """End the episode: take the final state first, then compute the rewards."""
        state.endings = endings
        return self._declared(state, "final") or self._judge(state)

    def _break(self, state: EpisodeState, fault: str, in_use: bool = False) -> MachineReply:
        """End the episode BROKEN: the infrastructure failed. If toolkits are `in_use` by jobs that are late or still
        run, jobs in `aside` close them, and the next episode makes new ones."""
        in_use = in_use or bool(state.out)
        state.break_off(fault)
        if not in_use:
            return self._judge(state)
        state.closed = True
        self.aside += self.kits.give_up(in_use=True)
        return state.broken_events()

    def _declared(self, state: EpisodeState, role: str) -> MachineReply | None:
        """Collect the states that the environment and its toolkits declare with `final`; return None without any."""
        takers = self.kits.declaring()
        if self.spec.own_final:
            takers.insert(0, (None, state.play))
        if not takers:
            return None
        if works := self.kits.finals(takers, self.eager):
            return state.wait(works, role, None, takers)
        return self._set_final(state, role, takers, lambda: [taker.final() for _, taker in takers])

    def _set_final(
        self, state: EpisodeState, role: str, takers: outcome.Takers, finals: Callable[[], Sequence[Any]]
    ) -> MachineReply:
        """Store the declared state; then continue a game's rounds if `role` is "world", else compute the rewards."""
        try:
            state.final = outcome.merged_final(self.spec.owner, takers, finals())
        except Broken as error:
            return self._break(state, f"{state.where}: {error}")
        if role != "world":
            return self._judge(state)
        return self._ask(state, state.final) if state.stopping is None else self.stop(*state.stopping)

    def _judge(self, state: EpisodeState) -> MachineReply:
        """Compute the rewards and close the toolkits, both at once: a reward reads only the attempt."""
        rewards, waits = ((), ()) if state.broken else outcome.compute_rewards(self.spec, state)
        closings: Sequence[Work] = self.kits.close(self.eager) if self.kits.instances else ()
        state.closed = True
        if waits or closings:
            return state.wait([*waits, *closings], "end", None, (rewards, closings))
        return outcome.last_events(self.spec, state, rewards)
