"""Files put, read and listed from outside; one session beside another."""

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from palaestra.envs.sandboxes import Sandbox
from palaestra.errors import UsageError

from .scene import marked, refused, scene, until
from .setting import Setting

# Files from outside.


@scene
def links_are_not_followed(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """`get`, `put` and `listdir` stay in the session's folder, whatever the agent has put in their way."""
    with sandbox.start() as session:
        made = session.run(
            f"import os\nos.symlink({str(setting.tmp_secret)!r}, 'file')\n"
            f"os.symlink({str(setting.outside)!r}, 'folder')\n"
            "os.symlink('/', 'root')\nos.symlink('..', 'up')\nos.mkfifo('pipe')\nos.symlink('itself', 'itself')\n"
            "os.mkdir('inner')\nopen('inner/good', 'w').write('fine')\nos.symlink('/proc/self/fd/0', 'magic')"
        )
        complaints = [] if made.ok else [f"it could not be set up: {made}"]
        attempts: dict[str, Callable[[], object]] = {
            f"get {path}": lambda path=path: session.get(path)  # type: ignore[misc]
            for path in ("file", "root/etc/passwd", f"root{setting.tmp_secret}", "itself", "pipe", "magic", "inner")
        }
        attempts |= {
            f"put {path}": lambda path=path: session.put(path, b"x")  # type: ignore[misc]
            for path in ("file", "folder/planted", "up/planted", "itself/x", "inner", "pipe/x")
        }
        attempts |= {
            f"listdir {path}": lambda path=path: session.listdir(path)  # type: ignore[misc]
            for path in ("folder", "root", "up", "file")
        }
        complaints += refused(attempts)
        if session.get("inner/good") != b"fine":
            complaints.append("a good file could not be read")
        if not session.run("print(1)").ok:
            complaints.append("the session has suffered")
    return complaints + setting.harm()


@scene
def paths_do_not_climb(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """Paths that lead elsewhere are refused, and those of a start as well."""
    planted = f"{setting.outside}/planted"
    elsewhere = ["../planted", "a/../../planted", f"..{'/..' * 20}{planted}", planted, "/etc/passwd", "", "a\x00b",
                 "/proc/self/environ", "x" * 5000, "x" * 300]  # fmt: skip
    with sandbox.start() as session:
        attempts: dict[str, Callable[[], object]] = {
            f"put {path[:50]!r}": lambda path=path: session.put(path, b"x")  # type: ignore[misc]
            for path in elsewhere
        }
        attempts |= {
            f"get {path[:50]!r}": lambda path=path: session.get(path)  # type: ignore[misc]
            for path in elsewhere
        }
        attempts |= {f"listdir {path!r}": lambda path=path: session.listdir(path) for path in ("..", "/", "/etc")}  # type: ignore[misc]
        complaints = refused(attempts)

        def begin(path: str) -> None:
            with sandbox.start(files={path: b"x"}):
                pass

        complaints += refused({f"start {path[:50]!r}": lambda path=path: begin(path) for path in elsewhere})  # type: ignore[misc]
        session.put("a/b/c", b"good")
        if session.get("a/b/c") != b"good" or session.listdir("a") != ["b/"]:
            complaints.append("a good path was refused")
    return complaints + setting.harm()


@scene
def a_folder_that_is_gone_or_deep_or_full(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """What an agent does to its folder ends with the session, and `reset` copes with it."""
    with sandbox.start() as session:
        session.run("import os\ntry:\n os.rmdir(os.getcwd())\nexcept OSError: pass")
        with contextlib.suppress(OSError):
            session.put("a", b"x")
        session.reset()
        session.put("a", b"x")
        session.run("import os\nfor _ in range(1500):\n os.mkdir('d'); os.chdir('d')")
        session.reset()
        session.run("for n in range(10000):\n try: open(f'n{n}', 'w')\n except OSError: break")
        names = len(session.listdir())
        session.reset()
        session.put("a", b"new")
        complaints = [] if session.get("a") == b"new" and session.listdir() == ["a"] else ["reset has not reset"]
        if not 10 < names <= sandbox.limits.scratch_files:
            complaints.append(f"{names} names were listed")
        for size, good in ((sandbox.limits.file_bytes, True), (sandbox.limits.file_bytes + 1, False)):
            try:
                session.put("large", bytes(size))
                complaints += [] if good else ["a file beyond its limit was put"]
            except (OSError, UsageError) as error:
                complaints += [f"a file at its limit was refused: {error}"] if good else []
    return complaints


# One session beside another.


@scene
def sessions_do_not_see_each_other(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """Neither variables nor patched functions nor files nor sockets nor processes pass from one to the next."""
    complaints = []
    with sandbox.start(files={"mine": b"x"}) as one, sandbox.start() as two:
        one.run(
            "import builtins, sys, math, os, socket, threading\nbuiltins.len = lambda _: 99\nmath.pi = 3\nsecret = 5\n"
            "sys.modules['json'] = None\nopen('/tmp/left', 'w').write('x')\n"
            "try:\n server = socket.socket(socket.AF_UNIX); server.bind('\\0meet'); server.listen()\n"
            "except OSError: pass"
        )
        seen = two.run(
            "import json, math, os\nprint(len([1]), round(math.pi, 2), 'secret' in globals(), os.listdir('.'), "
            "os.path.exists('/tmp/left'))"
        )
        if seen.stdout.strip() != "1 3.14 False [] False":
            complaints.append(f"the second session saw {seen.stdout!r} {seen.stderr[-300:]!r}")
        names = (
            "import socket\nprint('met' if 'meet' in open('/proc/self/net/unix').read() else 'none')\n"
            "for attempt in ('bind', 'connect'):\n try: getattr(socket.socket(socket.AF_UNIX), attempt)('\\0meet')\n"
            " except OSError as error: print('met' if error.errno == 98 else error)\n else: print(attempt)"
        )
        met = two.run(names)
        if "met" in met.stdout or "connect" in met.stdout:
            complaints.append(f"the sessions meet by the name of an abstract socket: {met.stdout!r}")
        two.run("import os\nfor pid in range(2, 300):\n try: os.kill(pid, 9)\n except OSError: pass\nos.kill(-1, 9)")
        kept = one.run("print(secret)")
        if kept.stdout != "5\n":
            complaints.append(f"the second session has harmed the first: {kept}")
    if "1" not in sandbox.run_once("print(len([1]))").stdout:
        complaints.append("a later program saw the patched function")
    return complaints


@scene
def libraries_are_fresh_in_every_run(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """What a program does to numpy and sympy is not seen by the next one; random numbers differ between runs."""
    sandbox.run_once(
        "import numpy, sympy\nnumpy.pi = 3\nnumpy.set_printoptions(precision=1)\nsympy.pi = 3\nnumpy.random.seed(1)"
    )
    seen = sandbox.run_once(
        "import numpy, sympy\nprint(round(numpy.pi, 2), sympy.pi, numpy.get_printoptions()['precision'])"
    )
    saw = f"the second program saw {seen.stdout!r} {seen.stderr[-300:]!r}"
    complaints = [] if seen.stdout == "3.14 pi 8\n" else [saw]
    drawn = {
        sandbox.run_once("import random, numpy, uuid\nprint(random.random(), numpy.random.rand(), uuid.uuid4())").stdout
        for _ in range(3)
    }
    for column, name in enumerate(("random", "numpy", "uuid")):
        if len({line.split()[column] for line in drawn if line}) != 3:
            complaints.append(f"{name} draws the same numbers in every run")
    return complaints


@scene
def children_that_relay_each_other_end(sandbox: Sandbox, setting: Setting, backend: str) -> list[str] | None:
    """A chain of children, each in a session of its own, has the CPU time of one session; nobody waits for it."""
    if backend != "local":
        return None  # The engine bounds what a container computes.
    relay = (
        "import os, time\nif not os.fork():\n for _ in range(10_000):\n  os.setsid()\n"
        "  while time.process_time() < 0.2: pass\n  if os.fork(): os._exit(0)"
    )
    with sandbox.start(limits=replace(sandbox.limits, cpu_seconds=2.0)) as session:
        began = session.run(marked(setting, relay))
        complaints = [] if began.ok else [f"it did not begin: {began}"]
        if not asyncio.run(until(lambda: not setting.left_running())):
            complaints.append("the children relay each other for ever")
    return complaints


@scene
def what_keeps_a_session_from_being_forked_is_its_own_failure(
    sandbox: Sandbox, setting: Setting, backend: str
) -> list[str] | None:
    """The branch says so; it is neither an error of the caller's nor of the sandbox's, and the original goes on."""
    if not sandbox.capabilities().forks:
        return None
    complaints = []
    for program in (
        "for n in range(9): open(f'f{n}', 'wb').write(bytes(5 << 20))",
        "try:\n for n in range(10**6): open(f'f{n}', 'w').close()\nexcept OSError: pass",
        "import os\nopen('f', 'w').close(); os.mkdir('d')\nfor name in 'fd.': os.chmod(name, 0)",
        "import os\nos.closerange(3, 1024)",
        "import os, signal\ntry:\n while os.fork(): pass\n signal.pause()\nexcept OSError: pass",
    ):
        with sandbox.start() as session:
            session.run("kept = 41")
            session.run(program)
            with session.fork() as branch:
                first, second = branch.run("print(kept + 1)"), branch.run("print(6 * 7)")
            if "42" not in (first.stdout + second.stdout) or (not first.ok and not first.stderr):
                complaints.append(f"after {program!r} the branch answers {first}, then {second}")
            if not session.run("print(1)", timeout=60.0).ok and "closerange" not in program:
                complaints.append(f"after {program!r} the original is gone")
    return complaints


@scene
def others_are_served_during_a_fork_bomb(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """A neighbour's programs take at most twice as long, and a moment."""

    def latency() -> float:
        samples = []
        for _ in range(12):
            began = time.monotonic()
            assert sandbox.run_once("print(1)", timeout=60.0).stdout == "1\n"
            samples.append(time.monotonic() - began)
        return statistics.median(samples)

    def measured() -> tuple[float, float]:
        """Before and after it, whichever is longer, and beside it."""
        before = latency()
        bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
        thread = threading.Thread(target=lambda: sandbox.run_once(marked(setting, bomb), timeout=2.5))
        thread.start()
        time.sleep(0.5)
        beside = latency()
        thread.join()
        return max(before, latency()), beside

    # Others of this machine are busy now and then; a bomb that is in the way would be so every time.
    rounds = []
    for _ in range(4):
        rounds.append(measured())
        if any(beside <= 2 * quiet + 0.05 for quiet, beside in rounds):
            return []
    told = "; ".join(f"{beside * 1000:.0f} ms beside it, {quiet * 1000:.0f} ms without" for quiet, beside in rounds)
    return [f"a program took {told}"]
