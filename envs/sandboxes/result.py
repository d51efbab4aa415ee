"""How a run went. All but two fields are measured outside the program, so that nothing it does can change them."""

import re
from dataclasses import dataclass
from typing import Literal

Limited = Literal["", "seconds", "cpu_seconds", "memory", "processes", "scratch", "output", "code"]

_LEFT_OUT = re.compile(r"\n\[\.\.\. \d{1,18} of (\d{1,18}) bytes left out \.\.\.\]\n")


@dataclass(frozen=True, slots=True)
class Result:
    """What one run came to. A program that failed is a Result; a sandbox that failed raises `Broken`."""

    stdout: str = ""
    """Head and tail, with a line in the middle that says how much is missing; undecodable bytes are replaced."""
    stderr: str = ""
    value: str | None = None
    """`repr` of the last expression, where the run asked for it and there was one; cut as stdout is, and to 64 KiB."""
    exit_code: int | None = 0
    """None when a signal ended the process. In a session that goes on: 1 after an uncaught exception, else 0; there
    the program shares a process with what tells it, and could have forged this and `value`, and nothing else."""
    signal: int | None = None
    timed_out: bool = False
    oom: bool = False
    """The kernel killed for memory."""
    limit_hit: Limited = ""
    """The limit that ended or cut the run, the gravest where there were several."""
    stdout_bytes: int = 0
    """What was written, whether kept or not."""
    stderr_bytes: int = 0
    state_lost: bool = False
    """The session's process is gone: its variables are, its files are not. The next run starts a new one."""
    duration_s: float = 0.0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0

    @property
    def ok(self) -> bool:
        """It ran to its end, and nothing was raised."""
        return self.exit_code == 0 and not self.timed_out and not self.state_lost

    @property
    def truncated(self) -> bool:
        """Some of the output, or of the value, is missing."""
        if self.limit_hit == "output" or _LEFT_OUT.search(self.value or ""):
            return True
        # A graver limit may have been hit as well. The line names the true size, or it is the program's own.
        written = ((self.stdout, self.stdout_bytes), (self.stderr, self.stderr_bytes))
        return any(int(size) == true for text, true in written for size in _LEFT_OUT.findall(text))
