"""Tasks of inspect_ai: `foreign/Inspect-v0` with `task=` a name, or file.py@name, as its command line takes it.

Its solver asks our model, its scorer gives the reward; sandboxes and limits of a task hold. Left out: the task's
epochs, its reducers and its own generation settings.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.core.tasks import split_of
from palaestra.envs.foreign.text_game import installed
from palaestra.envs.harness import Harness, Model
from palaestra.episode import Attempt, Task
from palaestra.errors import UsageError
from palaestra.options import SERVICE


class Inspect(Harness):
    """A task of inspect_ai. `grade` is the mean of its scores; say with success_at (1) which grade is a success."""

    max_turns = 256  # The task has limits of its own.
    parts: Mapping[str, RewardPart] = {"success": RewardPart(0.0), "grade": RewardPart()}

    def __init__(
        self,
        task: Annotated[str, SERVICE] = "",
        split: str = "train",
        success_at: float = 1.0,
        chance: float = 0.0,
        **options: Any,
    ) -> None:
        """`task` names what is imported; `chance` is the success of guessing, for `check`; `options` are the task's."""
        super().__init__(split=split)
        self.chance = chance
        with installed("inspect-ai", "foreign/Inspect-v0"):
            from inspect_ai._eval.loader import load_tasks
        if not task:
            raise UsageError(
                "foreign/Inspect-v0 needs the option task, such as task=inspect_evals/gsm8k or file.py@name"
            )
        try:
            inspect_tasks = load_tasks([task], options)
        except Exception as error:  # Whatever goes wrong in the module that is imported.
            raise UsageError(f"inspect opens no task {task!r}: {type(error).__name__}: {error}") from error
        if len(inspect_tasks) != 1:
            raise UsageError(f"{task} names {len(inspect_tasks)} tasks of inspect; expected one, such as file.py@name")
        if not inspect_tasks[0].scorer:
            raise UsageError(f"{task} has no scorer, which would give the reward")
        self._inner, self._success_at = inspect_tasks[0], success_at
        self._outcome: dict[str, Any] = {"grade": 0.0}

    def task_set(self, split: str) -> Sequence[Task]:
        """Return the split's samples, by the hash of what they ask: about a fifth is eval."""
        tasks = []
        for number, sample in enumerate(self._inner.dataset):
            text = sample.input if isinstance(sample.input, str) else "\n\n".join(part.text for part in sample.input)
            target = sample.target if isinstance(sample.target, str) else "\n".join(sample.target)
            if split_of(text) == split:
                tasks.append(Task(text, target, str(sample.id or number), {"sample": number}))
        return tasks

    async def run(self, task: Task, model: Model) -> str | None:
        """Let the task's solver play a sample and its scorers grade it."""
        from palaestra.envs.foreign.inspect_evaluation import evaluate

        answer, grades = await evaluate(self._inner, task.data["sample"], model)
        self._outcome = {"grade": sum(grades.values()) / len(grades), "grades": grades}
        return answer

    def final(self) -> Mapping[str, Any]:
        """Return the grades of the scorers."""
        return self._outcome

    def reward(self, attempt: Attempt) -> dict[str, float]:
        """Return the mean of the scores."""
        grade = min(1.0, max(0.0, float(attempt.final["grade"])))
        return {"success": float(grade >= self._success_at), "grade": grade}
