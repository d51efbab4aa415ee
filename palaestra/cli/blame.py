"""What an author's code raised while a command ran, in one sentence: where, what, and on which task.

A traceback through our own frames tells an author nothing. Left out: what palaestra itself did wrong; that keeps its
traceback.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from palaestra.episode import Attempt
from palaestra.errors import EnvironmentDefect, PalaestraError
from palaestra.registry import authors_step

_SHOWN = 60


@contextmanager
def blaming(place: str = "") -> Iterator[None]:
    """Make an EnvironmentDefect of what an author's code raises; `place` says of which episode, where that is known."""
    try:
        yield
    except EnvironmentDefect as error:
        if not place:
            raise
        step = None if error.__cause__ is None else authors_step(error.__cause__)
        line = f"{step.filename}, line {step.lineno}: " if step is not None else ""
        raise EnvironmentDefect(f"{place}: {line}{error}") from error
    except (PalaestraError, BrokenPipeError):
        raise
    except Exception as error:  # A reward, a task or a demonstrator may raise anything.
        step = authors_step(error)
        if step is None:
            raise
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        where = place or _task(error)
        said = f"{step.filename}, line {step.lineno}, in {step.name}: {said}"
        raise EnvironmentDefect(f"{where}: {said}" if where else said) from error


def _task(error: Exception) -> str:
    """The task whose attempt was looked at; empty where none was."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        attempt = frame.f_locals.get("attempt")
        if isinstance(attempt, Attempt):
            prompt = " ".join(str(attempt.task.prompt).split())
            shown = prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}..."
            return f"task {attempt.task.id} ({shown!r})"
    return ""
