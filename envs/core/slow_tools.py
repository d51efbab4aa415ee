"""Says once of a plain tool that it keeps all other episodes waiting: it runs in place, in the one thread of them all.

Left out: measuring a call (`calls`), and tools that wait beside the others (`envs.running`).
"""

import logging

SLOW_SECONDS = 0.2
"""What a plain tool may take: a call that sleeps, asks a server or computes for long takes more."""
ADVICE = (
    "and every other episode waits for it; write @tool(blocking=True) above it, or make it an async def that awaits"
)
_TWICE = 2
"""Once may be a machine that stood still for a moment."""

log = logging.getLogger("palaestra.envs")
_slow: dict[tuple[str, str], int] = {}


def note(name: str, where: str, seconds: float) -> None:
    """A call of the plain tool `name` of the class `where` took longer than SLOW_SECONDS."""
    times = _slow[where, name] = _slow.get((where, name), 0) + 1
    if times == _TWICE:
        log.warning("the plain tool %r of %s took %.1f s, %s (said once)", name, where, seconds, ADVICE)
