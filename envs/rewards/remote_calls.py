"""The two ends of a call between sessions: tests in one, an agent's program in the other. Runs INSIDE the sandbox.

The text of this file and of `palaestra.tagged` is sent into sessions, so both import the standard library alone. Only
values are sent: what `tagged` writes, the types int, str and the like, an iterator as what it gives, an exception as
the name of its type and its words for people. An object of a class that both ends define is sent as its attributes: the
end that it comes to makes it anew, of its own class. So nothing that an agent defines (an `__eq__`, a class, a patched
builtin) is ever in a process with tests. Left out: functions, any other object (it arrives as something that equals
nothing), and arguments that the program changes.
"""

import builtins
import importlib
import json
import math
import queue
import resource
import sys
import threading
import time as clock
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from palaestra.tagged import NestedTooDeeply, pack, tagged, unpack

MARK = "\x1e"
"""Stands before the last thing that a run of ours prints."""
PLAIN_TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
"""Types that are sent themselves, by name: a problem of MBPP takes all ints out of a tuple, as `f(values, int)`."""
_MAX_WORDS = 300
_MAX_ITEMS = 10_000
"""What is taken from an iterator, which may have no end."""
_OURS = ("tests", "solution")
"""Names of the modules that tests and program are."""
_BROADCASTING = {
    "allclose": lambda _: False,
    "array_equiv": lambda _: False,
    "isclose": lambda numpy: numpy.zeros(1, bool),
}
"""Functions of numpy that find nothing wrong with an empty array beside any other, and what they are to return then."""


class Unknown:
    """Stands for a value that could not be sent."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind}, which cannot be sent>"


class SentIterator:
    """An iterator that was sent: the values it gave, and then the exception it ended with."""

    def __init__(self, items: list[Any], ended: str) -> None:
        self.items, self.ended = deque(items), ended

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.items:
            return self.items.popleft()
        if self.ended:
            raise _exception(self.ended)
        raise StopIteration

    def __repr__(self) -> str:
        return f"<an iterator of {list(self.items)!r}>"


def packed(value: Any) -> Any:
    """A value as JSON can write it."""
    return pack(value, _packed_object)


def _packed_object(value: Any, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, Unknown):
        return tagged("other", value.kind)
    if any(value is one for one in PLAIN_TYPES):
        return tagged("type", value.__name__)
    if isinstance(value, NestedTooDeeply):
        return tagged("other", "value nested too deeply")
    if hasattr(kind, "__next__"):
        items: list[Any] = []
        ended = ""
        try:
            for item in value:
                if len(items) == _MAX_ITEMS:
                    ended = "RuntimeError"
                    break
                items.append(pack(item, _packed_object, depth + 1))
        except Exception as error:  # Whoever reads as far meets it.
            ended = type(error).__name__
        return tagged("iterator", [items, ended])
    if kind.__module__ in _OURS and type(kind) is type and isinstance(getattr(value, "__dict__", None), dict):
        attributes = {str(name): pack(one, _packed_object, depth + 1) for name, one in vars(value).items()}
        return tagged("object", [kind.__name__, attributes])
    return tagged("other", kind.__name__)


def unpacked(value: Any, classes: Mapping[str, Any] | None = None) -> Any:
    """The value that was packed; for what nobody packed a ValueError, LookupError, TypeError, ArithmeticError.

    Objects are of those `classes` that were defined where these were.
    """

    def made(kind: Any, content: Any) -> Any:
        if kind == "iterator":
            return SentIterator([unpack(item, made) for item in content[0]], str(content[1]))
        if kind == "type":
            return {one.__name__: one for one in PLAIN_TYPES}[content]
        if kind == "object":
            return _object(str(content[0]), content[1], classes or {}, made)
        return Unknown(str(content)[:100])

    try:
        return unpack(value, made)
    except ImportError:  # An array, where there is no numpy.
        return Unknown("ndarray")


def _object(name: str, attributes: dict[str, Any], classes: Mapping[str, Any], made: Callable[[Any, Any], Any]) -> Any:
    kind = classes.get(name)
    if not isinstance(kind, type) or kind.__module__ != classes.get("__name__"):
        return Unknown(name)
    if any(callable(getattr(kind, key, None)) for key in attributes):
        raise ValueError(f"attributes in place of methods of {name}")  # `equals = bool` would agree with everything.
    found: Any = object.__new__(kind)
    found.__dict__.update({key: unpack(item, made) for key, item in attributes.items()})
    return found


def say(message: Any, token: str = "") -> None:
    """The last line of a run."""
    sys.stdout.write(f"\n{MARK}{token}{json.dumps(message)}\n")
    sys.stdout.flush()


# The agent's end.


class Program:
    def __init__(self, source: str, context: str, name: str) -> None:
        """Compile it; nothing of it runs yet. `context` is run before it, in the same module, but defines no `name`."""
        self.name = name
        self.parts = [compile(text, name, "exec") for text, name in ((context, "<context>"), (source, "<solution>"))]
        self.module = types.ModuleType("solution")
        sys.modules["solution"] = self.module

    def run(self, seconds: float) -> None:
        _bound_cpu(seconds)
        context, source = self.parts
        exec(context, self.module.__dict__)
        self.module.__dict__.pop(self.name, None)  # `from math import *` solves no problem that asks for a gcd.
        exec(source, self.module.__dict__)

    def answer(self, arguments: str, seconds: float) -> None:
        """Call the function, or the method of its class Solution, and say what came back."""
        _bound_cpu(seconds)
        try:
            given, scope = json.loads(arguments), self.module.__dict__
            args, kwargs = (unpacked(given[name], scope) for name in ("args", "kwargs"))
            reply = {"value": packed(self._function(self.name)(*args, **kwargs))}
        except Exception as error:  # Whatever it raised is what the test has to see.
            reply = {"raised": type(error).__name__, "said": _words(error)}
        say(reply)

    def _function(self, name: str) -> Callable[..., Any]:
        scope = self.module.__dict__
        if name in scope:
            return scope[name]  # type: ignore[no-any-return]
        if "Solution" in scope:
            return getattr(scope["Solution"](), name)  # type: ignore[no-any-return]
        raise NameError(name)


def _bound_cpu(seconds: float) -> None:
    """End this process once it has computed for so long; whoever lifts that is ended by the clock, later."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    latest = math.ceil(clock.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (latest if hard < 0 else min(latest, hard), hard))


