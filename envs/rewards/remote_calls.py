"""The two ends of a call between sessions: tests in one, an agent's program in the other. Runs INSIDE the sandbox.

The text of this file, of `palaestra.tagged` and of `empty_values` is sent into sessions, so all import only the
standard library. Only values are sent: those that `tagged` can write, built-in types such as int and str, an iterator
as the list of its values, and an exception as its type's name and its message. An object of a class that both ends
define is sent as its attributes: the receiving end makes an object of its own class, whose class attributes are not
sent. So nothing that an agent defines (an `__eq__`, a class, a patched builtin) is ever in a process with tests. Left
out: functions, any other object (it arrives as a value that equals nothing), and arguments that the program changes.
"""

import ast
import builtins
import functools
import json
import math
import queue
import re
import resource
import sys
import threading
import time as clock
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from palaestra.envs.rewards.empty_values import GUARDS, guard_numpy, guarded
from palaestra.tagged import NestedTooDeeply, pack, tagged, unpack

MARK = "\x1e"
"""Mark before the last message that a run prints."""
PLAIN_TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
"""Types that are sent by name: a problem of MBPP takes all ints out of a tuple, as `f(values, int)`."""
_MAX_WORDS = 300
_MAX_ITEMS = 10_000
"""Number of items that are taken from an iterator, which may have no end."""
_OURS = ("tests", "solution")
"""Names of the modules that tests and program are."""
_NOTHING = object()


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

    def __length_hint__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<an iterator of {list(self.items)!r}>"


def packed(value: Any) -> Any:
    """Return a value in a form that JSON can write."""
    return pack(value, _packed_object)


def _packed_object(value: Any, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, Unknown):
        return tagged("other", value.kind)
    if any(value is plain_type for plain_type in PLAIN_TYPES):
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
        except Exception as error:  # Raised again where the iterator is read so far.
            ended = type(error).__name__
        return tagged("iterator", [items, ended])
    if kind.__module__ in _OURS and type(kind) is type and isinstance(getattr(value, "__dict__", None), dict):
        attributes = {
            str(name): pack(plain_type, _packed_object, depth + 1) for name, plain_type in vars(value).items()
        }
        return tagged("object", [kind.__name__, attributes])
    return tagged("other", kind.__name__)


def unpacked(value: Any, classes: Mapping[str, Any] | None = None, constants: Collection[str] = ()) -> Any:
    """Return the value that was packed; raise ValueError, LookupError, TypeError or ArithmeticError for other data.

    Objects are made of those `classes` that were defined in the same module, and may not override the `constants` of
    their class.
    """

    def made(kind: Any, content: Any) -> Any:
        if kind == "iterator":
            return SentIterator([unpack(item, made) for item in content[0]], str(content[1]))
        if kind == "type":
            return {attribute.__name__: attribute for attribute in PLAIN_TYPES}[content]
        if kind == "object":
            return _object(str(content[0]), content[1], classes or {}, constants, made)
        return Unknown(str(content)[:100])

    try:
        return unpack(value, made)
    except ImportError:  # An array, where there is no numpy.
        return Unknown("ndarray")


def _object(
    name: str,
    attributes: dict[str, Any],
    classes: Mapping[str, Any],
    constants: Collection[str],
    make: Callable[[Any, Any], Any],
) -> Any:
    kind = classes.get(name)
    if not isinstance(kind, type) or kind.__module__ != classes.get("__name__"):
        return Unknown(name)
    sent_object: Any = object.__new__(kind)
    for key, item in attributes.items():
        shared = getattr(kind, key, _NOTHING)
        if isinstance(shared, functools.cached_property):
            continue  # It is computed again.
        if callable(shared):  # `equals = bool` would agree with everything.
            raise ValueError(f"attributes in place of methods of {name}")
        field = getattr(kind, "__dataclass_fields__", {}).get(key)
        is_field = field is not None and "ClassVar" not in str(field.type)
        if shared is not _NOTHING and key in constants and not is_field:
            raise ValueError(f"an attribute in place of {key}, which {name} has for all objects")
        sent_object.__dict__[key] = unpack(item, make)
    return sent_object


def say(message: Any, token: str = "") -> None:
    """Print a message as the last line of a run."""
    sys.stdout.write(f"\n{MARK}{token}{json.dumps(message)}\n")
    sys.stdout.flush()


# The agent's end.


