"""What an environment can be told when it is opened, and the refusal of anything else.

Left out: whether a value is a good one (the environment's own to say), and options of games and of other people's
environments.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from palaestra.errors import UsageError

FORMAT = "format"
"""An option of every environment, whatever its constructor takes."""
OF_ARENAS = ("ordered", "max_workers", "workers", "ray_address")
"""Options of many at once, that one environment does not have."""


def options_of(creator: Any) -> dict[str, str]:
    """Each option that a class takes with its default, as one would write it; empty where there is none to write."""
    found = {
        name: "" if one.default is Parameter.empty else repr(one.default)
        for name, one in signature(creator).parameters.items()
        if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    }
    return {**found, FORMAT: repr(getattr(creator, "format", None))}


def refuse_unknown(env_id: str, creator: Any, given: Iterable[str]) -> None:
    """Refuse options that a class does not take, with a list of those that it does."""
    if any(one.kind is Parameter.VAR_KEYWORD for one in signature(creator).parameters.values()):
        return
    takes = list(options_of(creator))
    for name in given:
        if name not in takes:
            hints = [f"{env_id} takes no option {name!r}; it takes {', '.join(takes)}"]
            if close := get_close_matches(name, takes, n=1):
                hints.append(f"is {close[0]!r} meant?")
            elif isinstance(getattr(creator, name, None), int | float | str | tuple):
                hints.append(f"{name} is decided by the class: set it in a subclass, under an id of your own")
            raise UsageError("; ".join(hints))
