"""What a hostile program came to, in complaints: nothing got out, nothing is left, the next program runs as ever."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palaestra.envs.sandboxes import Limits, Result, Sandbox

from .program import Program
from .setting import Setting

SETTLING = 20.0
"""Seconds after its end in which all its processes and what they held must be gone. They themselves would stay for
minutes; a machine that is busy with others takes its time to end them.
"""
NEXT = 40.0
"""Seconds in which the next program must be over, on such a machine. It takes some hundredths of one."""
GROWTH = 10 * 2**20
"""Bytes by which no program may make the sandbox itself grow."""


def judge_once(sandbox: Sandbox, setting: Setting, program: Program) -> list[str]:
    """Run it in a place of its own."""
    limits = _limits(sandbox, program)
    before = size()
    began = time.monotonic()
    result = sandbox.run_once(program.code(setting.given), timeout=program.seconds, limits=limits)
    took = time.monotonic() - began
    complaints = [*_got_out(setting, program, result, took), *_flags(program, result), *_left(setting)]
    if not _settled(lambda: size() - before <= GROWTH):
        complaints.append(f"the sandbox grew by {(size() - before) / 2**20:.0f} MiB")
    return [*complaints, *_next_run(sandbox)]


def judge_session(sandbox: Sandbox, setting: Setting, program: Program) -> list[str]:
    """Run it where variables stay, between two harmless programs; close the session, and nothing of it is left."""
    with sandbox.start(limits=_limits(sandbox, program)) as session:
        session.run("kept = 41")
        began = time.monotonic()
        given = setting.given | {"channels": 1}  # Code and answers pass by it; what comes from there is not believed.
        result = session.run(program.code(given), timeout=program.seconds)
        took = time.monotonic() - began
        complaints = _got_out(setting, program, result, took)
        after = session.run("print(6 * 7, 'kept' in globals())", timeout=NEXT)
        wanted = f"42 {not result.state_lost}"
        if after.stdout.strip() != wanted:
            complaints.append(f"the session's next run printed {after.stdout[:200]!r} ({after}); expected {wanted!r}")
        if result.timed_out != ("timed_out" in program.expected and program.expected["timed_out"]):
            complaints.append(f"timed_out is {result.timed_out}")
    return [*complaints, *_left(setting)]


def size() -> int:
    """Bytes of memory of this process and its descendants, without what they share with a file."""
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    return total


def descendants(pid: int) -> set[int]:
    """Processes that come of this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if rest[0] != "Z":
            children.setdefault(int(rest[1]), []).append(int(path.parent.name))
    found, queue = set(), [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.add(child)
            queue.append(child)
    return found


def _limits(sandbox: Sandbox, program: Program) -> Limits | None:
    return replace(sandbox.limits, **program.limits) if program.limits else None


def _got_out(setting: Setting, program: Program, result: Result, took: float) -> list[str]:
    complaints = [
        f"it got through: its output holds {name}: {result.stdout[:600]!r}"
        for name, text in (("a secret", setting.secret), ("its token", setting.token))
        if text in result.stdout or (name == "a secret" and text in result.stderr)
    ]
    if result.value is not None:
        complaints.append(f"it has a value, {result.value!r}, which nobody asked for")
    if took > program.seconds + program.late:
        complaints.append(f"it returned after {took:.2f} s, {program.seconds:g} s were allowed")
    return [*complaints, *setting.harm()]


def _flags(program: Program, result: Result) -> list[str]:
    complaints = [program.check(result)]
    wanted: Mapping[str, Any] = {"timed_out": False, **program.expected}
    for name, value in wanted.items():
        found, allowed = getattr(result, name), value if isinstance(value, tuple) else (value,)
        if found not in allowed:
            complaints.append(f"{name} is {found!r}; expected {' or '.join(map(repr, allowed))} ({str(result)[:800]})")
    return [complaint for complaint in complaints if complaint]


def _left(setting: Setting) -> list[str]:
    return [] if _settled(lambda: not setting.left_running()) else ["some of its processes are left"]


def _settled(holds: Callable[[], bool]) -> bool:
    """Whether something comes to hold in time."""
    until = time.monotonic() + SETTLING
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.02)
    return held


def _next_run(sandbox: Sandbox) -> list[str]:
    began = time.monotonic()
    result = sandbox.run_once("print(6 * 7)", timeout=NEXT)
    took = time.monotonic() - began
    complaints = [] if result.stdout == "42\n" and result.ok else [f"the next program came to {result}"]
    return complaints + [f"the next program took {took:.2f} s"] * (took > NEXT)
