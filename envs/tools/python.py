"""The `python` tool: a sandbox runs the agent's code, and the agent sees what it prints and the value of its last line.

`Python` keeps one session in each episode; with `stateful = False` each call is a separate program. Code inside a
Markdown fence is taken out of the fence. Left out: shell commands (`shell`).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from palaestra.envs.core.tool import Tool, tool
from palaestra.envs.sandboxes import Limits
from palaestra.envs.tools.sandboxed import SandboxedToolkit
from palaestra.errors import ToolError

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_WORDS = {
    (True, False): "Run Python code and read what it prints. Variables stay from call to call.",
    (False, True): "Run a Python program and read what it prints and what its last line comes to.",
    (False, False): "Run a Python program and read what it prints.",
}
"""The tool's description by `stateful` and `show_last`, unless both are true."""


class Python(SandboxedToolkit):
    """Runs Python. A subclass changes settings: `class Mine(Python): stateful = False`."""

    keeps_variables = True
    show_last: bool = True
    """Show the value of a last expression, as a notebook does."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        words = _WORDS.get((cls.stateful, cls.show_last))
        for name, plain in cls.tools.items():
            if words is not None and plain.function is Python.python:
                cls.tools[name] = _with_description(plain, words)

    @tool
    async def python(self, code: str) -> str:
        """Run Python code and read what it prints and what its last line comes to. Variables stay from call to call."""
        return await self.run_code(code)

    async def run_code(self, code: str) -> str:
        """Run code as the tool does. For subclasses whose tool has another name or description."""
        code = without_fence(code)
        try:
            size = len(code.encode())
        except UnicodeEncodeError:
            raise ToolError("the code is not valid Unicode text") from None
        if size > self.limits.code_bytes:
            raise ToolError(f"the code has {size} bytes; at most {self.limits.code_bytes} are run")
        return await self.run(code, show_last=self.show_last)


class CodeInterpreter(Python):
    """The tool of arXiv:2510.11701: another name, a new program in each call, 30 seconds and 2 GiB."""

    stateful = False
    limits = Limits(seconds=30.0, memory_bytes=2 * 2**30)

    @tool(name="code_interpreter")
    async def python(self, code: str) -> str:
        """Run a Python program and read what it prints and what its last line comes to."""
        return await self.run_code(code)


def without_fence(code: str) -> str:
    """Return the content of the first Markdown fence, or all of the code if no fence is outside its own strings."""
    match = _FENCE.search(code)
    if match is None or any(code.count(quotes, 0, match.start()) % 2 for quotes in ('"""', "'''")):
        return code
    return match[1]


def _with_description(plain: Tool, words: str) -> Tool:
    schema: Mapping[str, Any] = plain.schema
    return replace(plain, schema={**schema, "function": {**schema["function"], "description": words}})
