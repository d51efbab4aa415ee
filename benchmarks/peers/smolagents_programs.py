"""smolagents' local executor for `make bench-sandbox`: an interpreter in Python, in this process."""

from programs import Run, serve_programs
from smolagents import LocalPythonExecutor


def opened() -> Run:
    """Return a function that runs each program in a new executor, as each episode has its own."""

    def run(source: str) -> str:
        executor = LocalPythonExecutor(["numpy", "sympy"])
        executor.send_tools({})
        return str(executor(source).logs)

    return run


serve_programs(("smolagents",), {"executor": opened})
