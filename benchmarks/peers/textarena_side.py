"""textarena's side of `make bench-envs`: a one-player game whose moves call the calculator.

The suite has no batches. Its LLMObservationWrapper is left out: it never clears its history, so every episode would be
slower than the one before.
"""

import textarena
from drive import TAG, Lockstep, Setting, answer, looped, question, serve, wait_and_evaluate
from textarena import ObservationType, SinglePlayerState


class Calculator(textarena.Env):
    """Environment that asks for a product."""

    def __init__(self, index: int, latency: float) -> None:
        self._index, self._latency = index, latency

    def reset(self, num_players: int, seed: int | None = None) -> None:
        """Begin an episode with the question."""
        self.state = SinglePlayerState(num_players=num_players, seed=seed, max_turns=16)
        self.state.reset(game_state={}, player_prompt_function=self._prompt)

    def _prompt(self, player_id: int, game_state: dict[str, object]) -> str:
        return question(self._index)

    def step(self, action: str) -> tuple[bool, dict[str, object]]:
        """Process one turn of the agent."""
        kind = ObservationType.PLAYER_ACTION
        self.state.add_observation(from_id=0, to_id=-1, message=action, observation_type=kind)
        found = TAG.search(action)
        if found is None:
            self.state.set_outcome(reward=float(action.strip() == answer(self._index)), reason="answered")
        else:
            result = f"<result>{wait_and_evaluate(found[1], self._latency)}</result>"
            self.state.add_observation(message=result, observation_type=ObservationType.GAME_MESSAGE)
        if self.state.check_turn_limit():
            self.state.set_outcome(reward=0, reason="turn limit")
        return self.state.step()


class Played:
    """One environment, in the form that `looped` needs: new messages are read at each turn, the reward at the end."""

    def __init__(self, env: Calculator) -> None:
        self._env = env

    def begin(self) -> None:
        """Begin a new episode."""
        self._env.reset(num_players=1)
        self._env.get_observation()

    def step(self, text: str) -> float:
        """Take a turn; return the reward, 0 before the end."""
        done, _ = self._env.step(action=text)
        if not done:
            self._env.get_observation()
            return 0.0
        rewards, _ = self._env.close()
        return float(rewards[0])


def opened(setting: Setting, threads: int = 0) -> Lockstep:
    """Return all environments."""
    return looped(setting, lambda index: Played(Calculator(index, setting.latency)), threads)


serve(("textarena",), {"loop": opened, "threads": lambda setting: opened(setting, setting.envs)})
