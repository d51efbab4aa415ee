"""A process that opens a sandbox, as root or as an ordinary user, and judges the programs that it is told of.

    python -m hostile.driver BACKEND USER     (from the folder above; USER is a number, or `same` for whoever calls)

A line in is `["once" or "session" or "scene", NAME]`; a line out is a list of complaints, or `null` where the guard
that would stop the program is absent and the capabilities say so. The first line out tells what the sandbox is capable
of, or `{"unavailable": why}`.
"""

import json
import os
import sys
import traceback
from dataclasses import asdict

from palaestra.envs.sandboxes.docker import hardening

from .becoming import become, open_the_way

OPTIONS = {"docker": {"preload": "bare"}}
"""Most programs use up their container, and a warm numpy is most of what a new one costs."""
ROOM = {"docker": hardening.RUNNER_PROCESSES}
"""Processes beyond the limit, where the runner's own are counted with the program's."""


def main() -> None:
    """Judge until there are no more lines."""
    backend, user = sys.argv[1], sys.argv[2]
    if user != "same":
        try:
            open_the_way()
        except OSError as error:  # Root of a plain container, who may mount nothing.
            print(json.dumps({"unavailable": f"another user cannot reach the interpreter: {error}"}), flush=True)
            return
        become(int(user))
        os.chdir("/")
    from palaestra.envs.sandboxes import open_sandbox
    from palaestra.errors import SandboxUnavailable

    from . import scenes
    from .families import PROGRAMS
    from .judging import judge_once, judge_session
    from .setting import Setting

    try:
        opened = open_sandbox(backend, **OPTIONS.get(backend, {}))
    except SandboxUnavailable as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return
    with Setting(bare=False) as setting, opened as sandbox:
        if backend == "local":
            sandbox.run_once("import numpy, sympy")
        setting.processes = sandbox.limits.processes + ROOM.get(backend, 0)
        found = asdict(sandbox.capabilities())
        print(json.dumps(found), flush=True)
        for line in sys.stdin:
            way, name = json.loads(line)
            try:
                if way == "scene":
                    complaints = scenes.SCENES[name](sandbox, setting, backend)
                else:
                    guard = PROGRAMS[name].guard
                    judge = judge_once if way == "once" else judge_session
                    complaints = judge(sandbox, setting, PROGRAMS[name]) if not guard or found[guard] else None
            except Exception:  # It is this program's complaint; the next one is to be judged all the same.
                complaints = [traceback.format_exc()]
            print(json.dumps(complaints), flush=True)


if __name__ == "__main__":
    main()
