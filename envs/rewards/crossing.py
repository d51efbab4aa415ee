"""The two ends of a call between sessions: tests in one, an agent's program in the other. Runs INSIDE the sandbox.

The text of this file is sent into sessions, so it imports the standard library alone. Only values cross, as JSON with
tags: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict and its views, range, deque,
Fraction, Decimal, dates and times, numpy arrays of numbers, and the types int, str and the like; an iterator as what it
gives; an exception as the name of its type, and its words for people. An object of a class that both ends define
crosses as its attributes: the end that it comes to makes it anew, of its own class. So nothing that an agent defines
(an `__eq__`, a class, a patched builtin) is ever in a process with tests. Left out: functions, any other object (it
arrives as something that equals nothing), and arguments that the program changes.
"""

import builtins
import importlib
import json
import queue
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

MARK = "\x1e"
"""Stands before the last thing that a run of ours prints."""
_MAX_DEPTH = 100
_MAX_WORDS = 300
_MAX_DRAWN = 10_000
"""What is drawn from an iterator, which may have no end."""
_OURS = ("tests", "solution")
"""Names of the modules that tests and program are."""
_DTYPE = re.compile(r"bool|u?int\d{1,2}|float\d{2}|complex\d{2,3}")


class Unknown:
    """Stands for a value that could not cross."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind}, which cannot cross>"


class Drawn:
    """An iterator that crossed: the values it gave, and then the exception it ended with."""

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


_EXACT: dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Fraction": (Fraction, lambda one: [one.numerator, one.denominator], lambda of: Fraction(*map(int, of))),
    "Decimal": (Decimal, str, lambda of: Decimal(str(of))),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (
        timedelta, lambda one: [one.days, one.seconds, one.microseconds], lambda of: timedelta(*map(int, of)),
    ),
    "range": (range, lambda one: [one.start, one.stop, one.step], lambda of: range(*map(int, of))),
}  # fmt: skip
"""By the name of a type: the type, what is written of a value, and how that is read."""
_HOLDERS: dict[str, tuple[type[Any], Callable[[list[Any]], Any]]] = {
    "tuple": (tuple, tuple), "set": (set, set), "frozenset": (frozenset, frozenset), "deque": (deque, deque),
    "keys": (type({}.keys()), lambda items: dict.fromkeys(items).keys()),
    "values": (type({}.values()), lambda items: dict(enumerate(items)).values()),
    "items": (type({}.items()), lambda items: {key: value for [key, value] in filter(_is_pair, items)}.items()),
}  # fmt: skip
"""By a name: the type that holds values, and how it is made of a list of them."""


PLAIN_TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
"""Types that cross themselves, by name: a problem of MBPP takes all ints out of a tuple, as `f(values, int)`."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def pack(value: Any, depth: int = 0) -> Any:
    """A value as JSON can write it."""
    if depth > _MAX_DEPTH:
        return {"$": "other", "of": "value nested too deeply"}
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # One number of an array library.
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else {"$": "float", "of": str(float(value))}
    if isinstance(value, complex):
        return {"$": "complex", "of": [pack(value.real), pack(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"$": "bytes", "of": bytes(value).hex()}
    if isinstance(value, list):
        return [pack(item, depth + 1) for item in value]
    for name, (holder, _) in _HOLDERS.items():
        if isinstance(value, holder):
            return {"$": name, "of": [pack(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        if "$" not in value and all(type(key) is str for key in value):
            return {key: pack(item, depth + 1) for key, item in value.items()}
        return {"$": "dict", "of": [[pack(key, depth + 1), pack(item, depth + 1)] for key, item in value.items()]}
    for name, (exact, write, _) in _EXACT.items():
        if isinstance(value, exact):
            return {"$": name, "of": write(value)}
    return _packed_object(value, depth)


def _packed_object(value: Any, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, Unknown):
        return {"$": "other", "of": value.kind}
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and _DTYPE.fullmatch(str(value.dtype)):
        return {"$": "array", "of": [str(value.dtype), list(value.shape), pack(value.ravel().tolist())]}
    if any(value is one for one in PLAIN_TYPES):
        return {"$": "type", "of": value.__name__}
    if hasattr(kind, "__next__"):
        items: list[Any] = []
        ended = ""
        try:
            for item in value:
                if len(items) == _MAX_DRAWN:
                    ended = "RuntimeError"
                    break
                items.append(pack(item, depth + 1))
        except Exception as error:  # Whoever reads as far meets it.
            ended = type(error).__name__
        return {"$": "iterator", "of": [items, ended]}
    if kind.__module__ in _OURS and type(kind) is type and isinstance(getattr(value, "__dict__", None), dict):
        attributes = {str(name): pack(one, depth + 1) for name, one in vars(value).items()}
        return {"$": "object", "of": [kind.__name__, attributes]}
    return {"$": "other", "of": kind.__name__}


def unpack(value: Any, classes: Mapping[str, Any] | None = None) -> Any:
    """The value that `pack` was given; for what nobody packed a ValueError, LookupError, TypeError, ArithmeticError.

    It may come from whoever wants to do harm: nothing is made that is larger than its text. Objects are of those
    `classes` that were defined where these were.
    """
    if isinstance(value, list):
        return [unpack(item, classes) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: unpack(item, classes) for key, item in value.items()}
    kind, content = value["$"], value["of"]
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(unpack(content[0]), unpack(content[1]))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {unpack(key, classes): unpack(item, classes) for key, item in content}
    if kind == "iterator":
        return Drawn([unpack(item, classes) for item in content[0]], str(content[1]))
    if kind == "type":
        return {one.__name__: one for one in PLAIN_TYPES}[content]
    if kind == "array":
        return _array(*content)
    if kind == "object":
        return _object(str(content[0]), content[1], classes or {})
    if isinstance(kind, str) and kind in _HOLDERS:  # Never of what was unpacked: a range has no size.
        return _HOLDERS[kind][1]([unpack(item, classes) for item in content])
    if isinstance(kind, str) and kind in _EXACT:
        return _EXACT[kind][2](content)
    return Unknown(str(content)[:100])


def _array(dtype: str, shape: list[int], items: list[Any]) -> Any:
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        return Unknown("ndarray")
    numbers = [unpack(item) for item in items]
    if not _DTYPE.fullmatch(dtype) or not all(isinstance(one, int | float | complex) for one in numbers):
        raise ValueError(f"{dtype} of what is no number")
    return numpy.array(numbers, dtype=dtype).reshape([int(size) for size in shape])


def _object(name: str, attributes: dict[str, Any], classes: Mapping[str, Any]) -> Any:
    kind = classes.get(name)
    if not isinstance(kind, type) or kind.__module__ != classes.get("__name__"):
        return Unknown(name)
    if any(callable(getattr(kind, key, None)) for key in attributes):
        raise ValueError(f"attributes in place of methods of {name}")  # `equals = bool` would agree with everything.
    made: Any = object.__new__(kind)
    made.__dict__.update({key: unpack(item, classes) for key, item in attributes.items()})
    return made


def say(message: Any, token: str = "") -> None:
    """The last line of a run."""
    sys.stdout.write(f"\n{MARK}{token}{json.dumps(message)}\n")
    sys.stdout.flush()


# The agent's end.


class Program:
    """What an agent wrote."""

    def __init__(self, source: str, context: str, name: str) -> None:
        """Compile it; nothing of it runs yet. `context` is run before it, in the same module, but defines no `name`."""
        self.name = name
        self.parts = [compile(text, name, "exec") for text, name in ((context, "<context>"), (source, "<solution>"))]
        self.module = types.ModuleType("solution")
        sys.modules["solution"] = self.module

    def run(self) -> None:
        """Define whatever it defines."""
        context, source = self.parts
        exec(context, self.module.__dict__)
        self.module.__dict__.pop(self.name, None)  # `from math import *` solves no problem that asks for a gcd.
        exec(source, self.module.__dict__)

    def answer(self, arguments: str) -> None:
        """Call the function, or the method of its class Solution, and say what came back."""
        try:
            given, scope = json.loads(arguments), self.module.__dict__
            value = self._function(self.name)(*unpack(given["args"], scope), **unpack(given["kwargs"], scope))
            reply = {"value": pack(value)}
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


def _words(error: Exception) -> str:
    """What an exception says, for people: tests get its type alone."""
    try:
        return str(error)[:_MAX_WORDS]
    except Exception as failed:  # A `__str__` may do anything.
        return f"a message that raises {type(failed).__name__}"


# The tests' end.


class Uncrossable(BaseException):
    """Tests that cannot be judged; they do not catch it."""


class Proceeding:
    """Tests that run in a thread, which waits wherever they call the program."""

    def __init__(self, context: str, tests: str, name: str, token: str) -> None:
        """`tests` define `check(candidate)`, or use `name` as they run."""
        self.token = token
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.replied: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.scope: dict[str, Any] = {"__name__": "tests"}
        self.calls = 0
        parts = [compile(text, where, "exec") for text, where in ((context, "<context>"), (tests, "<tests>"))]
        threading.Thread(target=self._run, args=(parts, name), daemon=True).start()

    def proceed(self, reply: str | None = None) -> None:
        """Hand over a reply, and say what the tests ask next or what they have come to."""
        if reply is not None:
            self.replied.put(reply)
        say(self.asked.get(), self.token)

    def _run(self, parts: list[types.CodeType], name: str) -> None:
        scope = self.scope
        try:
            exec(parts[0], scope)
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
        given = {"args": [pack(one) for one in args], "kwargs": pack(kwargs)}
        self.calls += 1
        if self.calls == 1 and '{"$": "other"' in json.dumps(given):  # Nothing of the program has been here yet.
            raise Uncrossable("it is given a function or an object that cannot cross to the program")
        self.asked.put(given)
        reply = json.loads(self.replied.get())
        if "raised" in reply:
            raise _exception(str(reply["raised"]))
        return unpack(reply["value"], self.scope)


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
