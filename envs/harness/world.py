"""The world of one episode of a harness: its requests become turns, and each request goes to one dialogue.

A request that repeats a dialogue and adds messages of others continues it. Any other request opens a dialogue: a
rewritten history, a sub-agent, another choice of `n`. Several dialogues may wait for their turns at once. Three threads
meet here: the event loop of the HTTP server calls `news`, `ask` and `desert`, the arena's thread `take`, `answer` and
`close`, and the harness's thread reports its end. Left out: starting the harness (`program`), endings (`machine`).
"""

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from palaestra.envs.harness.wire import Mark, Refused, TurnRequest, choice, render
from palaestra.episode import Call, Message, Opening, Status
from palaestra.errors import Broken, UsageError
from palaestra.formats import Format
from palaestra.protocols import AgentTurn

_LETTERS_PER_TOKEN = 4
"""Letters for which an agent without tokens is said to have used one token."""


class Over(NamedTuple):
    """The end of the harness: what it returned, or the error that it raised."""

    answer: Any = None
    error: BaseException | None = None


class Turn:
    """A turn that the harness asks for."""

    def __init__(self, request: TurnRequest, fresh: bool, body: bytes, reply: "asyncio.Future[Any]") -> None:
        self.request, self.fresh, self.body, self.reply = request, fresh, body, reply
        """`fresh` opens a dialogue in any case; `reply` gets the choice with its tokens, or Refused."""
        self.deserted = False
        """True while no client waits for the reply."""
        self.new: Sequence[Message] = ()
        self.number = 0


class Talk:
    """A dialogue: its messages as the model sees them, and as the harness sends them back."""

    def __init__(self, number: int, tools: tuple[Mapping[str, Any], ...]) -> None:
        self.number, self.tools = number, tools
        self.messages: list[Message] = []
        self.marks: list[Mark] = []
        self.turn: Turn | None = None
        """The turn that the agent is asked for; None while none is."""
        self.stays = False
        """True once the model has spoken in it, or if its request was too long and the last one of the episode."""


