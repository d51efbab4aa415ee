"""What a check found, said in one line; and a deadline around each check, so that none stops the others.

Left out: what is checked (`libraries`, `machine`, `model_check`).
"""

import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

Severity = Literal["ok", "warning", "missing", "broken"]
_INDENT = 8
"""Width of the longest state and a space."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was looked at."""

    about: str
    text: str
    state: Severity = "ok"
    """`missing` and `broken` differ in what helps: installing it, or repairing it."""
    remedy: str = ""
    vital: bool = False
    """Whether the answer of the whole command is no unless this is fine."""

    @property
    def fatal(self) -> bool:
        """True if this finding alone prevents training or the basic path."""
        return self.vital and self.state in ("missing", "broken")


def probe(
    about: str, check: Callable[[], Iterable[DoctorFinding]], seconds: float = 10.0, *, vital: bool = False
) -> list[DoctorFinding]:
    """Run a check; one that fails or takes longer than `seconds` is a finding itself, and the others go on.

    It runs on a thread of its own, left behind when it does not end: a network drive that hangs cannot be interrupted.
    """
    findings: list[DoctorFinding] = []
    state: Severity = "broken" if vital else "warning"
    finished = threading.Event()

    def work() -> None:
        try:
            findings.extend(check())
        except BaseException as error:  # Whatever a strange machine does to one check must not silence the rest.
            findings.append(DoctorFinding(about, f"could not be looked at: {reason(error)}", state, vital=vital))
        finished.set()

    threading.Thread(target=work, name=f"doctor {about}", daemon=True).start()
    if not finished.wait(seconds):
        return [*findings, DoctorFinding(about, f"did not answer within {seconds:g} s", state, vital=vital)]
    return findings


def reason(error: BaseException) -> str:
    """The first line of an error, with its type where it says nothing."""
    return (str(error).strip().splitlines() or [""])[0] or type(error).__name__


def show(findings: Sequence[DoctorFinding], stream: TextIO | None = None) -> None:
    """Print a line a finding, broken only for a terminal or where COLUMNS asks for it, in characters it can show."""
    stream = stream or sys.stdout
    for finding in findings:
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        say(f"{finding.state:<{_INDENT}}{finding.about}: {finding.text}{remedy}", stream, indent=_INDENT)


def say(line: str, stream: TextIO | None = None, indent: int = 0) -> None:
    """Print one line so that it fits the terminal, holds no control characters and can be encoded."""
    stream = stream or sys.stdout
    safe = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    encoding = stream.encoding or "utf-8"
    safe = safe.encode(encoding, "backslashreplace").decode(encoding)
    # Without a terminal a finding stays on its line, so that it can be searched for; 0 when COLUMNS does not say.
    width = shutil.get_terminal_size((0, 0)).columns
    if width > 2 * indent:
        safe = textwrap.fill(safe, width, subsequent_indent=" " * indent, break_on_hyphens=False, drop_whitespace=True)
    print(safe, file=stream)
