"""Deaths of whatever the sandbox is made of, and of whoever opened it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from palaestra.envs.sandboxes import Sandbox, Session, open_sandbox
from palaestra.errors import Broken, UsageError

from .judging import descendants
from .program import PRELUDE
from .scene import SECONDS, alive, born, children, groups, marked, mounts, scene, until
from .setting import Setting

# Ends of the sandbox itself.


@scene
def cancelling_a_run_kills_its_tree(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """Whoever cancels an async run has ended all its processes."""
    program = marked(setting, "import os\nfor _ in range(3): os.fork()\nwhile True: pass")

    async def cancel() -> list[str]:
        complaints = []
        session = await sandbox.astart()
        for run in (sandbox.arun_once(program, timeout=600), session.arun(program, timeout=600)):
            task = asyncio.create_task(run)
            if not await until(setting.left_running):
                complaints.append("the run has not begun")
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if not await until(lambda: not setting.left_running()):
                complaints.append(f"{len(setting.left_running())} of its processes are left")
        await session.aclose()
        return complaints

    return asyncio.run(cancel())


@scene
def closing_during_a_run_ends_it(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """From another thread: the run returns, its processes are gone."""
    session, outcome = sandbox.start(), []

    def work() -> None:
        try:
            outcome.append(session.run(marked(setting, "while True: pass"), timeout=600))
        except (Broken, UsageError) as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    begun = asyncio.run(until(setting.left_running))
    session.close()
    thread.join(SECONDS)
    asyncio.run(until(lambda: not setting.left_running()))
    complaints = ["the run has not begun"] * (not begun) + ["the run goes on"] * thread.is_alive()
    return complaints + ["its processes are left"] * bool(setting.left_running())


@scene
def killing_the_parts_is_noticed_and_mended(sandbox: Sandbox, setting: Setting, backend: str) -> list[str] | None:
    """A zygote or the supervisor dies: what ran there is Broken, never a result; what comes next runs as ever."""
    if backend != "local":
        return None
    complaints, others = [], descendants(os.getpid())
    with open_sandbox(backend) as own:
        own.run_once("import sympy")
        for depth in ("zygotes", "supervisor"):
            outcome, session = [], own.start()
            session.run("x = 1")

            def work(session: Session = session, outcome: list[object] = outcome) -> None:
                try:
                    outcome.append(session.run(marked(setting, "while True: pass"), timeout=600))
                except Exception as error:  # Whatever it is, it is looked at below.
                    outcome.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            asyncio.run(until(setting.left_running))
            supervisors = [pid for pid in children(os.getpid()) - others if children(pid)]
            parts = (
                {child for pid in supervisors for child in children(pid)} if depth == "zygotes" else set(supervisors)
            )
            family = {pid: born(pid) for part in parts for pid in (part, *descendants(part))}
            for pid in parts:
                os.kill(pid, signal.SIGKILL)
            thread.join(SECONDS)
            if not outcome or not isinstance(outcome[0], Broken):
                complaints.append(f"{depth} killed ({parts}): the run came to {outcome}")
            if not asyncio.run(until(lambda family=family: not setting.left_running() and not alive(family))):
                complaints.append(f"{depth} killed: its processes are left")
            session.close()
            again = own.run_once("print(6 * 7)")
            if again.stdout != "42\n":
                complaints.append(f"{depth} killed: the next program came to {again}")
    return complaints


@scene
def killing_the_trainer_leaves_nothing(sandbox: Sandbox, setting: Setting, backend: str) -> list[str]:
    """No process, no mount, no control group of it is there soon after."""
    mounted = mounts()
    words = [sys.executable, "-m", "hostile.scenes_of_ends", backend, setting.mark]
    trainer = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    assert trainer.stdout is not None
    with trainer:
        line = trainer.stdout.readline()
        family, running = {pid: born(pid) for pid in descendants(trainer.pid)}, setting.left_running()
        trainer.kill()
    complaints = [] if line == b"ready\n" and running else [f"it could not be set up: {line!r}"]

    if not asyncio.run(until(lambda: not setting.left_running() and not alive(family))):
        complaints.append(f"processes are left: {setting.left_running()} {alive(family)}")
    if not asyncio.run(until(lambda: not groups(family))):
        complaints.append(f"control groups are left: {groups(family)}; the next start should sweep them")
    if mounts() - mounted:
        complaints.append("mounts are left")
    return complaints


def _train(backend: str, mark: str) -> None:
    """The trainer that is killed: a session with a daemon, and a run that goes on."""
    with open_sandbox(backend) as sandbox, sandbox.start() as session:
        prelude = PRELUDE.format(mark=mark)
        session.run(prelude + "import os, time\nif not os.fork():\n os.setsid()\n time.sleep(1000)")
        threading.Timer(0.5, lambda: print("ready", flush=True)).start()
        session.run(prelude + "while True: pass", timeout=600)


if __name__ == "__main__":
    _train(*sys.argv[1:])
