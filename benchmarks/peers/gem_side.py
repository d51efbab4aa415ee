"""gem-llm's side of `make bench-envs`: a calculator as a GEM tool, in its two vector environments.

GEM resets an environment in the step that ends its episode, so a batch begins no episodes itself.
"""

from functools import cache, partial
from typing import Any

from drive import TAG, Lockstep, Setting, answer, question, serve, wait_and_evaluate
from gem.core import Env
from gem.tools.base_tool import BaseTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from gem.vector.async_vector_env import AsyncVectorEnv
from gem.vector.sync_vector_env import SyncVectorEnv


class Question(Env):
    """Environment that asks for a product."""

    def __init__(self, index: int) -> None:
        self._index = index

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode with the question."""
        super().reset(seed)
        return question(self._index), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer."""
        return "", float(action.strip() == answer(self._index)), True, False, {}


class Calculator(BaseTool):
    """Tool that reads its call with a regular expression, as GEM's own tools do."""

    tool_type = "calculator"

    def __init__(self, latency: float) -> None:
        super().__init__()
        self._latency = latency

    def instruction_string(self) -> str:
        """Return the instruction for the agent."""
        return "Write <calculator>expression</calculator> to evaluate an expression."

    def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
        """Return whether there was a call, whether it failed, its result, and the text of the call."""
        found = TAG.search(action)
        if found is None:
            return False, True, "", ""
        return True, False, f"<result>{wait_and_evaluate(found[1], self._latency)}</result>", action[: found.end()]


def opened(setting: Setting, threads: bool = False) -> Lockstep:
    """Return GEM's vector environment; only its threads need to be closed."""
    tool = Calculator(setting.latency)
    makers = [lambda index=index: ToolEnvWrapper(Question(index), [tool]) for index in range(setting.envs)]
    vector = (AsyncVectorEnv if threads else SyncVectorEnv)([f"q{n}" for n in range(setting.envs)], makers)
    begin = cache(vector.reset)  # Needed once.
    return Lockstep(
        setting,
        begin,
        lambda turn: vector.step(turn)[1],
        vector.thread_pool_executer.shutdown if threads else lambda: None,
    )


serve(("gem-llm",), {"sync": opened, "threads": partial(opened, threads=True)})
