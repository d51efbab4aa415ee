"""Plain Gymnasium's side of `make bench-envs`: a minimal text environment, in its two vector environments.

`processes` is AsyncVectorEnv with one process per environment, whose CPU time counts. Its shared memory is off, because
that returns wrong text.
"""

from functools import partial
from typing import Any

import gymnasium
from drive import TAG, Lockstep, Setting, answer, question, serve, wait_and_evaluate
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv


class Text(gymnasium.Space):
    """Space of all texts."""

    def __init__(self) -> None:
        super().__init__(shape=(), dtype=str)

    def contains(self, x: Any) -> bool:
        """Return True for any text."""
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Refuse: nothing samples from this space."""
        return ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text)


TEXT = Text()


class Calculator(gymnasium.Env):
    """Environment that asks for a product."""

    observation_space = action_space = TEXT

    def __init__(self, index: int, latency: float) -> None:
        self._index, self._latency = index, latency

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode with the question."""
        super().reset(seed=seed)
        return question(self._index), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Process one turn of the agent."""
        match = TAG.search(action)
        if match is None:
            return "", float(action.strip() == answer(self._index)), True, False, {}
        return f"<result>{wait_and_evaluate(match[1], self._latency)}</result>", 0.0, False, False, {}


def opened(setting: Setting, processes: bool = False) -> Lockstep:
    """Return a vector environment that resets only on request."""
    makers = [partial(Calculator, index, setting.latency) for index in range(setting.envs)]
    options: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}
    vector: Any = (
        AsyncVectorEnv(makers, shared_memory=False, **options) if processes else SyncVectorEnv(makers, **options)
    )
    batch = Lockstep(setting, vector.reset, lambda turn: vector.step(turn)[1], vector.close)
    batch.processes = [process.pid for process in vector.processes] if processes else []
    return batch


if __name__ == "__main__":
    serve(("gymnasium",), {"sync": opened, "processes": partial(opened, processes=True)})
