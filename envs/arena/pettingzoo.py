"""PettingZoo's two faces of a Game: AEC, where one seat acts at a time, and Parallel, where all that are asked do.

Observations and actions are text. Seats that are asked at once act one after the other in AEC, none hearing what the
others said; in Parallel a seat that is not asked (`info["asked"]` is False) may give any action, which nobody reads.
A face is branched with its game: a snapshot of it is one of the game, and whose turn it is follows from who is asked.
This module needs pettingzoo. Left out: PettingZoo environments of others as arenas (`foreign`).
"""

import copy
from collections.abc import Mapping
from operator import index
from typing import Any, Self, SupportsIndex

import numpy as np
from gymnasium.utils import seeding

from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.opening import made, spec_of
from palaestra.envs.arena.text_env import MODES, check_options
from palaestra.envs.core import branches
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.space import TextSpace
from palaestra.envs.core.state import Dialogue, Events, Seat
from palaestra.envs.core.transcript import fresh, joined, transcript
from palaestra.episode import Ending, Event, Start
from palaestra.errors import Broken, MissingExtra, UsageError

try:
    from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtra("pettingzoo", "games", "a game as a PettingZoo environment") from error

_PROBE = {"options": 1}
"""What PettingZoo's own tests hand to `reset`, to see that it takes options at all."""


class Observation(str):
    """Text with the `dtype` that PettingZoo's api_test asks every observation for."""

    __slots__ = ()
    dtype = None


