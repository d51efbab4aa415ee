"""A finding of `palaestra doctor`, and how it is printed.

Left out: what is checked (`libraries`, `machine`, `model_check`).
"""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

Severity = Literal["ok", "warning", "missing", "broken"]
_INDENT = 8
"""Width of the longest state and a space."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check."""

    about: str
    text: str
    state: Severity = "ok"
    """`missing` and `broken` differ in what helps: installing it, or repairing it."""
    remedy: str = ""
    vital: bool = False
    """True if the whole command fails when this finding is `missing` or `broken`."""

    @property
    def fatal(self) -> bool:
        """True if this finding alone prevents training or the basic path."""
        return self.vital and self.state in ("missing", "broken")


def reason(error: BaseException) -> str:
    """Return the first line of an error, or its type where it has no text."""
    return (str(error).strip().splitlines() or [""])[0] or type(error).__name__


def show(findings: Sequence[DoctorFinding], stream: TextIO | None = None) -> None:
    """Print a line for each finding. Long lines are folded only on a terminal or if COLUMNS is set."""
    for finding in findings:
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        say(f"{finding.state:<{_INDENT}}{finding.about}: {finding.text}{remedy}", stream, indent=_INDENT)


def say(line: str, stream: TextIO | None = None, indent: int = 0) -> None:
    """Print one line, folded to the width of the terminal and with control characters escaped."""
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    # Without a terminal a finding stays on its line, so that it can be searched for; 0 when COLUMNS does not say.
    width = shutil.get_terminal_size((0, 0)).columns
    if width > 2 * indent:
        text = textwrap.fill(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
    print(text, file=stream or sys.stdout)
