"""A side's end of the connection to a benchmark: it reads one JSON object per line, and answers each with one.

Standard library only. It does not know what is measured; `sides.Side` is the other end.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

ANSWERS = "PALAESTRA_BENCH_ANSWERS"
"""Environment variable with the number of the file for answers; standard output if it is absent."""


def answer_requests(packages: tuple[str, ...], verbs: Mapping[str, Callable[..., Any]], **hello: Any) -> None:
    """Answer until the benchmark closes the connection. Other output of a suite is redirected, so that it is not read
    as an answer.
    """
    answers = os.fdopen(int(os.environ.pop(ANSWERS, "1")), "w", closefd=False)

    def send(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    send({"versions": {name: _version(name) for name in ("python", *packages)}, **hello})
    for line in sys.stdin:
        request = json.loads(line)
        verb = request.pop("do")
        try:
            send(verbs[verb](**request))
        except Exception as error:  # Whatever a suite raises is what the benchmark is told.
            send({"error": f"{type(error).__name__}: {error}"})


def _version(name: str) -> str:
    if name == "python":
        return sys.version.split()[0]
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
