"""The `shell` tool: commands in the session's working folder.

A Python program of an agent can start the same shell, so this tool needs no special sandbox, but true isolation: a
sandbox that does not separate files, network and processes is refused (`require`). If a sandbox cannot run commands,
the episode ends BROKEN with this reason.
"""

from palaestra.envs.core.tool import tool
from palaestra.envs.tools.sandboxed import SandboxedToolkit
from palaestra.errors import ToolError


class Shell(SandboxedToolkit):
    """Runs shell commands. The next call sees the files, but not the variables or the current folder."""

    require = ("files", "network", "processes")
    interpreter: tuple[str, ...] = ("/bin/sh", "-c")
    """Program and arguments to which a command is added as the last argument."""
    longest: int = 100_000
    """Maximum bytes of a command: the kernel takes 128 KiB for one argument."""

    @tool
    async def shell(self, command: str) -> str:
        """Run a shell command and read its output. Files stay; each command starts in the same folder."""
        try:
            size = len(command.encode())
        except UnicodeEncodeError:
            raise ToolError("the command is not valid Unicode text") from None
        if "\0" in command or size > self.longest:
            raise ToolError(f"a command has no null character and at most {self.longest} bytes; write a file instead")
        return await self.run([*self.interpreter, command])
