"""Games and foreign environments for the tests, one trait each."""

import threading
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, Text
from pettingzoo import AECEnv, ParallelEnv

from palaestra.envs import Game, RewardPart, Task, TextSpace, tool
from palaestra.errors import Broken

gate = threading.Event()
"""Set to let what hangs go on."""


class Duel(Game):
    """Both speak at once, then both at once again; a tool of each kind. The longer text wins."""

    seats = ("left_0", "right_0")
    system = {"left_0": "Left."}  # noqa: RUF012
    seat_tools = {"left_0": ("nap", "echo", "hang", "fall")}  # noqa: RUF012
    parts = {"success": RewardPart(), "margin": RewardPart(weight=0.5, low=-1.0)}  # noqa: RUF012
    max_turns = 2

    def task(self, rng):
        return Task(prompt=f"Say {rng.integers(10_000)}.", answer="yes")

    @tool
    def echo(self, text: str) -> str:
        return text

    @tool(blocking=True)
    def nap(self) -> str:
        time.sleep(0.01)
        return "slept"

    @tool(blocking=True, timeout=0.2)
    def hang(self) -> str:
        """Never come back."""
        gate.wait(60)
        return "late"

    @tool
    def fall(self) -> str:
        """The infrastructure is gone."""
        raise Broken("the tower fell")

    def rounds(self, task, rng):
        first = yield dict.fromkeys(self.seats, task.prompt)
        second = yield {
            seat: f"The other said {first[other]}" for seat, other in zip(self.seats, self.seats[::-1], strict=True)
        }
        sizes = {seat: len(first[seat] or "") + len(second[seat] or "") for seat in self.seats}
        best = max(sizes.values())
        return {seat: float(size == best) for seat, size in sizes.items()}

    def forfeit(self, culprit):
        return {seat: {"success": 0.0, "margin": -1.0 if seat == culprit else 1.0} for seat in self.seats}


class InlineDuel(Duel):
    """Without tools that wait."""

    seat_tools = {"left_0": ("echo", "fall")}  # noqa: RUF012
    nap = hang = None


class Echo(gymnasium.Env):
    """A foreign Gymnasium environment: say the word that it says. Its seed decides the word."""

    observation_space = Text(max_length=100)
    action_space = Text(max_length=20)

    def __init__(self, slow: float = 0.0, rewards=(1.0,), turns: int = 1):
        self.slow, self.rewards, self.turns = slow, rewards, turns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word, self.turn = f"word{self.np_random.integers(1000)}", 0
        if self.slow < 0:
            raise RuntimeError("no server")
        return f"Say {self.word}", {}

    def step(self, action):
        self.turn += 1
        if action == "hang":
            gate.wait(60)
        if action == "crash":
            raise ZeroDivisionError("crashed by the agent")
        if action == "gone":
            raise Broken("the server is gone")
        if action == "old":  # As before Gymnasium 0.26.
            return "", 1.0, True, {}
        if action == "nan":
            return "", float("nan"), True, False, {}
        time.sleep(self.slow)
        right = action == self.word
        over = self.turn >= self.turns
        return "Next.", right * self.rewards[0], over, False, {}


class Judged(Echo):
    """Tells success by itself, and takes a split; its actions are a dict of one text."""

    observation_space = Dict(text=TextSpace())
    action_space = Dict(say=TextSpace())

    def __init__(self, split="train"):
        super().__init__()
        self.split = split

    def reset(self, *, seed=None, options=None):
        text, info = super().reset(seed=seed, options=options)
        return {"text": f"{self.split}: {text}"}, info

    def step(self, action):
        _, reward, over, cut, info = super().step(action["say"])
        return {"text": ""}, -1.0 + reward, over, cut, {**info, "success": bool(reward)}


class Numbers(gymnasium.Env):
    """Not text."""

    observation_space = Discrete(2)
    action_space = TextSpace()


class Count(AECEnv):
    """A foreign game of two: say the next number; a wrong one ends it for the one who said it, then for both."""

    metadata = {"name": "count"}  # noqa: RUF012

    def __init__(self, goal: int = 4):
        self.possible_agents = ["one_0", "two_0"]
        self.goal = goal

    def observation_space(self, agent):
        return TextSpace()

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.number = int(np.random.default_rng(seed).integers(100))
        self.last_number, self.left = self.number, self.goal
        self.rewards = self._cumulative_rewards = None
        for name in ("rewards", "_cumulative_rewards"):
            setattr(self, name, dict.fromkeys(self.agents, 0))
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent):
        return str(self.number)

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        if action == "crash":
            raise KeyError("crash")
        self.left -= 1
        if action == str(self.number + 1):
            self.number += 1
            self.rewards[agent] = 1
        else:
            self.terminations[agent] = True
        if self.left == 0:
            self.truncations = dict.fromkeys(self.agents, True)
        other = next(name for name in self.possible_agents if name != agent)
        self.agent_selection = other if other in self.agents else agent
        self._accumulate_rewards()
        self._deads_step_first()

    def close(self):
        pass


class Together(ParallelEnv):
    """A foreign game of two who say a word at once: the same word earns both a point."""

    metadata = {"name": "together"}  # noqa: RUF012
    possible_agents = ["one_0", "two_0"]  # noqa: RUF012

    def observation_space(self, agent):
        return TextSpace()

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.left = 2
        return dict.fromkeys(self.agents, f"seed {seed}"), {agent: {} for agent in self.agents}

    def step(self, actions):
        if "bare" in actions.values():
            return dict.fromkeys(self.agents, ""), 1.0, True, False, {}
        self.left -= 1
        same = float(len(set(actions.values())) == 1)
        agents, over = self.agents, self.left == 0
        if over:
            self.agents = []
        heard = {agent: f"{actions[agent]} was said" for agent in agents}
        return (
            heard,
            dict.fromkeys(agents, same),
            dict.fromkeys(agents, over),
            dict.fromkeys(agents, False),
            {agent: {"success": same} for agent in agents},
        )


class Mute(Together):
    """Hears text, and answers with a number."""

    def action_space(self, agent):
        return Discrete(2)


def babble(messages, rng):
    """A demonstrator that draws what it says."""
    return "word" * int(rng.integers(1, 1000))