class World:
    """The requests, dialogues and calls of one episode."""

    def __init__(self, form: Format, max_turns: int) -> None:
        self.form, self.max_turns = form, max_turns
        self.token = secrets.token_urlsafe(18)
        """Secret part of the episode's address, and its key."""
        self.talks: list[Talk] = []
        """Dialogues; the one that was asked or answered last is the last."""
        self.open_talks: dict[int, Talk] = {}
        """Dialogues whose turn the agent is asked for, by their numbers, the first asked first."""
        self.calls: list[Call] = []
        self.asks = 0
        self.refused = self.unfollowed = 0
        """Numbers of requests whose messages did not fit, and of those with a wish that is not followed."""
        self.too_long: Turn | None = None
        """The latest request, if its messages did not fit."""
        self._opened = self._numbered = 0
        """Numbers of dialogues and of calls so far; each has its own number."""
        self._said: dict[Mark, str] = {}
        self._last_refused: TurnRequest | None = None
        self._called: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._mail: deque[Turn] = deque()
        self._live: list[Turn] = []
        """Turns whose reply nobody has read yet."""
        self._over: Over | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.leave: Callable[[], None] = lambda: None
        """Stops the harness and takes its address away; set when the harness starts."""

    # On the event loop of the server.

    async def news(self, start: Callable[["World"], Any]) -> Turn | Over:
        """Return the next turn that the harness asks for, or its end. The first call awaits `start(self)`."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            if not self._closed:
                await start(self)
            if self._closed:  # The episode was dropped before its harness started, or meanwhile.
                self.leave()
                raise Broken("the episode was dropped before its harness started")
        elif self._loop is not loop:
            raise Broken("the event loop of the harness's HTTP server was held up, and another has taken its place")
        while not self._mail and self._over is None:
            self._waiter = loop.create_future()
            await self._waiter
        return self._over or self._mail.popleft()

    def ask(self, request: TurnRequest, body: bytes) -> list[Turn]:
        """Take a request, and return a turn for each of its choices. A request that was asked before, and whose client
        hung up, is the same turn."""
        if self._closed:
            raise Refused(410, "this episode has ended", code="episode_over")
        self.asks += 1
        again = [turn for turn in self._live if turn.deserted and turn.body == body][: request.n]
        for turn in again:
            turn.deserted = False
        if again:
            return again
        if len(self._mail) > self.max_turns:  # The episode ends at the first of them.
            raise Refused(429, f"{len(self._mail)} requests wait already", code="too_many_requests")
        loop = asyncio.get_running_loop()
        turns = [Turn(request, choice > 0, body, loop.create_future()) for choice in range(request.n)]
        self._mail += turns
        self._live += turns
        self._wake()
        return turns

    def desert(self, turns: Sequence[Turn]) -> None:
        """Note that the client of these turns has hung up: their replies are kept for one that asks the same."""
        for turn in turns:
            turn.deserted = True

    def delivered(self, turns: Sequence[Turn]) -> None:
        """Forget turns whose replies were read."""
        self._live = [turn for turn in self._live if turn not in turns]

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, over: Over) -> None:
        self._over = self._over or over
        self._wake()

    def _shut(self) -> None:
        for turn in self._live:
            _reply(turn, Refused(410, "this episode has ended", code="episode_over"))
        self._mail.clear()

    def _refuse(self, request: TurnRequest, refused: Refused) -> None:
        """Answer all choices of a request with an error. Who asks the same again is refused and counted again."""
        turns = [turn for turn in self._live if turn.request is request]
        self.delivered(turns)
        for turn in turns:
            with suppress(ValueError):  # The arena's thread has taken it.
                self._mail.remove(turn)
            _reply(turn, refused)

    # On other threads.

    def report(self, over: Over) -> None:
        """Report the end of the harness."""
        self._on_loop(lambda: self._end(over))

    def close(self) -> None:
        """End the episode: stop the harness, and refuse all that it still asks."""
        self._closed = True
        self._on_loop(self._shut)
        self.leave()

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # That loop has ended, and every connection with it.
                self._loop.call_soon_threadsafe(call)

    # On the arena's thread.

    def take(self, turn: Turn, stays: bool = False) -> None:
        """Give a turn to its dialogue: `turn.new` gets the messages that are new in it, `turn.number` its number."""
        request, best = turn.request, None
        for call_id, text in request.results.items():
            if (call := self._called.pop(call_id, None)) is not None:
                self.calls.append(Call(*call, text, Status.OK))
        for talk in () if turn.fresh else self.talks:
            size = len(talk.marks)
            is_longest = size < len(request.marks) and (best is None or size > len(best.marks))
            if is_longest and talk.turn is None and request.marks[:size] == tuple(talk.marks):
                best = talk if all(message["role"] != "assistant" for message in request.messages[size:]) else best
        if best is None:
            turn.new = [self._context(*pair) for pair in zip(request.messages, request.marks, strict=True)]
            best = Talk(self._opened, request.tools)
            self._opened += 1
        else:
            turn.new = request.messages[len(best.marks) :]
            self.talks.remove(best)
        self.talks.append(best)
        best.messages += turn.new
        best.marks, best.turn, best.stays = list(request.marks), turn, best.stays or stays
        turn.number, self.open_talks[best.number], self.too_long = best.number, best, None

    def waiting(self) -> Turn | None:
        """Return a turn that the harness asks for beside its `open_talks`; None if there is none, or at its end."""
        with suppress(IndexError):
            return None if self._over else self._mail.popleft()
        return None

    def refuse(self, reason: str) -> None:
        """Refuse a turn because its messages are too long. It leaves nothing in its dialogue."""
        talk, turn = self._answered(reason)
        if talk.stays:
            del talk.messages[-len(turn.new) :], talk.marks[-len(turn.new) :]
        else:
            self.talks.remove(talk)
        if self._last_refused is not turn.request:  # Its choices count once.
            self.refused += 1
        self.too_long, self._last_refused = turn, turn.request
        refused = Refused(400, str(reason), "messages", "context_length_exceeded")
        self._on_loop(partial(self._refuse, turn.request, refused))

    def answer(self, text: str, is_cut: bool = False) -> None:
        """Record the model's turn, and send it to the harness; one that was cut ends the episode, and is not sent."""
        talk, turn = self._answered(text)
        usage = sum(len(str(message["content"])) for message in talk.messages), len(text)
        tokens = (usage[0] // _LETTERS_PER_TOKEN, usage[1] // _LETTERS_PER_TOKEN)
        if isinstance(text, AgentTurn):
            tokens, text = text.tokens or tokens, str(text)
        answer, mark = choice(text, turn.request, self.form, self._numbered)
        for call in answer["message"].get("tool_calls", ()):
            self._numbered += 1
            self._called[call["id"]] = call["function"]["name"], json.loads(call["function"]["arguments"])
        talk.messages.append({"role": "assistant", "content": text})
        talk.marks.append(mark)
        self._said[mark], self.too_long, talk.stays = text, None, True
        self.unfollowed += bool(turn.request.unfollowed) and not turn.fresh
        self.talks.remove(talk)
        self.talks.append(talk)
        if not is_cut:
            self._on_loop(partial(_reply, turn, (answer, tokens)))

    def _answered(self, text: str) -> tuple[Talk, Turn]:
        """Return the dialogue and the turn that a text answers; a plain text answers the one that was asked first."""
        number = text.dialogue if isinstance(text, AgentTurn) else next(iter(self.open_talks), -1)
        if number not in self.open_talks:
            raise UsageError(f"nobody asks for a turn of dialogue {number}; asked: {[*self.open_talks]}")
        talk = self.open_talks.pop(number)
        turn, talk.turn = talk.turn, None
        assert turn is not None
        return talk, turn

    def drop_unanswered(self) -> None:
        """Forget dialogues in which the model has not spoken, at the end of the episode; but one stays in any case."""
        self.talks = [talk for talk in self.talks if talk.stays] or self.talks[:1]

    @property
    def messages(self) -> list[Message]:
        """Messages of all dialogues, each whole, the one with the latest turn last."""
        return [message for talk in self.talks for message in talk.messages]

    @property
    def openings(self) -> tuple[Opening, ...]:
        """The place of each dialogue in `messages`, in the order in which they were opened; empty where it is one."""
        begins, at = {}, 0
        for talk in self.talks:
            begins[talk.number] = Opening(at, talk.tools)
            at += len(talk.messages)
        return tuple(begins[number] for number in sorted(begins)) if len(begins) > 1 else ()

    def _context(self, message: Message, mark: Mark) -> Message:
        """Return a message of a new dialogue: a turn of our model as the model wrote it, which counts as context."""
        if message["role"] != "assistant":
            return message
        if mark in self._said:
            return {"role": "assistant", "content": self._said[mark], "weight": 0}
        return {**message, "content": render(mark, self.form)}


def _reply(turn: Turn, reply: tuple[dict[str, Any], tuple[int, int]] | Refused) -> None:
    if not turn.reply.done():
        turn.reply.set_result(reply)
