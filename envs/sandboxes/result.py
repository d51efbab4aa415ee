"""Result of a run.

Only its `exit_code` and `value` can be forged by the program; all else is measured outside of it.
"""

import re
from dataclasses import dataclass
from typing import Literal

Limited = Literal["", "seconds", "cpu_seconds", "memory", "processes", "scratch", "output", "code"]

_LEFT_OUT = re.compile(r"\n\[\.\.\. \d{1,18} of (\d{1,18}) bytes left out \.\.\.\]\n")


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one run. A program that failed gives a Result; a sandbox that failed raises `Broken`."""

    stdout: str = ""
    """Head and tail, with a line in the middle that says how much is missing; undecodable bytes are replaced."""
    stderr: str = ""
    value: str | None = None
    """`repr` of the last expression, if the run requested it and there was one; cut like stdout, and to 64 KiB."""
    exit_code: int | None = 0
    """Exit code; None if a signal ended the process. In a session that continues: 1 after an uncaught exception, else
    0. There the program shares a process with the code that reports this field and `value`, so it could forge both."""
    signal: int | None = None
    timed_out: bool = False
    oom: bool = False
    """True if the kernel killed a process because of memory."""
    limit_hit: Limited = ""
    """Limit that ended the run or cut its output; the most severe one if there were several."""
    stdout_bytes: int = 0
    """Number of bytes written, whether kept or not."""
    stderr_bytes: int = 0
    state_lost: bool = False
    """The process of the session is gone, with its variables but not its files. The next run starts a new one."""
    duration_s: float = 0.0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Return whether the program ran to its end without an exception."""
        return self.exit_code == 0 and not self.timed_out and not self.state_lost

    @property
    def truncated(self) -> bool:
        """Return whether some of the output, or of the value, is missing."""
        if self.limit_hit == "output" or _LEFT_OUT.search(self.value or ""):
            return True
        # `limit_hit` may name a more severe limit. A line that names the true size was not printed by the program.
        written = ((self.stdout, self.stdout_bytes), (self.stderr, self.stderr_bytes))
        return any(int(size) == true for text, true in written for size in _LEFT_OUT.findall(text))
