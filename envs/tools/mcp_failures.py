"""One sentence that says why an MCP server does not start, with the last words of its program.

Servers of another generation (written for version 1 of MCP's SDK, of another protocol version, with the older HTTP
transport) get a sentence of their own. Left out: starting servers (`mcp_session`).
"""

import re
from importlib.metadata import version

CLOSED = "Connection closed"
"""Error message of the SDK for a connection that has ended."""
ENDED = "it ended with status "
"""Start of what `envs.running.leash` writes when the program has ended."""
_SHOWN = 300
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")


def last_words(written: str) -> str:
    """Return the last words of a program in one line: the exception that ended it, or its last lines."""
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    start = next((at for at in range(len(lines) - 1, -1, -1) if _EXCEPTION.match(lines[at])), max(0, len(lines) - 3))
    words = " ".join(" ".join(lines[start:]).split())
    return words if len(words) <= _SHOWN else f"... {words[-_SHOWN:]}"


def start_failure(error: BaseException, written: str, seconds: float, served: bool) -> str:
    """Return why a server does not start or has ended. `written` is what it wrote to standard error, `served` says that
    it is at an address, and `seconds` is how long a start may take."""
    first, _, later_lines = written.partition("\n")
    status, later_lines = (first, later_lines) if first.startswith(ENDED) else ("", written)
    if "mcp.server.fastmcp" in later_lines:
        return (
            "it is a program for version 1 of MCP's SDK, and its Python has version 2 (No module named "
            "'mcp.server.fastmcp'): run it with a Python that has 'mcp<2', or write it with mcp.server.mcpserver"
        )
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    data = getattr(getattr(error, "error", None), "data", None)
    supported = data.get("supported") if isinstance(data, dict) else None
    if match := re.search(r"[Uu]nsupported protocol version[^:]*: *(\S+)", str(error)) or supported:
        spoken = ", ".join(map(str, supported))[:100] if supported else match[1]
        reason = (
            f"it speaks version {spoken} of the protocol, which the installed SDK (mcp {version('mcp')}) does not "
            "speak: update the server, or start another version of it"
        )
    elif isinstance(error, TimeoutError):
        reason = f"no answer within {seconds:g} s; raise start_seconds for a slow one"
    elif CLOSED in reason and status:
        reason = ""
    elif served:
        reason += "; expected an address of MCP over streamable HTTP, such as http://localhost:8000/mcp (the older "
        reason += "transport, whose addresses end in /sse, is not supported)"
    return "; ".join(filter(None, (reason, status, last_words(later_lines))))
