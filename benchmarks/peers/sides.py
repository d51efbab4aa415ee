"""The benchmark's end of the connection to the sides: start them, send requests in turn, store the results.

It does not know what is measured; `line.answer_requests` is the other end. A side that does not answer, dies or answers
nonsense raises `Lost`, with the reason.
"""

import json
import os
import select
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.line import ANSWERS

ANSWER_SECONDS = 120.0
"""Maximum seconds until a side answers."""


class Lost(Exception):
    """Error of a side that cannot be measured, with the reason."""


class Side:
    """One suite: its driver runs with its own interpreter, and gets one request per line."""

    def __init__(
        self, name: str, python: Path, driver: Path, seconds: float = ANSWER_SECONDS, code: Path | None = None
    ) -> None:
        """Start the driver. `code` is a checkout whose palaestra is imported instead of the installed one."""
        path = {} if code is None else {"PYTHONPATH": str(code)}
        self.name = name
        self._seconds = seconds
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the side)
        reader, writer = os.pipe()
        self._answers = os.fdopen(reader, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                [str(python), str(driver)],
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                bufsize=0,
                pass_fds=(writer,),
                env={**os.environ, **path, "OMP_NUM_THREADS": "1", ANSWERS: str(writer)},
            )
        finally:
            os.close(writer)  # Its other end is the driver's alone, so that we notice when it dies.
        try:
            self.versions: dict[str, str] = self._read()["versions"]
        except BaseException:  # An interrupt too: no driver outlives a benchmark that did not begin.
            self.close()
            raise

    def ask(self, verb: str, **details: Any) -> dict[str, float]:
        """Send a request and return the result. Raise `Lost` if the driver failed, died or did not answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": verb, **details}).encode() + b"\n")
        except OSError as error:
            raise Lost(f"{self.name} has ended: {self._last_words()}") from error
        return self._read()

    def close(self) -> None:
        """End the driver, and with it all that it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._answers.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def _read(self) -> dict[str, Any]:
        if not select.select([self._answers], [], [], self._seconds)[0]:
            self._process.kill()
            raise Lost(f"{self.name} gave no answer in {self._seconds:g} s")
        line = self._answers.readline()
        if not line:
            raise Lost(f"{self.name} has ended: {self._last_words()}")
        try:
            answer = json.loads(line)
        except ValueError:
            raise Lost(f"{self.name} answered {line[:100]!r}; expected a JSON object") from None
        if not isinstance(answer, dict):
            raise Lost(f"{self.name} answered {line[:100]!r}; expected a JSON object")
        if "error" in answer:
            raise Lost(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = [line for line in self._said.read().splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"


@dataclass
class Figures:
    """Figures of one way of one side, by round."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    lost: str = ""

    def median(self, key: str) -> float:
        """Return the median of a figure over the rounds."""
        return statistics.median(figures[key] for figures in self.rounds)


Measured = dict[tuple[str, str], Figures]
"""Figures by side and way."""


def around(
    sides: Mapping[str, Side],
    ways: Sequence[tuple[str, str]],
    rounds: int,
    ask: Callable[[Side, str], dict[str, float]],
    must: Sequence[str] = (),
) -> Measured:
    """Send the request to every side in turn, in each round. A side that fails is left out afterwards, except those in
    `must`, whose error is raised.
    """
    measured: Measured = {way: Figures() for way in ways if way[0] in sides}
    for _ in range(rounds):
        for (name, way), figures in measured.items():
            if figures.lost:
                continue
            try:
                figures.rounds.append(ask(sides[name], way))
            except Lost as error:
                if name in must:
                    raise
                figures.lost = str(error)
    return measured


def ratio(over: Figures, under: Sequence[Figures], key: str, best: Callable[[list[float]], float]) -> float | None:
    """Return the median over rounds of one side's figure divided by the best of the others; None if there are no
    others.
    """
    under = [figures for figures in under if figures.rounds and not figures.lost]
    if not under:
        return None
    rows = zip(over.rounds, *(figures.rounds for figures in under), strict=True)
    return statistics.median(row[0][key] / best([other[key] for other in row[1:]]) for row in rows)
