"""The space of all strings: observations and actions are text.

`TextSpace` is not a subclass of `gymnasium.spaces.Text`, because with shared memory `AsyncVectorEnv` returns wrong text
for that class without an error, but raises an error for an unknown space. Gymnasium's wrappers and vector environments
call functions that are registered for each kind of space; the end of this module registers those that make sense for
text. Left out: text as an array of fixed size. Flattening returns the text itself, as Gymnasium does for a `Sequence`.
"""

import string
from collections.abc import Callable
from typing import Any

from gymnasium.spaces import Space
from gymnasium.spaces.utils import flatten, flatten_space, is_space_dtype_shape_equiv, unflatten
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from gymnasium.wrappers.utils import create_zero_array

_LETTERS = string.ascii_letters + string.digits + " .,"


class TextSpace(Space[str]):
    """Space of all strings. Samples are short and printable, and contain no tool call."""

    def __init__(self) -> None:
        super().__init__(shape=None, dtype=None)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no form as an array of fixed size."""
        return False

    def contains(self, x: Any) -> bool:
        """Return True for any string."""
        return isinstance(x, str)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Return a random string; masks have no meaning here and are ignored."""
        picks = self.np_random.integers(len(_LETTERS), size=int(self.np_random.integers(1, 33)))
        return "".join(_LETTERS[pick] for pick in picks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace)

    def __hash__(self) -> int:
        return hash(TextSpace)

    def __repr__(self) -> str:
        return "TextSpace()"


TEXT = TextSpace()
"""Shared instance for all environments, to save memory."""

_ANSWERS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (create_zero_array, lambda space: ""),
    (batch_differing_spaces, lambda spaces: batch_space(spaces[0], len(spaces))),
    (is_space_dtype_shape_equiv, lambda space, other: space == other),
    (flatten_space, lambda space: space),
    (flatten, lambda space, text: text),
    (unflatten, lambda space, text: text),
)
for function, answer in _ANSWERS:
    function.register(TextSpace, answer)
