"""Text in external environments: which spaces are text, reading and writing it, and checks of what their methods
return.

Left out: playing them (`foreign`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.spaces import Dict, Text

from palaestra.envs.core.space import TextSpace
from palaestra.envs.core.state import Seat
from palaestra.errors import EnvironmentDefect, UsageError


def is_text(space: Any) -> bool:
    """Return whether a space is text, or a dict of one text."""
    if isinstance(space, Dict):
        return len(space) == 1 and all(is_text(inner) for inner in space.values())
    return isinstance(space, Text | TextSpace)


def require_text(name: str, seat: Seat, observation: Any, action: Any) -> None:
    """Raise UsageError unless both spaces are text: an agent reads and writes nothing else."""
    if not (is_text(observation) and is_text(action)):
        who = f"{name}, {seat}," if seat else name
        raise UsageError(
            f"{who} observes {observation} and acts {action}; expected text in both (gymnasium.spaces.Text or "
            "palaestra.envs.TextSpace, or a Dict of one): put it into words with a wrapper, and register that"
        )


def read(observation: Any) -> str:
    """Return the text of an observation."""
    if isinstance(observation, Mapping):
        observation = next(iter(observation.values()), "")
    if not isinstance(observation, str):
        raise EnvironmentDefect(f"an observation is {str(observation)[:100]!r}; its space promises text")
    return observation


_SHAPES = {"reset": "observation, info", "step": "observation, reward, terminated, truncated, info"}


def shaped(name: str, verb: str, returned: Any, by_seat: bool = False) -> Sequence[Any]:
    """Check the shape of what `reset` or `step` returned, and return it. An agent's turn cannot cause a wrong shape."""
    places = len(_SHAPES[verb].split(", "))
    if not isinstance(returned, Sequence) or isinstance(returned, str) or len(returned) != places:
        actual = f"{len(returned)} values" if isinstance(returned, tuple | list) else type(returned).__name__
        raise EnvironmentDefect(f"{name}.{verb} returned {actual}; expected {_SHAPES[verb]}")
    for value in returned if by_seat else returned[-1:]:
        if not isinstance(value, Mapping):
            expected = f"a dict by seat for each of {_SHAPES[verb]}" if by_seat else "a dict as info"
            raise EnvironmentDefect(f"{name}.{verb} returned {str(value)[:100]!r}; expected {expected}")
    return returned


def wrapped(space: Any, text: str) -> Any:
    """Return a text in the form of the action space."""
    return {next(iter(space)): wrapped(next(iter(space.values())), text)} if isinstance(space, Dict) else text


def limits(space: Text) -> str:
    letters = "".join(sorted(space.character_set))
    return (
        f"Error: this turn is not legal here; write {space.min_length} to {space.max_length} characters of {letters!r}"
    )
