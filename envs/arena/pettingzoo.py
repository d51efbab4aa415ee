"""PettingZoo's two interfaces of a Game: AEC, where one seat acts at a time, and Parallel, where several act at once.

Observations and actions are text. In AEC, seats that are asked at the same time act one after the other, and none sees
the turns of the others. In Parallel, a seat that is not asked (`info["asked"]` is False) may give any action, which is
ignored. A snapshot of either interface is a snapshot of the game, from which the asked seats follow. This module needs
pettingzoo. Left out: external PettingZoo environments as arenas (`foreign`).
"""

import copy
from collections.abc import Mapping
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from gymnasium.utils import seeding

from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.opening import make_author
from palaestra.envs.arena.single import MODES, SingleEpisode, require_begun
from palaestra.envs.arena.text_env import check_options
from palaestra.envs.core import branches
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.space import TextSpace
from palaestra.envs.core.state import Dialogue, Events, Seat
from palaestra.envs.core.transcript import fresh, joined, transcript
from palaestra.episode import Ending, Event, Start
from palaestra.errors import MissingExtra, UsageError

try:
    from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtra("pettingzoo", "games", "a game as a PettingZoo environment") from error

_PROBE = {"options": 1}
"""Options that PettingZoo's own tests pass to `reset`, to see that it takes options at all."""


class Observation(str):
    """Text with the `dtype` that PettingZoo's api_test expects of every observation."""

    __slots__ = ()
    dtype = None


class _Face(SingleEpisode):
    """Base class of both interfaces: the game, its seats' spaces and infos."""

    def __init__(self, game: ToolEnv, render_mode: str | None = None) -> None:
        """`game` is an object of an author's class; it is never changed."""
        super().__init__(game, render_mode)
        self.metadata: dict[str, Any] = {
            "name": type(game).__name__,
            "render_modes": MODES,
            # PettingZoo's conversion needs seats in a fixed cycle; the Parallel interface here is a separate class.
            "is_parallelizable": False,
        }
        self.possible_agents = list(game.seats)
        self.agents: list[str] = []
        # Not shared: seed_test seeds and samples the spaces of two environments side by side.
        self._observation_spaces = {seat: TextSpace() for seat in game.seats}
        self._action_spaces = {seat: TextSpace() for seat in game.seats}
        self._random: np.random.Generator | None = None
        self._printed: dict[Seat, int] = {}
        """Number of messages of each seat that were printed, for "human"."""

    def observation_space(self, agent: str) -> TextSpace:
        """Return the space of all texts."""
        self._require_seat("observation_space", agent)
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> TextSpace:
        """Return the space of all texts."""
        self._require_seat("action_space", agent)
        return self._action_spaces[agent]

    def render(self) -> Any:
        """Return every seat's transcript, for "ansi"; "human" prints turns as they happen."""
        if self.render_mode != "ansi":
            return None
        return "\n\n".join(f"[{seat}]\n{transcript(dialogue.messages)}" for seat, dialogue in self._dialogues.items())

    def _forked(self, index: int, own_noise: bool) -> None:
        self._random = copy.deepcopy(self._random)
        if own_noise and self._random is not None:  # It draws the next games.
            self._random, _ = seeding.np_random(int(self._random.integers(2**31)) + index)
        self._stand(self.machine.pending_events)

    def _stand(self, events: Events) -> None:
        """Set PettingZoo's attributes for a game that waits for the seats of these events."""
        raise NotImplementedError

    @property
    def _dialogues(self) -> Mapping[Seat, Dialogue]:
        return {} if self.machine.state is None else self.machine.state.seats

    def _print(self) -> None:
        """Print the messages that were not printed before, for "human"."""
        if self.render_mode == "human":
            for seat, dialogue in self._dialogues.items():
                if new := dialogue.messages[self._printed.get(seat, 0) :]:
                    print(f"[{seat}]\n{transcript(new)}", flush=True)
                self._printed[seat] = len(dialogue.messages)

    def _act(self, texts: Mapping[str, str]) -> Events:
        """Take these turns, given by seat, and return the events that follow."""
        events: Events = {}
        for seat, text in texts.items():
            events |= settle(self.machine, self.machine.act(seat, text))
        self._print()
        return events

    def _require_seat(self, verb: str, agent: str) -> None:
        if agent not in self._observation_spaces:
            seats = ", ".join(self.possible_agents)
            raise UsageError(f"{verb}: there is no seat {agent!r}; the seats are {seats}")

    def _require_game(self) -> None:
        if not self.agents:
            raise UsageError("step: no game is played, or it has ended; call reset first")

    def _open(self, seed: int | None, options: dict[str, Any] | None) -> Events:
        """Begin a game: `options["task"]` picks the problem, otherwise it is drawn."""
        if options != _PROBE:
            check_options(options, ("task",))
        self.agents = []
        if seed is not None or self._random is None:
            self._random, _ = seeding.np_random(seed)
        draws = int(self._random.integers(self.machine.task_count)), int(self._random.integers(2**31))
        task = (options or {}).get("task")
        task = draws[0] if task is None else task
        if isinstance(task, bool) or not isinstance(task, SupportsIndex):
            raise UsageError(f"reset: options['task'] is {task!r}; expected a whole number, the task's index")
        starts: dict[Seat, Start] = {seat: Start(index(task), draws[1], seat=seat) for seat in self.possible_agents}
        release(self.machine)
        events = require_begun(settle(self.machine, self.machine.open(starts)))
        self._printed = {}
        self._print()
        return events

    def _info(self, agent: str, event: Event | None, to_move: bool) -> dict[str, Any]:
        """Return an info: fixed keys of fixed types, new objects, no timings."""
        return {
            "asked": to_move,
            "messages": fresh(event.messages) if event else (),
            "tools": self.machine.spec.offers[agent].described,
            "ending": str((event and event.ending) or ""),
            "parts": {name: event.parts.get(name, 0.0) if event else 0.0 for name in self.machine.spec.author.parts},
            "attempt": event.attempt if event else None,
            "fault": event.fault if event else "",
        }


