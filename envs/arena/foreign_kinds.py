"""The three kinds of external environments: Gymnasium's, and PettingZoo's AEC and Parallel ones.

Left out: their common base class (`foreign`).
"""

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Space

from palaestra.envs.arena.foreign import Foreign
from palaestra.envs.arena.foreign_text import require_text, shaped, wrapped
from palaestra.envs.core.state import Events, Seat
from palaestra.errors import UsageError


class GymnasiumMachine(Foreign):
    """A Gymnasium environment, with one seat."""

    seats = (None,)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        env = self.env
        require_text(self.name, None, env.observation_space, env.action_space)
        if self.success_at is None and env.spec is not None:
            self.success_at = env.spec.reward_threshold

    def _reset(self, seed: int, options: dict[str, Any] | None) -> Events:
        observation, info = shaped(self.name, "reset", self.env.reset(seed=seed, options=options))
        return {None: self._ask(None, observation, info)}

    def _step(self, seat: Seat, text: str) -> Events:
        returned = self.env.step(wrapped(self.env.action_space, text))
        observation, reward, terminated, truncated, info = shaped(self.name, "step", returned)
        self._note(None, reward, terminated, truncated, info)
        return self._over() if terminated or truncated else {None: self._ask(None, observation, info)}

    def _action_space(self, seat: Seat) -> Space[Any]:
        space: Space[Any] = self.env.action_space
        return space


class _Zoo(Foreign):
    """Base of PettingZoo environments of both kinds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        env = self.env
        self.seats = tuple(getattr(env, "possible_agents", ()))
        if not self.seats or not all(isinstance(seat, str) for seat in self.seats):
            raise UsageError(f"{self.name}.possible_agents is {self.seats!r}; expected the names of its seats")
        for seat in self.seats:
            require_text(self.name, seat, env.observation_space(seat), env.action_space(seat))

    def _action_space(self, seat: Seat) -> Space[Any]:
        space: Space[Any] = self.env.action_space(seat)
        return space


class AECMachine(_Zoo):
    """An AEC environment: seats act one at a time. If a seat's play is over, its turns are PettingZoo's
    `step(None)`."""

    def _reset(self, seed: int, options: dict[str, Any] | None) -> Events:
        self.env.reset(seed=seed, options=options)
        return self._select()

    def _step(self, seat: Seat, text: str) -> Events:
        if seat != self.env.agent_selection:
            raise UsageError(f"{self.name}: it is not the turn of {seat!r}")
        self.env.step(wrapped(self._action_space(seat), text))
        self._collect()
        return self._select()

    def _collect(self) -> None:
        env = self.env
        for agent in env.agents:
            self._note(
                agent, env.rewards[agent], env.terminations[agent], env.truncations[agent], env.infos.get(agent, {})
            )

    def _select(self) -> Events:
        """Step on to a seat that can act, and return its event; if the game is over, return all endings."""
        env = self.env
        while env.agents:
            agent = env.agent_selection
            if not (env.terminations[agent] or env.truncations[agent]):
                return {agent: self._ask(agent, env.observe(agent), env.infos.get(agent, {}))}
            env.step(None)
            self._collect()
        return self._over()


class ParallelMachine(_Zoo):
    """A Parallel environment: all seats act together, so the environment steps when the last seat has given its
    turn."""

    def _reset(self, seed: int, options: dict[str, Any] | None) -> Events:
        observations, infos = shaped(self.name, "reset", self.env.reset(seed=seed, options=options), by_seat=True)
        self._texts: dict[str, Any] = {}
        return self._asked(observations, infos)

    def _step(self, seat: Seat, text: str) -> Events:
        self._texts[str(seat)] = wrapped(self._action_space(seat), text)
        if any(agent not in self._texts for agent in self.env.agents):
            return {}
        texts, self._texts = self._texts, {}
        live = list(self.env.agents)
        returned = self.env.step(texts)
        observations, rewards, terminations, truncations, infos = shaped(self.name, "step", returned, by_seat=True)
        for agent in live:
            self._note(agent, rewards[agent], terminations[agent], truncations[agent], infos.get(agent, {}))
        return self._asked(observations, infos)

    def _asked(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> Events:
        if not self.env.agents:
            return self._over()
        return {agent: self._ask(agent, observations[agent], infos.get(agent, {})) for agent in self.env.agents}
