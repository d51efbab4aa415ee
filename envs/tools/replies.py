"""The text that an agent gets of a run: its output, and first the reason if it failed. Short, and always text.

Left out: cutting a tool's reply to `max_result_chars`, which the environment does.
"""

import signal

from palaestra.envs.sandboxes import Limits, Result
from palaestra.errors import ToolError

NOTHING = "(no output)"


def reply(result: Result, limits: Limits, seconds: float, *, variables: bool) -> str:
    """Return stdout, the last expression's value and stderr. Raise ToolError if the run failed.

    `seconds` is the timeout of the run; `variables` is true if later runs see the variables of this run.
    """
    texts = (result.stdout, result.value or "", result.stderr)
    output = "\n".join(text.strip("\n") for text in texts if text.strip("\n"))
    if result.ok:
        return output or NOTHING
    notes = [how_it_ended(result, limits, seconds)]
    if variables and result.state_lost:
        notes.append("the session was restarted: variables are gone, files stay")
    elif variables and result.timed_out:
        notes.append("variables kept")
    note = "; ".join(note for note in notes if note)
    raise ToolError("\n".join(text for text in (note, output) if text) or f"ended with status {result.exit_code}")


def how_it_ended(result: Result, limits: Limits, seconds: float) -> str:
    """Return in a few words why a run failed; "" if its output shows it: a traceback, or the text of a SystemExit."""
    if result.timed_out or result.limit_hit == "seconds":
        return f"timed out after {seconds:.3g} s"
    if result.oom or result.limit_hit == "memory":
        return f"it took more than {limits.memory_bytes / 2**20:.4g} MiB of memory"
    words = {
        "cpu_seconds": f"it took more than {limits.cpu_seconds:.3g} s of CPU time",
        "processes": f"at most {limits.processes} processes and threads may run at once",
        "scratch": f"files may take {limits.scratch_bytes / 2**20:.4g} MiB and number {limits.scratch_files}",
        "code": f"programs may have {limits.code_bytes} bytes",
    }
    if result.limit_hit in words:
        return words[result.limit_hit]
    if result.signal is not None:
        return f"killed by {_name(result.signal)}"
    if result.exit_code in (0, 1, None):
        return ""
    return f"ended with status {result.exit_code}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Real-time signals have none.
        return f"signal {number}"
