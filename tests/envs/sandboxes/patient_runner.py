"""The local sandbox's runner, which interrupts no program that has not printed yet, and waits long before it kills.

The runner itself counts on a machine that has time: a program that has not begun when its time is over, or does not end
within a third of a second of its interrupt, loses its variables. Tests of what an interrupted session keeps are about a
program that began and was heard: they use `patient()`. This file is also what is run then, in place of the runner's
folder: `python -I -S patient_runner.py supervisor SETTINGS`.
"""

import sys
import time
from pathlib import Path

SECONDS = 60.0
_SANDBOXES = Path(__file__).resolve().parents[3] / "envs" / "sandboxes"


def patient(monkeypatch, **options):
    """A local sandbox that gives a program as long as it needs."""
    from palaestra.envs.sandboxes import supervised
    from palaestra.envs.sandboxes.local import LocalSandbox

    with monkeypatch.context() as patch:
        patch.setattr(supervised, "_RUNNER", Path(__file__))
        return LocalSandbox(**options)


def main() -> None:
    """Be the supervisor, but for that."""
    sys.path.insert(0, str(_SANDBOXES))
    from runner import runs, supervisor

    sys.path.remove(str(_SANDBOXES))
    stop = runs.ProgramRun._stop

    def stop_once_it_has_begun(run, command):
        latest, said = time.monotonic() + SECONDS, run.outputs.out.capture
        while not said.size and not run._process.done() and time.monotonic() < latest:
            yield time.monotonic() + 0.01
        yield from stop(run, command)

    runs.ProgramRun._stop = stop_once_it_has_begun
    runs.GRACE_SECONDS = SECONDS
    supervisor.main()


if __name__ == "__main__":
    main()
