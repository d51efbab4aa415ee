"""The two ends of a call between sessions: tests in one, an agent's program in the other. Runs INSIDE the sandbox.

The text of this file is sent into sessions, so it imports the standard library alone. Only values cross, as JSON with
tags: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict; an exception crosses as the name
of its type, and its words for people. So nothing that an agent defines (an `__eq__`, a class, a patched builtin) is
ever in a process with tests. Left out: objects (an unknown one arrives as something that equals nothing) and
arguments that the program changes.
"""

import builtins
import json
import queue
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

MARK = "\x1e"
"""Stands before the last thing that a run of ours prints."""
_MAX_DEPTH = 100
_MAX_WORDS = 300


class Unknown:
    """Stands for a value that could not cross."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind}, which cannot cross>"


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
    for sequence in (tuple, set, frozenset):
        if isinstance(value, sequence):
            return {"$": sequence.__name__, "of": [pack(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        if "$" not in value and all(type(key) is str for key in value):
            return {key: pack(item, depth + 1) for key, item in value.items()}
        return {"$": "dict", "of": [[pack(key, depth + 1), pack(item, depth + 1)] for key, item in value.items()]}
    return {"$": "other", "of": type(value).__name__}


def unpack(value: Any) -> Any:
    """The value that `pack` was given; a ValueError, KeyError or TypeError for what nobody packed."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: unpack(item) for key, item in value.items()}
    kind, content = value["$"], value["of"]
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(unpack(content[0]), unpack(content[1]))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in content}
    if kind in ("tuple", "set", "frozenset"):
        return getattr(builtins, kind)(unpack(item) for item in content)
    return Unknown(str(content)[:100])


def say(message: Any, token: str = "") -> None:
    """The last line of a run."""
    sys.stdout.write(f"\n{MARK}{token}{json.dumps(message)}\n")
    sys.stdout.flush()


# The agent's end.


class Program:
    """What an agent wrote."""

    def __init__(self, source: str, context: str) -> None:
        """Compile it; nothing of it runs yet. `context` is run before it, in the same module."""
        self.parts = [compile(text, name, "exec") for text, name in ((context, "<context>"), (source, "<solution>"))]
        self.module = types.ModuleType("solution")
        sys.modules["solution"] = self.module

    def run(self) -> None:
        """Define whatever it defines."""
        for part in self.parts:
            exec(part, self.module.__dict__)

    def answer(self, name: str, arguments: str) -> None:
        """Call a function of it, or a method of its class Solution, and say what came back."""
        try:
            given = json.loads(arguments)
            value = self._function(name)(*unpack(given["args"]), **unpack(given["kwargs"]))
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


class Proceeding:
    """Tests that run in a thread, which waits wherever they call the program."""

    def __init__(self, context: str, tests: str, name: str, token: str) -> None:
        """`tests` define `check(candidate)`, or use `name` as they run."""
        self.token = token
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.replied: queue.SimpleQueue[Any] = queue.SimpleQueue()
        parts = [compile(text, where, "exec") for text, where in ((context, "<context>"), (tests, "<tests>"))]
        threading.Thread(target=self._run, args=(parts, name), daemon=True).start()

    def proceed(self, reply: str | None = None) -> None:
        """Hand over a reply, and say what the tests ask next or what they have come to."""
        if reply is not None:
            self.replied.put(reply)
        say(self.asked.get(), self.token)

    def _run(self, parts: list[types.CodeType], name: str) -> None:
        scope: dict[str, Any] = {"__name__": "tests"}
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
        self.asked.put({"args": pack(args)["of"], "kwargs": pack(kwargs)})
        reply = json.loads(self.replied.get())
        if "raised" in reply:
            raise _exception(str(reply["raised"]))
        return unpack(reply["value"])


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
