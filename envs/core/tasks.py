"""Task sets: sequences of problems. In a procedural set, a task is drawn when it is read; its index is its seed.

A hash of the prompt decides the split of a task. A drawn task of the other split is dropped, and the next one is drawn;
so no prompt is in both splits, whatever the author's `task` draws. Left out: shuffling and sampling (the trainer's).
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Self, overload

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UsageError

SPLITS = ("train", "eval")
PROCEDURAL_LENGTH = 2**31
"""Length of every procedural set: more than any run visits, and an index still fits a 32-bit seed."""
MAX_DRAWS = 200
"""Number of draws before a split is declared empty. With a fifth of the prompts in eval, all 200 miss once in 10^19."""
_EVAL_SHARE = 5


def split_of(prompt: str) -> str:
    """Return the split of a prompt; about one in five is eval."""
    digest = blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return "eval" if int.from_bytes(digest, "big") % _EVAL_SHARE == 0 else "train"


def check_split(split: str) -> None:
    """Raise UsageError for a split that does not exist."""
    if split not in SPLITS:
        raise UsageError(f"split is {split!r}; expected 'train' or 'eval'")


def check_task(owner: str, task: Task, name: str) -> Task:
    """Check a task, and return it with its id filled in."""
    candidate: object = task  # Not every author's code is checked by mypy.
    if not isinstance(candidate, Task):
        raise EnvironmentDefect(f"{owner}: a task is {str(candidate)[:100]!r}; expected a Task(prompt=..., answer=...)")
    prompt: object = task.prompt
    if not isinstance(prompt, str) or not prompt:
        raise EnvironmentDefect(f"{owner}: a task's prompt is {str(prompt)[:100]!r}; expected a non-empty string")
    return task if task.id else Task(task.prompt, task.answer, name, task.data)


class _Hashed(ISpawnableSeedSequence):
    """Seed sequence made from a hash of a text. Every task needs its own generator, and numpy's SeedSequence takes five
    times as long to seed one: longer than drawing most tasks takes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._children = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return `n_words` words of the hash, for numpy."""
        size = n_words * np.dtype(dtype).itemsize
        return np.frombuffer(blake2b(self._text.encode(), digest_size=size).digest(), dtype)

    def spawn(self, n_children: int) -> list[Self]:
        """Return `n_children` seed sequences, for generators that an author spawns."""
        first, self._children = self._children, self._children + n_children
        return [type(self)(f"{self._text}/{child}") for child in range(first, self._children)]


class ProceduralTasks(Sequence[Task]):
    """Problems drawn by a function of a random generator. Only the index (and the class and split) decides the
    problem."""

    def __init__(self, draw: Callable[[np.random.Generator], Task], owner: str, split: str = "train") -> None:
        """`owner`, the environment's class name, is a part of each seed: so two environments draw different tasks."""
        check_split(split)
        self._draw = draw
        self._owner = owner
        self._split = split
        self._watched = 0
        self._assigned: set[str] = set()

    def __len__(self) -> int:
        return PROCEDURAL_LENGTH

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if index < 0:
            index += PROCEDURAL_LENGTH
        if not 0 <= index < PROCEDURAL_LENGTH:
            raise IndexError(f"task {index}; a procedural set has tasks 0 to {PROCEDURAL_LENGTH - 1}")
        # numpy accepts any ISeedSequence here, as documented; its type stubs do not.
        bits = np.random.PCG64(_Hashed(f"{self._owner}/{index}"))  # type: ignore[arg-type]
        rng = np.random.Generator(bits)
        name = f"{self._split}/{index}"
        for _ in range(MAX_DRAWS):
            task = check_task(self._owner, self._drawn(rng), name)
            if split_of(task.prompt) == self._split:
                return task
        raise EnvironmentDefect(
            f"{self._owner}: in {MAX_DRAWS} draws no prompt fell into the {self._split!r} split; the last was "
            f"{task.prompt[:80]!r}. task() needs more different prompts, or return fixed lists from task_set(split)"
        )

    def _drawn(self, rng: np.random.Generator) -> Task:
        """Draw one task. Raise EnvironmentDefect if the first two draws set the same attribute of the author's object:
        such a value belongs into the Task."""
        author = getattr(self._draw, "__self__", None)
        if self._watched == 2 or not hasattr(author, "__dict__"):
            return self._draw(rng)
        before = dict(vars(author))
        task = self._draw(rng)
        assigned = {name for name, value in vars(author).items() if before.get(name) is not value}
        for name in sorted(self._assigned & assigned):
            raise EnvironmentDefect(
                f"{self._owner}.task sets self.{name}; expected a Task that holds all of its problem, since it is "
                f"drawn apart from the episode that plays it: return Task(..., data={{{name!r}: ...}}), and read "
                f"self.problem.data[{name!r}]"
            )
        self._watched, self._assigned = self._watched + 1, assigned
        return task