class _Face:
    """What both faces share: the game, its seats' spaces and infos."""

    def __init__(self, game: ToolEnv, render_mode: str | None = None) -> None:
        """`game` is an object of an author's class; nothing of it changes."""
        if render_mode not in (None, *MODES):
            raise UsageError(f"render_mode is {render_mode!r}; expected None or one of {MODES}")
        self.machine = Machine(spec_of(game))
        self.render_mode = render_mode
        self.metadata: dict[str, Any] = {
            "name": type(game).__name__,
            "render_modes": MODES,
            # PettingZoo's own conversion wants seats in a fixed cycle; the Parallel face here is one of its own.
            "is_parallelizable": False,
        }
        self.possible_agents = list(game.seats)
        self.agents: list[str] = []
        # Spaces of its own: seed_test seeds and samples those of two environments side by side.
        self._heard = {seat: TextSpace() for seat in game.seats}
        self._said = {seat: TextSpace() for seat in game.seats}
        self._random: np.random.Generator | None = None
        self._printed: dict[Seat, int] = {}
        """For "human": how many messages of each seat were printed."""

    def observation_space(self, agent: str) -> TextSpace:
        """Text."""
        self._require_seat("observation_space", agent)
        return self._heard[agent]

    def action_space(self, agent: str) -> TextSpace:
        """Text."""
        self._require_seat("action_space", agent)
        return self._said[agent]

    def render(self) -> Any:
        """What every seat has heard and said, for "ansi"; "human" prints turns as they happen."""
        if self.render_mode != "ansi":
            return None
        return "\n\n".join(f"[{seat}]\n{transcript(one.messages)}" for seat, one in self._dialogues.items())

    def close(self) -> None:
        """Drop a running game and release its toolkits."""
        release(self.machine)

    def snapshot(self) -> Snapshot:
        """The running game as it stands, between two turns."""
        return branches.take(self.machine)

    def fork(self, count: int, *, own_noise: bool = True) -> list[Self]:
        """So many that stand where this one stands, each with randomness of its own to come, or all with its."""
        children = []
        for number, machine in enumerate(branches.fork(self.machine, count, own_noise)):
            child = type(self)(self.machine.spec.author, self.render_mode)
            child.machine = machine
            child._random = copy.deepcopy(self._random)
            if own_noise and child._random is not None:  # It draws the games to come.
                child._random, _ = seeding.np_random(int(child._random.integers(2**31)) + number)
            child._stand(machine.asked)
            children.append(child)
        return children

    def _stand(self, events: Events) -> None:
        """Show a game in which these seats are asked, as far as it has come."""
        raise NotImplementedError

    @property
    def _dialogues(self) -> Mapping[Seat, Dialogue]:
        return {} if self.machine.state is None else self.machine.state.seats

    def _print(self) -> None:
        """Show what is new, for "human"."""
        if self.render_mode == "human":
            for seat, one in self._dialogues.items():
                if new := one.messages[self._printed.get(seat, 0) :]:
                    print(f"[{seat}]\n{transcript(new)}", flush=True)
                self._printed[seat] = len(one.messages)

    def _act(self, texts: Mapping[str, str]) -> Events:
        """Turns of seats that were asked."""
        events: Events = {}
        for seat, text in texts.items():
            events |= settle(self.machine, self.machine.act(seat, text))
        self._print()
        return events

    def _require_seat(self, verb: str, agent: str) -> None:
        if agent not in self._heard:
            seats = ", ".join(self.possible_agents)
            raise UsageError(f"{verb}: there is no seat {agent!r}; the seats are {seats}")

    def _require_game(self, verb: str) -> None:
        if not self.agents:
            raise UsageError(f"{verb}: no game is played, or it has ended; call reset first")

    def _open(self, seed: int | None, options: dict[str, Any] | None) -> Events:
        """Begin a game: `options["task"]` picks the problem, otherwise it is drawn."""
        if options != _PROBE:
            check_options(options, ("task",))
        self.agents = []
        if seed is not None or self._random is None:
            self._random, _ = seeding.np_random(seed)
        drawn = int(self._random.integers(self.machine.task_count)), int(self._random.integers(2**31))
        task = (options or {}).get("task")
        task = drawn[0] if task is None else task
        if isinstance(task, bool) or not isinstance(task, SupportsIndex):
            raise UsageError(f"reset: options['task'] is {task!r}; expected a whole number, the task's index")
        starts: dict[Seat, Start] = {seat: Start(index(task), drawn[1], seat=seat) for seat in self.possible_agents}
        release(self.machine)
        events = _opened(settle(self.machine, self.machine.open(starts)))
        self._printed = {}
        self._print()
        return events

    def _info(self, agent: str, event: Event | None, asked: bool) -> dict[str, Any]:
        """Fixed keys of fixed types, fresh objects, no timings."""
        return {
            "asked": asked,
            "messages": fresh(event.messages) if event else (),
            "tools": self.machine.spec.offers[agent].described,
            "ending": str((event and event.ending) or ""),
            "parts": {name: event.parts.get(name, 0.0) if event else 0.0 for name in self.machine.spec.author.parts},
            "attempt": event.attempt if event else None,
            "fault": event.fault if event else "",
        }


class AECGame(_Face, AECEnv):  # type: ignore[misc]
    """One seat acts at a time."""

    _texts: dict[str, str] = {}  # noqa: RUF012  (Replaced when a game begins.)

    def __getattr__(self, name: str) -> Any:
        """Only for what is not there: before a game begins, nobody is selected."""
        if name == "agent_selection":
            raise AttributeError("agent_selection: no game is played; call reset first")
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game."""
        self._stand(self._open(seed, options))

    def restore(self, snapshot: Snapshot) -> None:
        """Stand where the snapshot was taken: the same seat is selected, and has heard the same."""
        self._stand(branches.put(self.machine, snapshot))

    def _stand(self, events: Events) -> None:
        self.agents = list(self.possible_agents)
        self._texts = dict.fromkeys(self.agents, "")
        self._waiting: list[str] = []
        self._skip_agent_selection = None
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: self._info(agent, None, False) for agent in self.agents}
        self._take(events)

    def observe(self, agent: str) -> str:
        """What is new to this seat since it last spoke."""
        self._require_seat("observe", agent)
        if agent not in self._texts:
            raise UsageError("observe: no game is played; call reset first")
        return Observation(self._texts[agent])

    def step(self, action: str | None) -> None:
        """The selected seat's turn; None for one whose game is over."""
        self._require_game("step")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        events = self._act({agent: action})  # type: ignore[dict-item]  # It refuses what is no text.
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0.0
        self._texts[agent] = ""
        self._waiting.remove(agent)
        self.infos[agent] = self._info(agent, None, False)
        self._take(events)
        self._accumulate_rewards()

    def _take(self, events: Events) -> None:
        """Show the seats what happened, and select who is next."""
        for seat, event in events.items():
            agent = str(seat)
            over = event.ending is not None
            self._texts[agent] = joined(event.messages)
            self.infos[agent] = self._info(agent, event, not over)
            if over:
                self.rewards[agent] = float(event.reward or 0.0)
                self.terminations[agent] = event.ending is Ending.ANSWERED
                self.truncations[agent] = not self.terminations[agent]
                self._waiting = []
            elif agent not in self._waiting:
                self._waiting.append(agent)
        if self._waiting:
            self.agent_selection = min(self._waiting, key=self.possible_agents.index)
        else:
            self.agent_selection = self.agents[0]