class AECGame(_Face, AECEnv):  # type: ignore[misc]
    """AEC interface of a game: one seat acts at a time."""

    _texts: dict[str, str] = {}  # noqa: RUF012  (Replaced when a game begins.)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError for a missing attribute, such as `agent_selection` before a game begins."""
        if name == "agent_selection":
            raise AttributeError("agent_selection: no game is played; call reset first")
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game."""
        self._stand(self._open(seed, options))

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot: the same seat is selected, and has the same observations."""
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
        """Return the text that is new to this seat since its last turn."""
        self._require_seat("observe", agent)
        if agent not in self._texts:
            raise UsageError("observe: no game is played; call reset first")
        return Observation(self._texts[agent])

    def step(self, action: str | None) -> None:
        """Take the selected seat's turn; the action is None for a seat whose game is over."""
        self._require_game()
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        events = self._act({agent: action})  # type: ignore[dict-item]  # It refuses what is not text.
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0.0
        self._texts[agent] = ""
        self._waiting.remove(agent)
        self.infos[agent] = self._info(agent, None, False)
        self._take(events)
        self._accumulate_rewards()

    def _take(self, events: Events) -> None:
        """Store the events of the seats, and select the next one."""
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
    """Parallel interface of a game: all seats whose turn it is act at once."""

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Begin a game."""
        events = self._open(seed, options)
        self._stand(events)
        return self._shown(events)

    def restore(self, snapshot: Snapshot) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Restore a snapshot, and return the same values as `reset`."""
        events = branches.put(self.machine, snapshot)
        self._stand(events)
        return self._shown(events)

    def _stand(self, events: Events) -> None:
        self.agents = list(self.possible_agents)
        self._asked = {str(seat) for seat in events}

    def step(
        self, actions: dict[str, str]
    ) -> tuple[dict[str, str], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Take the turns of the seats whose turn it is; actions of other seats are ignored."""
        self._require_game()
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
    """Create the environment for `pettingzoo.make("aec", ID)`, for a game of `palaestra.register_game`."""
    return AECGame(make_author(entry_point, options), render_mode)


def make_parallel(entry_point: str, render_mode: str | None = None, **options: Any) -> ParallelGame:
    """Create the environment for `pettingzoo.make("parallel", ID)`, for a game of `palaestra.register_game`."""
    return ParallelGame(make_author(entry_point, options), render_mode)
