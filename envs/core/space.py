"""The space of all strings: observations and actions are text.

Not a subclass of `gymnasium.spaces.Text` on purpose: with shared memory, `AsyncVectorEnv` silently hands out wrong
text for that class, while it refuses an unknown space loudly. Gymnasium's wrappers and vector environments ask
functions that are registered for each kind of space; those that text can answer are at the end. Left out: an array of
a fixed size for a text. Flattened, it stays what it is, as Gymnasium keeps a `Sequence`.
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
    """Space of every `str`; samples are short and printable, and hold no call."""

    def __init__(self) -> None:
        super().__init__(shape=None, dtype=None)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array form."""
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
