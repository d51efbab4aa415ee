"""Register the environments of installed packages, which name them as entry points in their pyproject.toml.

An entry point is text, so nothing is imported until one of its environments is used.
"""

import logging
from importlib.metadata import entry_points

from palaestra.registry import games, register, register_game, registered

ENVIRONMENTS, GAMES, DEMONSTRATORS = (f"palaestra.{kind}" for kind in ("environments", "games", "demonstrators"))
"""Groups of entry points. A name is an id, its value is "module:name"."""
log = logging.getLogger("palaestra")


def register_installed() -> None:
    """Register what installed packages name. An id that is taken stays with its owner, which the log says."""
    entries = entry_points()
    demonstrators = {entry.name: entry.value for entry in entries.select(group=DEMONSTRATORS)}
    for group, add in ((ENVIRONMENTS, register), (GAMES, register_game)):
        for entry in entries.select(group=group):
            package = entry.dist.name if entry.dist else "an installed package"
            if entry.name in (*registered(), *games()):
                log.warning("%s registers %s, which is registered already; it is left out", package, entry.name)
                continue
            try:
                add(entry.name, entry.value, demonstrator=demonstrators.get(entry.name))
            except Exception as error:  # What a package says of itself must not stop those who use others.
                log.warning("%s registers %s, which cannot be: %s", package, entry.name, error)
