"""The file that `palaestra curate` writes: the tasks of an environment that a model solves sometimes.

The file stores the number of each task, because every environment numbers its tasks, even if they are generated. It
also stores a digest of each task's prompt, which shows if the environment was opened with other options. Left out: how
the tasks were chosen (`curation`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from palaestra.errors import UsageError
from palaestra.mixture import environments
from palaestra.protocols import Arena
from palaestra.reading import parsed_json, regular_text
from palaestra.trainers.data.curation import Rated, prompt_digest
from palaestra.trainers.run.atomic_files import write_text
from palaestra.trainers.samplers.task_of_group import counts_in

_KIND = "curated tasks"
_KEYS = ("task", "id", "prompt", "passed", "played")
"""Keys of a task in the file, in the order of the fields of `Rated`."""
_COMPARED = 64
"""Maximum number of tasks whose prompts are compared with those of the environment: generating all may take long."""


@dataclass(frozen=True, slots=True)
class Curated:
    """Tasks that were chosen from one split of an environment."""

    env_id: str
    split: str
    tasks: tuple[Rated, ...]
    origin: Mapping[str, Any]
    """How the tasks were chosen: model, digest of its weights, samples, seed, environment options, date, tokens."""

    def write(self, path: Path) -> None:
        """Write the file atomically, with one task per line."""
        head = {"palaestra": _KIND, "env_id": self.env_id, "split": self.split, **self.origin}
        contents = (dict(zip(_KEYS, astuple(task), strict=True)) | {"bucket": task.bucket} for task in self.tasks)
        rows = ",\n".join(map(json.dumps, contents))
        write_text(path, f'{json.dumps(head, indent=1)[:-2]},\n "tasks": [\n{rows}\n]}}\n')

    @classmethod
    def read(cls, path: Path | str) -> "Curated":
        """Read a file that `write` wrote. Raise `UsageError` if the file is damaged or of another kind."""
        try:
            content = parsed_json(regular_text(Path(path)))
        except OSError as error:
            raise UsageError(f"the curated tasks in {path} cannot be read: {error.strerror or error}") from error
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.pop("palaestra", None) != _KIND:
            raise UsageError(f"{path} holds no curated tasks; expected a file that palaestra curate has written")
        try:
            tasks = tuple(Rated(*(row[key] for key in _KEYS)) for row in content.pop("tasks"))
            curated = cls(content.pop("env_id"), content.pop("split"), tasks, content)
            numbers = [task.task for task in tasks]
            whole = all(type(number) is int and number >= 0 for number in numbers) and len({*numbers}) == len(numbers)
        except (KeyError, TypeError, AttributeError):
            whole = False
        if not whole or not tasks:
            raise UsageError(f"{path} is damaged: its tasks are not those that palaestra curate writes; make it anew")
        return curated

    def is_of(self, env_id: str) -> bool:
        """Return whether these are tasks of the environment `env_id`."""
        return self.env_id.rpartition(":")[2] == env_id.rpartition(":")[2]

    def check_env(self, env_id: str, path: Path | str) -> None:
        """Raise `UsageError` if these are tasks of another environment."""
        if not self.is_of(env_id):
            raise UsageError(
                f"{path} holds tasks of {self.env_id}, and {env_id} is played; expected a file that palaestra curate "
                f"has made for {env_id}"
            )

    def check(self, arena: Arena, path: Path | str, env: str) -> None:
        """Raise `UsageError` if the arena has other tasks under these numbers. Prompts are compared only if the arena
        can show a task before it is played.

        In a mixture only the environment `env` is checked, and only by its number of tasks.
        """
        last, mixed = max(task.task for task in self.tasks), getattr(arena, "mixture", None) is not None
        wrong = f"it has no task {last}" * (last >= counts_in(arena, 0)[1][env if mixed else ""])
        problem = getattr(arena, "problem", lambda _: None)
        for task in () if wrong or mixed else self.tasks[:: -(-len(self.tasks) // _COMPARED)]:
            shown_problem = problem(task.task)
            if shown_problem is not None and prompt_digest(shown_problem.prompt) != task.prompt:
                wrong = f"its task {task.task} is {' '.join(shown_problem.prompt.split())[:60]!r}, which is another"
                break
        if wrong:
            raise UsageError(
                f"{path} does not fit {self.env_id} as it is opened here: {wrong}; curated with the options "
                f"{self.origin.get('options')}, so open it with these, or curate it anew"
            )


def curated_tasks(paths: Sequence[str], env_id: str, arena: Arena | None = None) -> Mapping[str, tuple[int, ...]]:
    """Return the training tasks of these files, by environment. An environment that uses all its tasks is absent."""
    tasks_by_env: dict[str, tuple[int, ...]] = {}
    for path in paths:
        curated = Curated.read(path)
        names = [name for name, (member_id, _) in environments(env_id, {}).items() if curated.is_of(member_id)]
        if not names:
            curated.check_env(env_id, path)
        if curated.split != "train":
            raise UsageError(f"{path} holds tasks of the split {curated.split!r}; training plays train")
        name = next((name for name in names if name not in tasks_by_env), "")
        if not name:
            raise UsageError(f"{path} is a second file for {env_id}; name one")
        if arena is not None:
            curated.check(arena, path, name)
        tasks_by_env[name] = tuple(task.task for task in curated.tasks)
    return tasks_by_env
