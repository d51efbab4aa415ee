"""Sources of the solutions of `palaestra collect --stitch`: the tasks' data, a function, or recorded episodes.

Left out: the use of a solution (`agents.policies.stitched`).
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra import formats
from palaestra.cli.display import note
from palaestra.cli.ids import search_current_folder
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.protocols import Arena
from palaestra.reading import RecordReader
from palaestra.record import Record
from palaestra.registry import chosen_format, load_author
from palaestra.trainers.run.versions import digest_of

if TYPE_CHECKING:
    from palaestra.agents import Agent
    from palaestra.agents.policies.stitched import Solution

NAME = "stitched"
"""Name of the agent in the records."""


class Stitching:
    """Written solutions, played in place of an agent."""

    def __init__(self, source: str, env_id: str) -> None:
        """`source` is a file of episodes, a function `module:name` of a Task, or else a key of the tasks' data."""
        self.settings: dict[str, Any] = {"stitch": source}
        """Settings that decide an episode."""
        self._key, self._recorded, self._function = source, dict[int, tuple[str, str]](), None
        self._keys: set[str] = set()
        self._from_file = source.endswith(".jsonl")
        if self._from_file:
            self.settings["solutions"] = digest_of(Path(source)) if Path(source).is_file() else ""
            self._read(Path(source), env_id)
        elif ":" in source:
            search_current_folder()
            self._function = load_author(source, "--stitch: the function")

    def agent(self, places: Arena, env_id: str, environment: Mapping[str, Any]) -> "Agent":
        """Return the agent that plays the solutions in this arena."""
        from palaestra.agents import Agent
        from palaestra.agents.policies.stitched import Stitched

        format = chosen_format(env_id, environment) or formats.DEFAULT
        return Agent(Stitched(lambda task: self._solution(task, self._problem(places, task)), format))

    def computes(self, places: Arena, task: int) -> bool:
        """Return whether the solution of that task has a step that a tool can compute."""
        return bool(self._solution(task, self._problem(places, task)).steps)

    def missing(self) -> str:
        """Return an error text if no task's data has the key, which may be misspelt; else ""."""
        if self._from_file or self._function or self._key in self._keys:
            return ""
        names = ", ".join(sorted(self._keys)) or "nothing"
        return f"--stitch is {self._key!r}, and no task has data of that name; their data has: {names}"

    def fits(self, record: Record) -> bool:
        """Return whether the tools in an episode returned the values that the solution states."""
        from palaestra.agents.policies.stitched import agrees

        attempt = record.episode.attempt
        return agrees(self._solution(record.episode.start.task, attempt.task), attempt.calls)

    def _problem(self, places: Arena, task: int) -> Task:
        problem: Task | None = getattr(places, "problem", lambda _: None)(task)
        if problem is None:
            raise UsageError("this environment shows its problems only as it plays them, so no solution can be found")
        return problem

    def _solution(self, number: int, task: Task) -> "Solution":
        return _cut(self._text(number, task))

    def _text(self, number: int, task: Task) -> str:
        """Return the solution as it was written; "" if there is none."""
        if self._from_file:
            prompt, text = self._recorded.get(number, ("", ""))
            return text if prompt == task.prompt else ""
        self._keys |= {str(key) for key in task.data}
        solution = self._function(task) if self._function else task.data.get(self._key, "")
        if not isinstance(solution, str):
            raise EnvironmentDefect(f"--stitch {self._key}: found {solution!r:.100} for a task; expected its solution")
        return solution

    def _read(self, path: Path, env_id: str) -> None:
        """Read the first episode of each task in which the agent called no tool."""
        for place, record in RecordReader([path], note):
            if record.env_id.rpartition(":")[2] != env_id.rpartition(":")[2]:
                raise UsageError(f"{place} is of {record.env_id}; expected solutions of {env_id}, which is played")
            attempt = record.episode.attempt
            if not attempt.calls:
                responses = [str(m.get("content") or "") for m in attempt.messages if m["role"] == "assistant"]
                self._recorded.setdefault(record.episode.start.task, (attempt.task.prompt, "\n\n".join(responses)))


@lru_cache(maxsize=4096)
def _cut(text: str) -> "Solution":
    from palaestra.agents.policies.stitched import cut

    return cut(text)