def _words(error: Exception) -> str:
    """What an exception says, for people: tests get its type alone."""
    try:
        return str(error)[:_MAX_WORDS]
    except Exception as failed:  # A `__str__` may do anything.
        return f"a message that raises {type(failed).__name__}"


# The tests' end.


class CannotBeSent(BaseException):
    """Tests that cannot be judged; they do not catch it."""


class Tests:
    """Tests that run in a thread, which waits wherever they call the program."""

    def __init__(self, context: str, tests: str, name: str, token: str) -> None:
        """`tests` define `check(candidate)`, or use `name` as they run."""
        self.token = token
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.replied: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.scope: dict[str, Any] = {"__name__": "tests"}
        self.shared: dict[str, Any] = {}
        """What the context defines: the program has it too, and may return objects of its classes."""
        self.calls = 0
        parts = [compile(text, where, "exec") for text, where in ((context, "<context>"), (tests, "<tests>"))]
        if "numpy" in context + tests:
            _tell_empty_arrays_apart()
        threading.Thread(target=self._run, args=(parts, name), daemon=True).start()

    def go_on(self, reply: str | None = None) -> None:
        """Hand over a reply, and say what the tests ask next or how they have ended."""
        if reply is not None:
            self.replied.put(reply)
        say(self.asked.get(), self.token)

    def _run(self, parts: list[types.CodeType], name: str) -> None:
        scope = self.scope
        try:
            exec(parts[0], scope)
            self.shared = dict(scope)
            scope[name] = self._call
            exec(parts[1], scope)
            if callable(check := scope.get("check")) and check != self._call:  # The program's may be named so.
                check(self._call)
        except BaseException as error:  # A failed assertion, or anything else that is not passing.
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            self.asked.put({"passed": False, "why": why[:500], "line": _line(error)})
        else:
            self.asked.put({"passed": True, "why": ""})

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        given = {"args": packed(list(args)), "kwargs": packed(kwargs)}
        self.calls += 1
        if self.calls == 1 and '{"$": "other"' in json.dumps(given):  # Nothing of the program has been here yet.
            raise CannotBeSent("it is given a function or an object that cannot be sent to the program")
        self.asked.put(given)
        reply = json.loads(self.replied.get())
        if "raised" in reply:
            raise _exception(str(reply["raised"]))
        return unpacked(reply["value"], self.shared)


def _tell_empty_arrays_apart() -> None:
    """Have numpy's comparisons fail between an empty array and one that is not, which it broadcasts to nothing."""
    try:
        numpy, testing = importlib.import_module("numpy"), importlib.import_module("numpy.testing")
    except ImportError:
        return

    def guarded(compare: Callable[..., Any], unlike: Callable[[Any], Any]) -> Callable[..., Any]:
        def compared(*args: Any, **kwargs: Any) -> Any:
            try:
                sizes = {bool(numpy.size(one)) for one in [*args, *kwargs.values()][:2]}
            except ValueError:  # Lists that are no array.
                sizes = {True}
            return unlike(numpy) if len(sizes) == 2 else compare(*args, **kwargs)

        return compared

    def fail(_: Any) -> None:
        raise AssertionError("an empty array is compared with one that is not")

    for name, unlike in _BROADCASTING.items():
        setattr(numpy, name, guarded(getattr(numpy, name), unlike))
    for name in testing.__all__:
        if name.startswith("assert_") and "raises" not in name and "warns" not in name:
            setattr(testing, name, guarded(getattr(testing, name), fail))


def _line(error: BaseException) -> int:
    """The line of the tests that raised it; 0 for none."""
    line, step = 0, error.__traceback__
    while step is not None:
        line = step.tb_lineno if step.tb_frame.f_code.co_filename == "<tests>" else line
        step = step.tb_next
    return line


def _exception(name: str) -> Exception:
    """An exception of that name. One that ends an iteration would end the tests' own, `for x in map(candidate, xs)`."""
    kind: Callable[[str], Any] | None = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (StopIteration, StopAsyncIteration):
        try:
            return kind("raised by the program")
        except TypeError:  # UnicodeDecodeError wants five arguments.
            pass
    return RuntimeError(name)
