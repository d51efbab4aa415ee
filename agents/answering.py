"""A model in this process that is called like a served one: `Answering` has the methods of the client `Endpoint`.

The model's engine runs on its own thread and decodes all unanswered questions together. If the caller stops waiting for
an answer, its question is cancelled.
Left out: tools, and HTTP (`palaestra serve rrm`).
"""

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count

from palaestra.agents.agent import Agent
from palaestra.agents.conversation import Conversation
from palaestra.endpoint import ChatCompletion, Usage
from palaestra.episode import Message, Start
from palaestra.errors import Broken, UsageError
from palaestra.protocols import Completion, Request

_POLL_SECONDS = 0.05
"""Seconds that one `poll` may wait before new questions are accepted; the built-in engine decodes a step instead."""
_JOIN_TIMEOUT_SECONDS = 30.0


class Answering:
    """Client of a model in this process. Call `aclose` after use: it ends the thread and the agent's engine."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._questions: queue.SimpleQueue[tuple[Conversation, Request, Future[ChatCompletion]] | None] = (
            queue.SimpleQueue()
        )
        self._numbers = count()
        self._accepting = threading.Lock()
        self._has_ended = False
        self._thread = threading.Thread(target=self._work, name="palaestra-answering", daemon=True)
        self._thread.start()

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float = 0.0, seed: int | None = None
    ) -> ChatCompletion:
        """Return the model's next turn. Raise UsageError if the dialogue is too long, Broken if the engine failed."""
        conversation = Conversation(self._agent.chat, messages)
        request = Request(
            row=conversation.row,
            start=Start(0, next(self._numbers) if seed is None else seed),
            turn=0,
            messages=conversation.messages,
            tools=(),
            ids=conversation.ids,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        future: Future[ChatCompletion] = Future()
        with self._accepting:  # No question comes after the thread has read the last ones.
            if self._has_ended:
                raise Broken("the model's engine has ended")
            self._questions.put((conversation, request, future))
        try:
            return await asyncio.wrap_future(future)
        finally:
            future.cancel()

    async def check(self) -> None:
        """Raise UsageError if the engine has ended."""
        if self._has_ended:
            raise UsageError("the model's engine has ended")

    async def aclose(self) -> None:
        """End the thread and close the engine. For each unanswered question `complete` raises Broken."""
        self._questions.put(None)
        await asyncio.to_thread(self._thread.join, _JOIN_TIMEOUT_SECONDS)

    def _work(self) -> None:
        """Submit questions and poll the engine until `aclose` is called. This method runs on the object's thread."""
        live: dict[int, tuple[Conversation, Request, Future[ChatCompletion]]] = {}
        fault = "the model's engine has ended"
        try:
            while True:
                while not live or not self._questions.empty():
                    question = self._questions.get()
                    if question is None:
                        return
                    try:
                        live[self._agent.engine.submit(question[1])] = question
                    except UsageError as error:
                        _set_outcome(question[2], error)
                    except Exception:  # Whatever the engine raises: this question too gets the outcome below.
                        self._questions.put(question)
                        raise
                for completion in self._agent.engine.poll(_POLL_SECONDS):
                    conversation, request, future = live[completion.ticket]
                    _set_outcome(future, _answer(conversation, request, completion))
                    del live[completion.ticket]
                for ticket in [ticket for ticket, (_, _, future) in live.items() if future.cancelled()]:
                    self._agent.engine.cancel(ticket)
                    del live[ticket]
        except Exception as error:
            fault = f"the model's engine failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._accepting:
                self._has_ended = True
            while not self._questions.empty():
                if (question := self._questions.get()) is not None:
                    live[-1 - len(live)] = question
            for _, _, future in live.values():
                _set_outcome(future, Broken(fault))
            self._agent.engine.close()


def _answer(conversation: Conversation, request: Request, completion: Completion) -> ChatCompletion | Exception:
    if completion.fault:
        return Broken(completion.fault)
    text = completion.text
    if text is None:
        text = conversation.add_sampled(completion.ids, completion.logprobs, completion.versions)
    return ChatCompletion(text, cut=completion.cut, usage=Usage(len(request.ids), len(completion.ids)))


def _set_outcome(future: Future[ChatCompletion], outcome: ChatCompletion | Exception) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
