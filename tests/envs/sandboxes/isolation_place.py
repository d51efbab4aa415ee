"""A zygote and its cells, for tests: `python -I -S isolation_place.py < request`, JSON in and out.

A process of its own, since a test's process has threads and must not change its namespaces. The request: `settings`,
`limits`, and `programs`, each run in a fresh session; the answer: for each what it printed and how it ended.
"""

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "envs" / "sandboxes"))
from runner import cell

OUTPUT = 60_000


def session(program: str, slot: int, limits: dict, settings: dict) -> dict:
    reader, writer = os.pipe()
    if (user := cell.user_of(slot, settings)) is not None:  # as the supervisor does
        os.fchown(writer, user, user)
    pid = cell.fork_session(settings)
    if pid == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(cell.enter_session(limits, slot, settings))
        cell.confine(limits, slot, settings)
        code = 0
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    status = os.waitpid(pid, 0)[1]
    with open(reader, "rb") as file:
        return {"text": file.read(OUTPUT).decode("utf-8", "replace"), "status": os.waitstatus_to_exitcode(status)}


def main() -> None:
    request = json.load(sys.stdin)
    answers = os.dup(1)
    cell.enter_zygote(request["settings"])
    found = [
        session(text, slot, request["limits"], request["settings"]) for slot, text in enumerate(request["programs"])
    ]
    with open(answers, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
