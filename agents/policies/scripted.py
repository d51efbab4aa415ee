"""An engine that answers by a rule, that is a Python function: for demonstrators, tests and opponents."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np

from palaestra import formats
from palaestra.authorship import function_name
from palaestra.episode import Message
from palaestra.errors import UsageError
from palaestra.protocols import Completion, Request

Rule = Callable[[Sequence[Message], np.random.Generator], str]


class ScriptedPolicy:
    """Engine that answers each request with `rule(messages, rng)`. Each request has its own random generator `rng`,
    which depends only on the seed, the start and the turn.
    """

    sampled = 0
    """Always 0: a rule samples no tokens."""

    def __init__(
        self,
        rule: Rule | Mapping[str, Rule],
        seed: int = 0,
        format: str = formats.DEFAULT,
    ) -> None:
        """A rule writes its calls in the format `hermes`; they are translated to the environment's `format`. For a
        mixture, `rule` maps each environment (`Start.env`) to its rule.
        """
        self._rules = rule if isinstance(rule, Mapping) else {"": rule}
        self._seed = seed
        self._format = formats.validate(format)
        self._tickets = count()
        self._answers: dict[int, str] = {}

    def submit(self, request: Request) -> int:
        """Compute the answer at once; `poll` returns it."""
        ticket = next(self._tickets)
        answer = self.turn(request)
        if not isinstance(answer, str):
            rule = self._rules.get(request.start.env) or self._rules[""]
            raise UsageError(f"{function_name(rule)} returned {answer!r}; expected str, the agent's whole turn")
        self._answers[ticket] = formats.translate(answer, self._format, request.tools)
        return ticket

    def turn(self, request: Request) -> object:
        """Return the rule's answer to a request."""
        rng = np.random.default_rng([self._seed, request.start.task, request.start.seed, request.turn])
        rule = self._rules.get(request.start.env) or self._rules[""]
        return rule(request.messages, rng)

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return all answers that were not returned before."""
        ready = [Completion(ticket, text=text) for ticket, text in self._answers.items()]
        self._answers.clear()
        return ready

    def cancel(self, ticket: int) -> None:
        """Drop the answer with this ticket if `poll` has not returned it yet."""
        self._answers.pop(ticket, None)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
