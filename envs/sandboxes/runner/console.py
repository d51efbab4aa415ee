"""The console: the process that runs the agent's code, after it was isolated. Its replies affect only its own session.

It takes orders from the supervisor over a socket (see `orders`); for a script or a command the socket is closed before
the code runs. Limits are set before the code runs; the supervisor limits the time and measures.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import ast
import builtins
import contextlib
import io
import json
import linecache
import os
import random
import shutil
import signal
import site
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from . import cell, files, orders, rlimits
from .orders import DONE, FORKED, READY, ConsoleCommand
from .output import shortened

_RIGHTS_BYTES = socket.CMSG_SPACE(orders.MOST_DESCRIPTORS * 4)
# Without the enumerations that `signal` wraps round each call; the agent may have put something else in their place.
_set_handler, _SIGINT, _IGNORE = _signal.signal, int(signal.SIGINT), _signal.SIG_IGN
_interrupt, _count_threads = signal.default_int_handler, _thread._count


class Console:
    """The variables of one interpreter, and the socket over which its orders come."""

    def __init__(self, channel: socket.socket, settings: cell.CellSettings, scratch: str) -> None:
        self._channel, self._settings, self._scratch = channel, settings, scratch
        self._pid = os.getpid()
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._had_stdin = False
        self._output_state: tuple[int, ...] = ()
        """The state of stdout and stderr when they were put in place."""
        self._folder = os.getcwd()
        self._main = ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins

    def serve(self) -> NoReturn:
        """Take orders until the supervisor closes the socket."""
        sys.modules["__main__"] = self._main
        sys.argv = ["main.py"]
        sys.path.insert(0, "")
        random.seed()  # else every fork of one zygote would draw the same numbers
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        self._channel.send(READY)
        while True:
            order, descriptors = self._next()
            if order.kind == orders.FORK:
                self._fork(order.text.decode(), socket.socket(fileno=descriptors[0]))
                continue
            self._adopt(descriptors, order.has_stdin)
            if order.kind == orders.RUN:
                self._run(order)
                continue
            self._channel.close()
            os.close(self._null)
            if order.kind == orders.ARGV:
                _execute(json.loads(order.text))
            self._script(order.text, order.show_last)

    def _next(self) -> tuple[ConsoleCommand, list[int]]:
        try:
            message, rights, _, _ = self._channel.recvmsg(orders.ORDER_BYTES, _RIGHTS_BYTES)
        except BlockingIOError:  # the agent's doing
            self._channel.setblocking(True)
            return self._next()
        if not message:
            os._exit(0)
        descriptors = list(memoryview(rights[0][2]).cast("i")) if rights else []
        return orders.unpack(message, descriptors), descriptors

    def _adopt(self, descriptors: list[int], has_stdin: bool) -> None:
        """Use the received descriptors as stdin, stdout and stderr; those that were not sent stay as they are."""
        new_outputs = len(descriptors) > 1
        for descriptor, target in zip(descriptors, (0, 1, 2) if has_stdin else (1, 2), strict=False):
            os.dup2(descriptor, target)
            os.close(descriptor)
        if new_outputs:
            self._output_state = _output_state()
        if has_stdin or self._had_stdin:
            _streams.pop(0, None)  # it may have read ahead
        self._had_stdin = has_stdin
        sys.stdin = sys.__stdin__ = _stream(0)  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]

    def _script(self, program: bytes, show_last: bool) -> NoReturn:
        """Run a program as `python main.py` does, and end the process; print the last value if `show_last`."""

        def work() -> None:
            value = self._exec(program, "main.py", show_last=show_last)
            if value is not None:
                sys.stdout.write(repr(value) + "\n")

        self._leave(self._guarded(work))

    def _run(self, order: ConsoleCommand) -> None:
        """Execute one run of a session and send its reply."""
        value_text: bytes | None = None

        def work() -> None:
            nonlocal value_text
            value = self._exec(order.text, f"<run {order.number}>", show_last=order.show_last)
            if value is not None:
                value_text = shortened(repr(value).encode("utf-8", "backslashreplace"), order.value_bytes)

        code = self._guarded(work)
        if os.getpid() != self._pid:  # a child that the program forked, and that came all the way through
            self._leave(code)
        _flush()
        # The next run uses the same stdout and stderr if they are as they were and no thread prints meanwhile.
        intact = not _count_threads() and _output_state() == self._output_state
        for target in (0,) if intact else (0, 1, 2):
            os.dup2(self._null, target)
        self._channel.send(DONE + order.token + bytes((code, intact, value_text is not None)) + (value_text or b""))
        with contextlib.suppress(OSError):  # the folder is gone
            sys.path_importer_cache.pop(os.getcwd(), None)  # files may come before the next run

    def _exec(self, program: bytes, name: str, *, show_last: bool = False) -> object:
        """Compile and run a program in the session's variables.

        With `show_last`, return the value of its last expression.
        """
        text = program.decode("utf-8", "replace")
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        if not show_last:
            exec(compile(program, name, "exec", dont_inherit=True), self._main.__dict__)
            return None
        # As `ast.parse` does, which would show in the traceback of a syntax error.
        tree: Any = compile(program, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        final = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), self._main.__dict__)
        if not isinstance(final, ast.Expr):
            return None
        return eval(compile(ast.Expression(final.value), name, "eval", dont_inherit=True), self._main.__dict__)

    def _guarded(self, work: Callable[[], object]) -> int:
        """Call `work`, which runs the agent's code, and return its exit code. Print an exception as Python does."""
        try:
            try:
                _set_handler(_SIGINT, _interrupt)
                work()
            finally:
                _set_handler(_SIGINT, _IGNORE)  # a late signal belongs to no run
        except SystemExit as error:
            return _exit_code(error)
        except BaseException as error:  # the agent's own errors, whatever they are: it reads them
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _show(error)
            return 1
        return 0

    def _leave(self, code: int) -> NoReturn:
        """End the process as an interpreter ends, but leave it to the kernel to free the memory."""

        def run_exit_hooks() -> None:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as every script does
            import atexit

            atexit._run_exitfuncs()
            self._main.__dict__.clear()

        self._guarded(run_exit_hooks)
        _flush()
        os._exit(code)

    def _fork(self, area: str, channel: socket.socket) -> None:
        """Fork a branch with a copy of the files. It becomes an orphan, so that the session's init reaps it."""
        _flush()
        dice = random.getstate()  # `random` draws a new seed in every child; a branch is to go on as this one would
        try:
            middle = os.fork()
        except OSError:  # the program's own processes are as many as it may have; this one goes on
            channel.close()
            return
        if middle:
            os.waitpid(middle, 0)
            channel.close()
            return
        if os.fork():
            os._exit(0)
        random.setstate(dice)
        os.setsid()
        self._channel.close()
        for descriptor in (1, 2):
            os.dup2(self._null, descriptor)
        self._channel, self._pid = channel, os.getpid()
        folder = os.path.join(self._scratch, area, "0")
        try:
            shutil.copytree(self._folder, folder, symlinks=True, ignore=_special_files, dirs_exist_ok=True)
        except OSError:
            files.empty(folder)  # or the original would be short of room
            raise
        cell.enter_branch(area, self._settings)
        os.chdir(folder)
        self._folder = folder
        self._channel.send(FORKED + b"%d" % self._pid)


