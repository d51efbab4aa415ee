"""ToolVectorEnv: many episodes of one environment at once, as Gymnasium's VectorEnv and as palaestra's Arena.

No slot resets by itself (`AutoresetMode.DISABLED`), so that the caller chooses every task. Left out: playing the
episodes (`arena`), seats of a game, adapters for external environments.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Tuple as TupleSpace
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from palaestra import formats
from palaestra.envs.arena.arena import LocalArena
from palaestra.envs.arena.opening import machine_of, make_author, spec_of
from palaestra.envs.arena.single import require_author
from palaestra.envs.arena.text_env import TextEnv, check_options, draw_start
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.space import TEXT
from palaestra.envs.core.transcript import fresh, joined, stack, transcript
from palaestra.episode import Ending, Event, Message
from palaestra.errors import Broken, UsageError


class ToolVectorEnv(LocalArena, VectorEnv[tuple[str, ...], Sequence[str | None], NDArray[Any]]):
    """Arena with `num_envs` slots for one environment. If `ordered`, `recv` returns all outstanding events at once."""

    def __init__(
        self,
        author: ToolEnv,
        num_envs: int,
        *,
        env_id: str = "",
        ordered: bool | None = None,
        max_workers: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`author` is an object of an author's class; it is never changed. The rest is as for `LocalArena`."""
        self.closed = True  # Until all is set up: Gymnasium may call close on an incomplete object.
        if num_envs < 1:
            raise UsageError(f"num_envs is {num_envs}; expected at least 1")
        require_author("ToolVectorEnv", author)
        self.num_envs = num_envs
        self._author = spec_of(author, env_id)
        LocalArena.__init__(
            self, {"": lambda: machine_of(self._author)}, num_envs, name=self._author.name, ordered=ordered,
            max_workers=max_workers,
        )  # fmt: skip
        self.render_mode = render_mode
        self.metadata = {**TextEnv.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = self.single_action_space = TEXT
        self.observation_space = self.action_space = TupleSpace([TEXT] * num_envs)
        self._random: list[np.random.Generator | None] = [None] * num_envs
        self._turns = [0] * num_envs
        self._transcripts: list[list[Message]] = [[] for _ in range(num_envs)]
        """Messages of each slot, for "ansi"."""
        self.closed = False

    @property
    def spec(self) -> EnvSpec | None:
        """Gymnasium's spec, if `gymnasium.make_vec` created this object; else None."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:
        self._spec = value
        if value is not None:
            self.name = self._jobs.inbox.env_id = self._author.name = value.id

    _spec: EnvSpec | None = None

    def close(self, **kwargs: Any) -> None:
        """Discard running episodes and release everything. Toolkits that do not close before their deadlines are
        abandoned."""
        VectorEnv.close(self, **kwargs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the arena: Gymnasium's `close` calls this once."""
        LocalArena.close(self)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Open episodes in the slots of `options["reset_mask"]`, or in all; `options["tasks"]` sets their tasks."""
        check_options(options, ("reset_mask", "tasks"))
        options = options or {}
        mask = options.get("reset_mask")
        tasks = options.get("tasks")
        seeds = (
            [None if seed is None else seed + slot for slot in range(self.num_envs)]
            if (seed is None or isinstance(seed, int | np.integer))
            else list(seed)
        )
        for name, entries in (("seed", seeds), ("tasks", tasks), ("reset_mask", mask)):
            if entries is not None and len(entries) != self.num_envs:
                raise UsageError(f"reset: {name} has {len(entries)} entries; expected one per slot, {self.num_envs}")
        chosen = [slot for slot in range(self.num_envs) if mask is None or mask[slot]]
        for slot in chosen:
            seeded, start = draw_start(
                self._random[slot], seeds[slot], None if tasks is None else tasks[slot], self.task_count
            )
            self._random[slot], self._turns[slot], self._transcripts[slot] = seeded, 0, []
            self.begin(slot, start)
        events = self._receive(chosen)
        for event in events:
            if event.ending is not None:
                raise Broken(event.fault)
        return self._texts(events), self._infos(events, opening=True)

    def step(
        self, actions: Sequence[str | None]
    ) -> tuple[tuple[str, ...], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take one turn in every slot; an action of None skips its slot. A BROKEN slot is truncated with reward 0."""
        if actions is None or isinstance(actions, str) or len(actions) != self.num_envs:
            raise UsageError(f"step: expected {self.num_envs} actions, one per slot (None skips a slot)")
        turns_by_slot = {slot: action for slot, action in enumerate(actions) if action is not None}
        self.send(turns_by_slot)
        for slot, action in turns_by_slot.items():
            self._turns[slot] += 1
            if self.render_mode == "ansi":
                self._transcripts[slot].append({"role": "assistant", "content": action})
        events = self._receive(turns_by_slot)
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for event in events:
            if event.ending is not None:
                rewards[event.slot] = event.reward or 0.0
                (terminated if event.ending is Ending.ANSWERED else truncated)[event.slot] = True
        return self._texts(events), rewards, terminated, truncated, self._infos(events)

    def call(self, tool_name: str, /, **arguments: Any) -> str:
        """Return the text of a tool call, as an action for `step`."""
        return formats.get(self._author.author.format).render([formats.ParsedCall(tool_name, arguments)])

    def render(self) -> tuple[Any, ...] | None:
        """Return the transcripts of all slots, for "ansi"."""
        return tuple(map(transcript, self._transcripts)) if self.render_mode == "ansi" else None

    def _receive(self, slots: Iterable[int]) -> list[Event]:
        """Return the events of all these slots, in ascending order."""
        awaited = set(slots)
        events: list[Event] = []
        while awaited:
            received = self.recv(self.num_envs)
            events += received
            awaited -= {event.slot for event in received}
        return events if self.ordered else sorted(events, key=lambda event: event.slot)

    def _texts(self, events: list[Event]) -> tuple[str, ...]:
        texts = [""] * self.num_envs
        for event in events:
            if event.messages:
                texts[event.slot] = joined(event.messages)
                if self.render_mode == "ansi":
                    self._transcripts[event.slot] += event.messages
        return tuple(texts)

    def _infos(self, events: list[Event], opening: bool = False) -> dict[str, Any]:
        """Return `TextEnv`'s infos of events in the form of Gymnasium's vector environments: one array for each key;
        "parts" is a dict with one array for each part of the reward."""
        if not events:
            return {}
        slots, spec = [event.slot for event in events], self._author
        infos: dict[str, Any] = {
            "messages": [fresh(event.messages) for event in events],
            "turn": [self._turns[slot] for slot in slots],
            "ending": ["" if event.ending is None else str(event.ending) for event in events],
            "parts": {name: [event.parts.get(name, 0.0) for event in events] for name in spec.author.parts},
            "attempt": [event.attempt for event in events],
            "fault": [event.fault for event in events],
        }
        if opening:
            infos["tools"] = [spec.offers[None].described_by(event.tools) for event in events]
            infos["system"] = [spec.system[None]] * len(events)
            infos["task"] = [event.start.task for event in events]
        return stack(slots, infos, self.num_envs)


def open_vector(entry_point: str, num_envs: int = 1, **options: Any) -> ToolVectorEnv:
    """Create the environment for `gymnasium.make_vec`, for an id of `palaestra.register`."""
    vector_options = {name: options.pop(name) for name in ("ordered", "max_workers", "render_mode") if name in options}
    return ToolVectorEnv(make_author(entry_point, options), num_envs, **vector_options)
