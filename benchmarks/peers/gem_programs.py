"""gem-llm's Python tool for `make bench-sandbox`: its default, which starts a process without isolation."""

from gem.tools.python_code_tool import PythonCodeTool
from programs import Run, serve_programs


def opened() -> Run:
    """Return the tool as its environments call it."""
    tool = PythonCodeTool(timeout=60)
    return lambda source: str(tool.execute_action(f"<python>{source}</python>")[2])


serve_programs(("gem-llm",), {"tool": opened})
