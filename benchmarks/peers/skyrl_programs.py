"""skyrl-gym's Python tool for `make bench-sandbox`: a bare process per call."""

from programs import Run, serve_programs
from skyrl_gym.tools.python import PythonCodeExecutorToolGroup


def opened() -> Run:
    """Return the tool as its environments call it."""
    group = PythonCodeExecutorToolGroup(timeout=60.0)
    return lambda source: str(group.python(source))


serve_programs(("skyrl-gym",), {"tool": opened})
