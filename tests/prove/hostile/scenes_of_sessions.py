"""How the process of a session ends, and how runs before and after that stay apart."""

import asyncio
import contextlib
import os
import time

from palaestra.envs.sandboxes import Sandbox

from .judging import descendants
from .scene import readable, scene, until
from .setting import Setting

# Ends of a session's process.


@scene
def a_dead_process_is_replaced(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """However it died: the result says so, the next run has a new one, and the files are there."""
    ends = {
        "import os; os._exit(0)": (0, None),
        "import os; os._exit(7)": (7, None),
        "import os; os.kill(os.getpid(), 9)": (None, 9),
        "import ctypes; ctypes.string_at(0)": (None, 11),
    }
    complaints = []
    with sandbox.start(files={"kept": b"1"}) as session:
        for program, (code, number) in ends.items():
            session.run("x = 5")
            died = session.run(program)
            after = session.run("print('x' in globals(), open('kept').read())")
            if not died.state_lost or died.exit_code != code or died.signal != number or died.ok:
                complaints.append(f"{program}: {died}")
            if after.stdout != "False 1\n" or after.state_lost:
                complaints.append(f"after {program}: {after}")
        for program in ("quit()", "raise SystemExit(0)", "import sys; sys.exit(3)"):
            ended, after = session.run(program), session.run("print(1)")
            if after.stdout != "1\n" or ended.timed_out:
                complaints.append(f"{program}: {ended}, then {after}")
    return complaints


@scene
def a_forged_answer_confuses_no_later_run(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """Frames written into the session's own channel may end the run; the next runs answer for themselves."""
    forge = (
        "import json, os, struct\n"
        "body = json.dumps({'ok': True, 'exit_code': 0, 'value': 'forged', 'stdout': 'forged'}).encode()\n"
        "messages = [struct.pack('<II', len(body), 0) + body, body + b'\\n', b'x' * 100] * 3\n"
        "for number in range(3, 1024):\n"
        " for message in messages:\n"
        "  try: os.set_blocking(number, False); os.write(number, message)\n"
        "  except OSError: pass\n"
    )
    complaints = []
    with sandbox.start() as session:
        for ending in ("", "os._exit(7)", "import time; time.sleep(0.3); os._exit(7)", "os.closerange(3, 1024)"):
            session.run(forge + ending, timeout=40.0)
            time.sleep(0.4)
            for number in range(3):
                after = session.run(f"print({number})", timeout=40.0)
                if after.stdout != f"{number}\n" or after.value is not None:
                    complaints.append(f"after {ending!r}, run {number}: {after}")
    return complaints


@scene
def input_that_nobody_reads_holds_up_nobody(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """A program that does not read what it is given, or closes it, ends as ever."""
    complaints, given = [], bytes(sandbox.limits.code_bytes)
    for program in ("print(1)", "import os; os.close(0); print(1)"):
        began = time.monotonic()
        result = sandbox.run_once(program, stdin=given, timeout=600.0)
        if result.stdout != "1\n" or time.monotonic() - began > 60.0:
            complaints.append(f"{program}: {result}")
    read = sandbox.run_once("import sys; print(len(sys.stdin.buffer.read()))", stdin=given, timeout=60.0)
    if read.stdout.strip() != str(len(given)):
        complaints.append(f"all of it was read as {read}")
    return complaints


@scene
def a_thousand_beginnings_leave_nothing_open(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """Descriptors and processes are as many afterwards as before."""

    def open_now() -> int:
        found = 0
        for pid in readable(os.getpid()):
            with contextlib.suppress(OSError):  # it ended while it was looked at
                found += len(os.listdir(f"/proc/{pid}/fd"))
        return found

    def held() -> tuple[int, int]:
        return open_now(), len(descendants(os.getpid()))

    def once() -> None:
        with sandbox.start(files={"a": b"x"}) as session:
            session.run("import os\nif not os.fork():\n import time; time.sleep(600)")

    def settled() -> tuple[int, int]:
        """What is held when nothing is ending any more: the least that is seen for a while."""
        looks = []
        for _ in range(20):
            looks.append(held())
            time.sleep(0.02)
        return min(looks)

    for _ in range(3):
        once()
    before = settled()
    for _ in range(40 if backend == "local" else 3):
        once()

    def as_before() -> bool:
        after = held()
        return after[0] <= before[0] + 5 and after[1] <= before[1] + 1

    return [] if asyncio.run(until(as_before)) else [f"(descriptors, processes) {before} -> {held()}"]
