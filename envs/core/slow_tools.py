"""Warns once of a plain tool that delays all other episodes: it runs in place, in the one thread that drives them.

Left out: measuring a call (`calls`), and tools that wait beside the others (`envs.running`).
"""

import logging

SLOW_SECONDS = 0.2
"""Most seconds that a plain tool should take; a call that sleeps, asks a server or computes for long takes more."""
ADVICE = (
    "and every other episode waits for it; write @tool(blocking=True) above it, or make it an async def that awaits"
)
_TWICE = 2
"""Number of slow calls before the warning: a single one may be a short pause of the machine."""

log = logging.getLogger("palaestra.envs")
_slow: dict[tuple[str, str], int] = {}


def note(name: str, where: str, seconds: float) -> None:
    """Record that a call of the plain tool `name` of the class `where` took longer than SLOW_SECONDS."""
    times = _slow[where, name] = _slow.get((where, name), 0) + 1
    if times == _TWICE:
        log.warning("the plain tool %r of %s took %.1f s, %s (said once)", name, where, seconds, ADVICE)
