"""Report an error of an author's code in one sentence: its line, what it says, and the task.

A traceback through palaestra's own frames does not help an author. Left out: errors of palaestra itself, which keep
their traceback.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from palaestra.authorship import authors_line
from palaestra.episode import Attempt
from palaestra.errors import EnvironmentDefect, PalaestraError

_SHOWN = 60


@contextmanager
def blaming(place: str = "") -> Iterator[None]:
    """Raise an EnvironmentDefect in place of an error of an author's code. `place` names the episode; "" if unknown."""
    try:
        yield
    except EnvironmentDefect as error:
        if not place:
            raise
        line = None if error.__cause__ is None else authors_line(error.__cause__)
        raise EnvironmentDefect(f"{place}: {f'{line.place}: ' if line else ''}{error}") from error
    except (PalaestraError, BrokenPipeError):
        raise
    except Exception as error:  # A reward, a task or a demonstrator may raise anything.
        line = authors_line(error)
        if line is None:
            raise
        description = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        where = place or _task(error)
        raise EnvironmentDefect(f"{where}: {line}: {description}" if where else f"{line}: {description}") from error


def _task(error: Exception) -> str:
    """Return a text that names the task of the attempt in the traceback; "" if there is no attempt."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        attempt = frame.f_locals.get("attempt")
        if isinstance(attempt, Attempt):
            prompt = " ".join(str(attempt.task.prompt).split())
            short_prompt = prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}..."
            return f"task {attempt.task.id} ({short_prompt!r})"
    return ""
