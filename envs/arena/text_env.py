"""TextEnv: one environment as a Gymnasium `Env`, for stepping by hand. `gymnasium.make` creates it.

    env = TextEnv(Boxes())          a class of your own, without registering it

Left out: many episodes at once (`vector`), games of several seats (`pettingzoo`), and autoreset.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding

from palaestra import formats
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.opening import make_author
from palaestra.envs.arena.single import MODES, SingleEpisode, require_author, require_begun
from palaestra.envs.core import branches
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.machine import MachineReply
from palaestra.envs.core.space import TEXT
from palaestra.envs.core.transcript import fresh, joined, transcript
from palaestra.episode import Attempt, Ending, Event, Start, Task
from palaestra.errors import UsageError


class TextEnv(SingleEpisode, gymnasium.Env[str, str]):
    """One environment as a `gymnasium.Env`: observations are the new messages as text, actions the agent's turns."""

    metadata = {"render_modes": MODES, "render_fps": 1}  # noqa: RUF012  (Gymnasium declares it so)
    observation_space = TEXT
    action_space = TEXT
    _spec: EnvSpec | None = None

    def __init__(self, author: ToolEnv, render_mode: str | None = None) -> None:
        """`author` is an object of an author's class; it is never changed."""
        require_author("TextEnv", author)
        SingleEpisode.__init__(self, author, render_mode)

    @property
    def spec(self) -> EnvSpec | None:
        """Spec that `gymnasium.make` created it from; None without one."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:
        self._spec = value
        if value is not None:
            self._id = value.id
            if self._machine is not None:
                self._machine.spec.name = value.id

    @property
    def problem(self) -> Task:
        """Task of this episode, or of the last one."""
        return self.attempt.task

    @property
    def tasks(self) -> Sequence[Task]:
        """Tasks of this environment's split."""
        return self.machine.spec.tasks

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """Schemas of the agent's tools, in the OpenAI form."""
        state = self.machine.state
        return self.machine.spec.offers[None].schemas if state is None else state.seats[None].schemas

    @property
    def is_open(self) -> bool:
        """True while an episode runs."""
        return self.machine.is_open

    @property
    def attempt(self) -> Attempt:
        """Attempt of this episode so far, or of the last one."""
        if self.machine.state is None:
            raise UsageError("attempt: no episode has begun; call reset first")
        return self.machine.state.attempt(None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Open an episode; `options={"task": index}` picks the problem, otherwise it is drawn.

        `info["tools"]` is JSON text, because Gymnasium's `check_env` refuses two infos that share a dict, and all
        episodes share the schemas of the tools. The property `schemas` has them as dicts.
        """
        check_options(options, ("task",))
        release(self.machine)
        task = (options or {}).get("task")
        self.np_random, start = draw_start(self._np_random, seed, task, len(self.tasks))
        event = require_begun(settle(self.machine, self.machine.open({None: start})))[None]
        if self.render_mode == "human":
            print(transcript(event.messages), flush=True)
        return joined(event.messages), self._info(event, opening=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn. For a BROKEN episode, the turn is `truncated`, the reward is 0.0 (Gymnasium requires a float),
        and `info["ending"]` is "broken"."""
        return self._taken(self.machine.act(None, action), action)

    def finish(self, ending: Ending, text: str = "") -> tuple[str, float, bool, bool, dict[str, Any]]:
        """End the episode from outside, for example if the tokens ran out after `text`; return what `step` returns."""
        return self._taken(self.machine.stop(ending, None, text), text)

    def render(self) -> str | None:
        """Return the transcript so far, for "ansi"; "human" prints turns as they happen."""
        if self.render_mode != "ansi":
            return None
        state = None if self._machine is None else self._machine.state
        return "" if state is None else transcript(state.seats[None].messages)

    def call(self, tool_name: str, /, **arguments: Any) -> str:
        """Return the text of a tool call, for `step`. If wrapped, use `env.unwrapped.call("search", query="x")`."""
        return formats.get(self.author.format).render([formats.ParsedCall(tool_name, arguments)])

    def restore(self, snapshot: Snapshot) -> tuple[str, dict[str, Any]]:
        """Restore a snapshot, from which the episode continues exactly; return the same values as `reset`."""
        release(self.machine)
        event = branches.put(self.machine, snapshot)[None]
        return joined(event.messages), self._info(event, opening=True)

    def _forked(self, index: int, own_noise: bool) -> None:
        pass  # The generator that draws its next tasks is shared on purpose.

    def _taken(self, reply: MachineReply, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        event = settle(self.machine, reply)[None]
        if self.render_mode == "human":
            messages = [{"role": "assistant", "content": text}, *event.messages]
            result = event.fault or f"reward {event.reward}"
            print(transcript(messages) + (f"\n[{event.ending}: {result}]" if event.ending else ""), flush=True)
        terminated = event.ending is Ending.ANSWERED
        truncated = event.ending is not None and not terminated
        return joined(event.messages), float(event.reward or 0.0), terminated, truncated, self._info(event)

    def _info(self, event: Event, opening: bool = False) -> dict[str, Any]:
        """Return Gymnasium's info: fixed keys of fixed types, new objects, no timings."""
        state = self.machine.state
        assert state is not None
        info: dict[str, Any] = {
            "messages": fresh(event.messages),
            "turn": state.seats[None].turns,
            "ending": "" if event.ending is None else str(event.ending),
            "parts": {name: event.parts.get(name, 0.0) for name in self.author.parts},
            "attempt": event.attempt,
            "fault": event.fault,
        }
        if opening:
            spec = self.machine.spec
            info |= {
                "tools": spec.offers[None].described_by(event.tools),
                "system": spec.system[None],
                "task": event.start.task,
            }
        return info


def draw_start(
    random: np.random.Generator | None, seed: int | None, task: int | None, task_count: int
) -> tuple[np.random.Generator, Start]:
    """Return the generator and the start of `reset`; a task or seed of None is drawn from the generator."""
    if seed is not None or random is None:
        random = seeding.np_random(None if seed is None else int(seed))[0]
    index = int(random.integers(task_count)) if task is None else int(task)
    return random, Start(index, int(random.integers(2**31)) if seed is None else int(seed))


def check_options(options: Mapping[str, Any] | None, names: Sequence[str]) -> None:
    """Raise UsageError for an unknown key of `reset(options=)`."""
    for name in options or ():
        if name not in names:
            close = get_close_matches(str(name), names, n=1)
            hint = f"is {close[0]!r} meant?" if close else f"expected {' or '.join(map(repr, names))}"
            raise UsageError(f"reset: options has no {name!r}; {hint}")


def open_text_env(entry_point: str, render_mode: str | None = None, **options: Any) -> TextEnv:
    """Create the environment for `gymnasium.make`, for an id of `palaestra.register`."""
    return TextEnv(make_author(entry_point, options), render_mode)


open_text_env.metadata = TextEnv.metadata  # type: ignore[attr-defined]  # Gymnasium asks the creator for render modes.