class ParallelGame(_Face, ParallelEnv):  # type: ignore[misc]
    """All seats that are asked act at once."""

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Begin a game."""
        events = self._open(seed, options)
        self._stand(events)
        return self._shown(events)

    def restore(self, snapshot: Snapshot) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Stand where the snapshot was taken; returns what is new to the seats that are asked, as `reset` does."""
        events = branches.put(self.machine, snapshot)
        self._stand(events)
        return self._shown(events)

    def _stand(self, events: Events) -> None:
        self.agents = list(self.possible_agents)
        self._asked = {str(seat) for seat in events}

    def step(
        self, actions: dict[str, str]
    ) -> tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """The turns of the seats that are asked; what others give is not read."""
        self._require_game("step")
        for agent in actions:
            self._require_seat("step", agent)
        if missing := self._asked - set(actions):
            were = "was asked and has" if len(missing) == 1 else "were asked and have"
            raise UsageError(f"step: {', '.join(sorted(missing))} {were} no action")
        events = self._act({seat: actions[seat] for seat in self.possible_agents if seat in self._asked})
        agents = list(self.agents)
        texts, infos = self._shown(events)
        endings = {agent: events[agent].ending if agent in events else None for agent in agents}
        rewards = {agent: float((events[agent].reward if agent in events else None) or 0.0) for agent in agents}
        self._asked = {agent for agent in agents if agent in events and endings[agent] is None}
        if any(endings.values()):
            self.agents = []
        terminated = {agent: ending is Ending.ANSWERED for agent, ending in endings.items()}
        truncated = {agent: ending is not None and not terminated[agent] for agent, ending in endings.items()}
        return texts, rewards, terminated, truncated, infos

    def _shown(self, events: Events) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        texts: dict[str, str] = {}
        infos: dict[str, dict[str, Any]] = {}
        for agent in self.agents:
            event = events.get(agent)
            texts[agent] = Observation(joined(event.messages) if event else "")
            infos[agent] = self._info(agent, event, event is not None and event.ending is None)
        return texts, infos


def make_aec(entry_point: str, render_mode: str | None = None, **options: Any) -> AECGame:
    """What `pettingzoo.make("aec", ID)` calls for a game of `palaestra.register_game`."""
    return AECGame(made(entry_point, options), render_mode)


def make_parallel(entry_point: str, render_mode: str | None = None, **options: Any) -> ParallelGame:
    """What `pettingzoo.make("parallel", ID)` calls for a game of `palaestra.register_game`."""
    return ParallelGame(made(entry_point, options), render_mode)


def _opened(events: Events) -> Events:
    """The events of a game that has begun; one that broke at once is an error to who calls `reset`."""
    fault = next((event.fault for event in events.values() if event.ending is Ending.BROKEN), None)
    if fault is not None:
        raise Broken(fault)
    return events
