"""Wall and CPU seconds of a run over all its resumed parts, saved in seconds.json."""

import json
import resource
import time
from pathlib import Path

from palaestra.trainers.run.atomic_files import write_text
from palaestra.trainers.run.json_files import read_object


class RunClock:
    """Clock that adds the seconds since it was created to the saved seconds of earlier parts of the run."""

    def __init__(self, path: Path) -> None:
        self._path, self._before = path, read_object(path) or {}
        self._start = time.perf_counter(), cpu_seconds()

    def seconds(self) -> dict[str, float]:
        """Return wall and CPU seconds over all parts; for a killed part, up to the last `save`."""
        wall, cpu = self._start
        now = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": cpu_seconds() - cpu}
        return {name: self._before.get(name, 0.0) + seconds for name, seconds in now.items()}

    def save(self) -> None:
        """Write the seconds to the file."""
        write_text(self._path, json.dumps(self.seconds()) + "\n")


def cpu_seconds() -> float:
    """Return the user and system seconds of this process and of the children it has waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
