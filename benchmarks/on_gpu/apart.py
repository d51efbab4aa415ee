"""Run a part in a separate process: a crash or a hang affects no other part, and its memory is freed at the end.

The processes are forked from one that has loaded torch and has not used the GPU, so each starts within a second.
"""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_LOADED = [
    "torch",
    "transformers.models.qwen3.modeling_qwen3",
    "palaestra.trainers.grpo",
    "palaestra.trainers.setup.open_run",
]


class Failed(Exception):
    """Error of a part that gave no figures, with the reason."""


def apart(part: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """Return the result of a function, which a separate process imports by its module's name."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, part, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise Failed(f"no answer in {seconds:.0f} s")
        found, fault = ours.recv()
    except EOFError:
        process.join(10)
        raise Failed(f"its process ended with status {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if fault:
        raise Failed(fault)
    return found


def _answer(connection: Connection, part: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((part(*arguments), ""))
    except Exception as error:  # Whatever it is, the others go on.
        traceback.print_exc()
        connection.send((None, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"))