def _output_state() -> tuple[int, ...]:
    """Return which files stdout and stderr are and whether they block; empty if one of them is closed."""
    try:
        return os.fstat(1).st_ino, os.fstat(2).st_ino, os.get_blocking(1), os.get_blocking(2)
    except OSError:
        return ()


_streams: dict[int, io.TextIOWrapper] = {}


def _stream(descriptor: int) -> io.TextIOWrapper:
    """Return a line-buffered stream, so that output before a crash or a timeout is seen; a new one if it was closed."""
    with contextlib.suppress(KeyError, ValueError):  # ValueError: the program has detached it
        if not _streams[descriptor].closed:
            return _streams[descriptor]
    mode, errors = "w" if descriptor else "r", "backslashreplace" if descriptor == 2 else "strict"
    stream: Any = open(descriptor, mode, 1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    _streams[descriptor] = stream
    return _streams[descriptor]


def prepare() -> None:
    """Define `exit`, `quit`, `help` and others, which scripts expect and an interpreter without `site` lacks."""
    site.setquit()
    site.setcopyright()
    site.sethelper()


def _execute(words: list[str]) -> NoReturn:
    """Replace this process by another program; if that fails, exit with the status that a shell uses (126 or 127)."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    rlimits.free_address_space()
    try:
        os.execvp(words[0], words)
    except (OSError, ValueError) as error:  # no such program, or a word with a null byte
        os.write(2, f"{words[0]}: {getattr(error, 'strerror', error)}\n".encode("utf-8", "backslashreplace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(BaseException):  # the agent's object, the agent's stderr
        print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Print a traceback that begins with the agent's first frame."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == _show.__code__.co_filename:
        trace = trace.tb_next
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        else:
            traceback.print_exception(type(error), error, trace)
    except BaseException:  # the agent's object may fail even here
        os.write(2, f"{type(error).__name__}\n".encode("utf-8", "backslashreplace"))


def _flush() -> None:
    for name in ("stdout", "stderr"):
        with contextlib.suppress(BaseException):  # closed, replaced, gone, or its reader is: the agent's doing
            getattr(sys, name).flush()


def _special_files(folder: str, names: list[str]) -> list[str]:
    """Return the names that are not copied for a branch: pipes, sockets and devices."""
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [
        name for name, mode in modes.items() if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode))
    ]