class RemoteProgram:
    def __init__(self, source: str, context: str, name: str) -> None:
        """Compile the source without running it. `context` runs before it; a `name` that it defines is dropped."""
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
        """Call the function, or the method of its class Solution, and print the reply."""
        _bound_cpu(seconds)
        try:
            arguments_by_kind, scope = json.loads(arguments), self.module.__dict__
            args, kwargs = (unpacked(arguments_by_kind[name], scope) for name in ("args", "kwargs"))
            reply = {"value": packed(self._function(self.name)(*args, **kwargs))}
        except Exception as error:  # The test gets whatever it raised.
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
    """Limit this process to `seconds` more of processor time; the run's timeout ends a program that lifts the limit."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    latest = math.ceil(clock.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (latest if hard < 0 else min(latest, hard), hard))


def _words(error: Exception) -> str:
    """Return the message of an exception, for people. Tests get only the exception's type."""
    try:
        return str(error)[:_MAX_WORDS]
    except Exception as failed:  # A `__str__` may do anything.
        return f"a message that raises {type(failed).__name__}"


# The tests' end.


class CannotBeSent(BaseException):
    """Raised for tests that cannot be judged. It is a BaseException, so that tests do not catch it."""


class Tests:
    """Runs tests in a thread, which waits at each call of the program for the reply."""

    def __init__(self, context: str, tests: str, name: str, token: str) -> None:
        """Start the tests, which define `check(candidate)` or use `name` as they run."""
        self.token = token
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.scope: dict[str, Any] = {"__name__": "tests", **GUARDS}
        self.shared: dict[str, Any] = {}
        """Names that the context defines; the program has them too, and may return objects of its classes."""
        self.calls = 0
        trees = [ast.parse(text) for text in (context, tests)]
        attributes = [[node for node in ast.walk(tree) if isinstance(node, ast.Attribute)] for tree in trees]
        assigned = {node.attr for node in attributes[0] + attributes[1] if isinstance(node.ctx, ast.Store)}
        at_will = re.search(r"setattr\(|(__dict__|vars\(self\))\.update\(", context)
        self.constants = set() if at_will else {node.attr for node in attributes[0]} - assigned
        """Attributes that code of the context reads and nothing assigns to an object."""
        if arrays := "numpy" in context + tests:
            guard_numpy()
        trees = [guarded(tree, name, arrays) for tree in trees]
        parts = [compile(tree, at, "exec") for tree, at in zip(trees, ("<context>", "<tests>"), strict=True)]
        threading.Thread(target=self._run, args=(parts, name), daemon=True).start()

    def continue_with(self, reply: str | None = None) -> None:
        """Give a reply to the tests; print their next call, or how they ended."""
        if reply is not None:
            self.replies.put(reply)
        say(self.requests.get(), self.token)

    def _run(self, parts: list[types.CodeType], name: str) -> None:
        scope = self.scope
        try:
            exec(parts[0], scope)
            self.shared = dict(scope)
            scope[name] = self._call
            exec(parts[1], scope)
            if callable(check := scope.get("check")) and check != self._call:  # The program's may be named so.
                check(self._call)
        except BaseException as error:  # A failed assertion, or any other failure.
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            self.requests.put({"passed": False, "why": why[:500], "line": _line(error)})
        else:
            self.requests.put({"passed": True, "why": ""})

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        arguments = {"args": packed(list(args)), "kwargs": packed(kwargs)}
        self.calls += 1
        if self.calls == 1 and '{"$": "other"' in json.dumps(arguments):  # No value of the program has come yet.
            raise CannotBeSent("it is given a function or an object that cannot be sent to the program")
        self.requests.put(arguments)
        reply = json.loads(self.replies.get())
        if "raised" in reply:
            raise _exception(str(reply["raised"]))
        return unpacked(reply["value"], self.shared, self.constants)


def _line(error: BaseException) -> int:
    """Return the line of the tests that raised an error; 0 if none of their lines did."""
    line, step = 0, error.__traceback__
    while step is not None:
        line = step.tb_lineno if step.tb_frame.f_code.co_filename == "<tests>" else line
        step = step.tb_next
    return line


def _exception(name: str) -> Exception:
    """Return an exception of that name; RuntimeError if it is unknown, or could end a loop of the tests."""
    kind: Callable[[str], Any] | None = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (StopIteration, StopAsyncIteration):
        try:
            return kind("raised by the program")
        except TypeError:  # UnicodeDecodeError wants five arguments.
            pass
    return RuntimeError(name)
