"""The fence call format: a fenced block of Python is a call of the python tool.

The dialect of base models and of CodeAct (2402.01030). Every other block is text. The tool is the one named `python`,
otherwise the first that takes `code`. A fence of more backticks may contain shorter ones. A block may be indented, as
in a list: the indent of its fence is removed from the code. Left out: tools that take anything else, and blocks without
a closing fence, since nothing shows that they were complete.
"""

import re

from palaestra.errors import UsageError
from palaestra.formats.dialect import Dialect
from palaestra.formats.parsed import ParsedCall
from palaestra.formats.scanning import THINK, TurnScan
from palaestra.formats.values import code_tool

EXAMPLE = "```python, the code on lines of its own, ``` on a line of its own"

MAX_BACKTICKS = 32
"""Maximum backticks of a fence that is read."""
MAX_INFO = 80
"""Maximum characters after the backticks that open a block."""

_TICKS = rf"`{{3,{MAX_BACKTICKS}}}"
MARKERS = re.compile(
    rf"(?:^|(?<=</think>))([ \t]*+)({_TICKS})(?i:python3?|py)\b[^`\n]{{0,{MAX_INFO}}}+(?:\n|\Z)|{THINK}", re.MULTILINE
)
"""Pattern of the beginning of a Python block, and of thinking tags."""
_CLOSERS = re.compile(rf"^([ \t]*+)({_TICKS})[ \t\r]*+$", re.MULTILINE)


def _written(call: ParsedCall) -> str:
    code = call.arguments.get("code")
    if len(call.arguments) != 1 or not isinstance(code, str):
        raise UsageError(f"a call of {call.name!r} cannot be written in the fence format; expected one argument, code")
    longest = max((len(line[2]) for line in _CLOSERS.finditer(code) if not line[1]), default=0)
    if longest == MAX_BACKTICKS:
        raise UsageError(f"the code has a line of {longest} backticks; the fence format reads no longer fence")
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}python\n{code}\n{ticks}"


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, begin, indent, name = turn.text, marker.end(), len(marker[1]), code_tool(turn.tools) or "python"
    for closer in _CLOSERS.finditer(text, begin):
        if len(closer[2]) >= len(marker[2]) and len(closer[1]) <= indent:
            code = text[begin : max(closer.start() - 1, begin)]
            turn.add(
                ParsedCall(name, {"code": _dedented(code, indent) if indent else code}),
                begin,
            )
            return closer.end()
    turn.fault(f"the block has no closing {marker[2]}", len(text))
    return len(text)


def _dedented(code: str, indent: int) -> str:
    """Return code without the indent of its fence. A line with a smaller indent loses its whole indent."""
    lines = code.split("\n")
    return "\n".join(line[min(indent, len(line) - len(line.lstrip(" \t"))) :] for line in lines)


_DIALECT = Dialect(EXAMPLE, MARKERS, _read, _written)
parse, render = _DIALECT.parse, _DIALECT.render
