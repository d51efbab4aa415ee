"""Environments of verifiers: `foreign/Verifiers-v0` with `environment=` a name that `verifiers.load_environment` takes.

Its own rollout drives our model through its OpenAI client, with its tools; its rubric gives the reward. Left out:
rewards of a whole group of rollouts, and servers of environments.
"""

import json
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from palaestra.envs.arena.foreign_success import success_of
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.core.tasks import split_of
from palaestra.envs.foreign.text_game import installed
from palaestra.envs.harness import Harness, Model
from palaestra.episode import Attempt, Task
from palaestra.errors import Broken, UsageError
from palaestra.options import SERVICE

REWARD_LIMIT = 1e6
"""Largest reward, and largest penalty, of a rubric."""


class Verifiers(Harness):
    """An environment of verifiers. `return` is its rubric's reward; say with success_at which reward is a success."""

    max_turns = 256  # The environment has a limit of its own.
    parts: Mapping[str, RewardPart] = {
        "success": RewardPart(0.0),
        "return": RewardPart(1.0, -REWARD_LIMIT, REWARD_LIMIT),
    }

    def __init__(
        self,
        environment: Annotated[str, SERVICE] = "",
        split: str = "train",
        success_at: float | None = None,
        chance: float = 0.0,
        **options: Any,
    ) -> None:
        """`environment` names a module, which is imported; `chance` is the success of guessing, for `check`; `options`
        are those of its `load_environment`."""
        super().__init__(split=split)
        self.chance = chance
        with installed("verifiers", "foreign/Verifiers-v0"):
            import verifiers
        if not environment:
            raise UsageError("foreign/Verifiers-v0 needs the option environment, such as environment=gsm8k")
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._inner = verifiers.load_environment(environment, **options)
        except (ValueError, RuntimeError) as error:  # Raised for whatever went wrong there.
            raise UsageError(f"verifiers opens no environment {environment!r}: {error}") from error
        for number, handler in handlers.items():  # It puts its own in their place, and Ctrl-C would save nothing.
            signal.signal(number, handler)
        if self._inner.requires_group_rollouts:
            raise UsageError(f"{environment} has a reward of a whole group, and episodes are scored one by one here")
        self._success_at = success_at
        self._outcome: dict[str, Any] = {"reward": 0.0}

    def task_set(self, split: str) -> Sequence[Task]:
        """Return its rows; where it has no eval set of its own, about a fifth of them by the hash of the prompt."""
        self._inner.build_eval_dataset()
        has_eval = self._inner.eval_dataset is not None
        rows: Any = ()
        with suppress(ValueError):  # It has no such set.
            rows = self._inner.get_eval_dataset() if has_eval and split == "eval" else self._inner.get_dataset()
        tasks = [_task(dict(row), f"{split}/{number}") for number, row in enumerate(rows)]
        return tasks if has_eval else [task for task in tasks if split_of(task.prompt) == split]

    async def run(self, task: Task, model: Model) -> str | None:
        """Let the environment play a rollout and score it."""
        import verifiers

        client = verifiers.OpenAIChatCompletionsClient(model.client())
        row: Any = json.loads(task.data["row"])
        output = await self._inner.run_rollout(row, client, "palaestra", {})
        error = output.get("error")
        if error and "InfraError" in str(error):
            raise Broken(str(error))
        self._outcome = {"reward": float(output["reward"] or 0.0), "metrics": dict(output.get("metrics") or {})}
        completion = output["completion"] or [{}]
        return None if error else str(completion[-1].get("content") or "")

    def final(self) -> Mapping[str, Any]:
        """Return the reward and metrics of the rubric."""
        return self._outcome

    def reward(self, attempt: Attempt) -> dict[str, float]:
        """Return the rubric's reward."""
        total = float(attempt.final["reward"])
        return {"success": success_of("foreign/Verifiers-v0", None, total, self._success_at), "return": total}


def _task(row: Mapping[str, Any], name: str) -> Task:
    prompt = row["prompt"]
    text = prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)
    return Task(text, str(row.get("answer") or ""), name, {"row": json.dumps(row)})
