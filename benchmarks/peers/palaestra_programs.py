"""palaestra's side of `make bench-sandbox`: the local sandbox, one-shot and stateful, and the Docker backend."""

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from programs import PROGRAMS, Run, below, memory_of, serve_programs

from palaestra.envs.sandboxes import Session, open_sandbox
from palaestra.envs.sandboxes.docker.images import tag

STATE = "value = 0"
STEP = "value += 1\nprint(value)"
NUMPY_WORK = (
    "import numpy as np\nm = np.random.default_rng(0).normal(size=(100, 100))\nprint(round(float((m @ m).sum())))"
)


def once(backend: str = "local", **options: Any) -> Callable[[], Run]:
    """Return a maker of functions that run each program alone (`run_once`)."""

    def opened() -> Run:
        sandbox = open_sandbox(backend, **options)
        return lambda source: sandbox.run_once(source, timeout=60.0).stdout

    return opened


def stateful() -> Run:
    """Return a function that runs each program in a new session: the cost of an episode with one call."""
    sandbox = open_sandbox()

    def run(source: str) -> str:
        with sandbox.start() as session:
            return session.run(source, timeout=60.0).stdout

    return run


def steps(count: int) -> dict[str, float]:
    """Return the milliseconds of a step in an open session."""
    with open_sandbox() as sandbox, sandbox.start() as session:
        session.run(STATE)
        taken = []
        for number in range(count):
            began = time.perf_counter()
            result = session.run(STEP)
            taken.append(time.perf_counter() - began)
            if result.stdout.strip() != str(number + 1):
                raise RuntimeError(f"step {number} printed {result.stdout!r}")
    return {"wall_ms": statistics.median(taken) * 1e3, "least_ms": min(taken) * 1e3}


def forks(count: int) -> dict[str, float]:
    """Return the milliseconds of a fork of a session after work with numpy."""
    with open_sandbox() as sandbox, sandbox.start() as session:
        session.run(NUMPY_WORK)
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            branch = session.fork()
            taken.append(time.perf_counter() - began)
            branch.close()
    return {"wall_ms": statistics.median(taken) * 1e3, "least_ms": min(taken) * 1e3}


def weigh(sessions: int) -> dict[str, float]:
    """Return the bytes of an idle session, those after work with numpy, and whether all sessions existed at once."""
    import os

    with open_sandbox() as sandbox:
        first = sandbox.start()
        first.run("print(1)")
        before = sum(memory_of(number) for number in below(os.getpid()))
        began = time.perf_counter()
        held: list[Session] = [sandbox.start() for _ in range(sessions)]
        started = time.perf_counter() - began
        idle = sum(memory_of(number) for number in below(os.getpid()))
        printed = {session.run(NUMPY_WORK, timeout=60.0).stdout for session in held}
        worked = sum(memory_of(number) for number in below(os.getpid()))
        alive = sum(session.run("print(m.shape)").stdout.strip() == "(100, 100)" for session in held)
        for session in [*held, first]:
            session.close()
    return {
        "idle_bytes": (idle - before) / sessions,
        "worked_bytes": (worked - before) / sessions,
        "start_ms": started / sessions * 1e3,
        "alive": alive if len(printed) == 1 else 0,
        "most_rss_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def overshoot(limit: float) -> dict[str, float]:
    """Return the seconds past the time limit until an endless run is stopped, the largest of several kinds."""
    endless = (
        "while True: pass",
        "import time; time.sleep(100)",
        "9 ** 9 ** 8",
        "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
    )
    taken: list[float] = []
    with open_sandbox() as sandbox:
        for source in endless:
            for run in (sandbox.run_once, sandbox.start().run):
                began = time.perf_counter()
                result = run(source, timeout=limit)
                taken.append(time.perf_counter() - began - limit)
                if not result.timed_out:
                    raise RuntimeError(f"{source!r} ended before its time: {result}")
    return {"seconds": max(taken)}


def docker_run(count: int) -> dict[str, float]:
    """Return the milliseconds of a run in the Docker backend, and of `docker exec python -c` in a container of the same
    image.
    """
    import docker  # type: ignore[import-untyped]

    client = docker.from_env()
    source, expected = PROGRAMS["print"]
    ours: list[float] = []
    theirs: list[float] = []
    with open_sandbox("docker") as sandbox:
        sandbox.run_once(source)
        box = client.containers.run(tag("python"), ["sleep", "600"], entrypoint=[], detach=True, network_mode="none")
        try:
            for _ in range(count):
                began = time.perf_counter()
                printed = sandbox.run_once(source).stdout
                ours.append(time.perf_counter() - began)
                began = time.perf_counter()
                code, output = box.exec_run(["python3", "-c", source])
                theirs.append(time.perf_counter() - began)
                if expected not in printed or code or expected not in output.decode():
                    raise RuntimeError(f"printed {printed!r} and {output!r}")
        finally:
            box.remove(force=True)
            client.close()
    return {"wall_ms": statistics.median(ours) * 1e3, "exec_ms": statistics.median(theirs) * 1e3}


serve_programs(
    ("palaestra", "numpy", "sympy"),
    {"once": once(), "session": stateful},
    steps=steps,
    forks=forks,
    weigh=weigh,
    overshoot=overshoot,
    docker_run=docker_run,
)
