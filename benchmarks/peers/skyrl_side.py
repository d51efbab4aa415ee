"""skyrl-gym's side of `make bench-envs`: a calculator in a ToolGroup, with hand-written parsing as in its environments.

The suite has no batches. SkyRL's trainer steps environments in a pool of 32 threads; `threads` has one thread per
environment. Environments are kept between episodes, which SkyRL's trainer does not do, so the figures here are a little
lower.
"""

from typing import Any

from drive import TAG, Lockstep, Setting, answer, looped, question, serve, wait_and_evaluate
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.tools.core import ToolGroup, tool

TRAINER_THREADS = 32


class CalculatorGroup(ToolGroup):
    """Group with one tool."""

    def __init__(self, latency: float) -> None:
        self._latency = latency
        super().__init__(name="CalculatorGroup")

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate an expression."""
        return wait_and_evaluate(expression, self._latency)


class Calculator(BaseTextEnv):
    """Environment that asks for a product."""

    def __init__(self, index: int, group: CalculatorGroup) -> None:
        super().__init__()
        self.max_turns = 16
        self.chat_history: list[dict[str, str]] = []
        self._index = index
        self.init_tool_groups([group])

    def begin(self) -> None:
        """Begin a new episode."""
        self.turns = 0
        prompt, _ = self.init([{"role": "user", "content": question(self._index)}])
        self.chat_history = list(prompt)

    def step(self, action: str) -> Any:
        """Process one turn of the agent."""
        self.turns += 1
        self.chat_history.append({"role": "assistant", "content": action})
        found = TAG.search(action)
        if found is None:
            reward = float(action.strip() == answer(self._index))
            return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})
        try:
            result = self._execute_tool("CalculatorGroup", "calculator", [found[1]])
        except Exception as error:
            result = str(error)
        message = {"role": "user", "content": f"<result>{result}</result>"}
        self.chat_history.append(message)
        done = self.turns >= self.max_turns
        return BaseTextEnvStepOutput(observations=[message], reward=0.0, done=done, metadata={"tool_input": found[1]})


class Played:
    """One environment, in the form that `looped` needs."""

    def __init__(self, env: Calculator) -> None:
        self.begin = env.begin
        self._env = env

    def step(self, text: str) -> float:
        """Take a turn; return the reward."""
        return float(self._env.step(text)["reward"])


def opened(setting: Setting, threads: int = 0) -> Lockstep:
    """Return all environments, with one group of tools."""
    group = CalculatorGroup(setting.latency)
    return looped(setting, lambda index: Played(Calculator(index, group)), threads)


serve(
    ("skyrl-gym",),
    {
        "loop": opened,
        "pool": lambda setting: opened(setting, TRAINER_THREADS),
        "threads": lambda setting: opened(setting, setting.envs),
    },
)
