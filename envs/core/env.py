"""ToolEnv: the base of every environment, Gymnasium's face of the episode machine.

Left out: the machine itself (`machine`), which the vector environment drives too, and autoreset.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, Self, TypeVar

from palaestra import formats
from palaestra.envs.core import branches
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.discovery import divide
from palaestra.envs.core.machine import EpisodeMachine
from palaestra.envs.core.scoring import check_declared
from palaestra.envs.core.settings import check_limits
from palaestra.envs.core.tool import Mode, collect
from palaestra.envs.core.toolkit import Toolkit, merge
from palaestra.envs.core.transcript import fresh, joined, transcript
from palaestra.envs.data.rows import require_file
from palaestra.envs.data.task_files import WHOLE, check_part, load_tasks
from palaestra.envs.running.runner import take_turn
from palaestra.episode import Ending, Event, Start, Task
from palaestra.errors import Broken, EnvironmentDefect, UsageError
from palaestra.options import FORMAT, refuse_unknown

_DECLARED = {name for base in EpisodeMachine.__mro__ for name in vars(base).get("__annotations__", ())}


Construct = TypeVar("Construct", bound=Callable[..., None])


def _with_options(construct: Construct) -> Construct:
    """A constructor that also takes `format`, and says what it takes when it is given anything else.

    So an option is the same whoever opens the environment: Gymnasium, the vector environment or its class by name.
    """
    takes = signature(construct)

    @wraps(construct)
    def constructed(self: Any, *given: Any, **options: Any) -> None:
        if type(self).__init__ is not constructed:  # What a subclass hands on is its author's affair.
            construct(self, *given, **options)
            return
        format = None if FORMAT in takes.parameters else options.pop(FORMAT, None)
        known = None if format is None else formats.known(format)
        try:
            takes.bind(self, *given, **options)
        except TypeError as error:
            refuse_unknown(type(self).__name__, type(self), options)
            raise UsageError(f"{type(self).__name__}: {error}") from error
        construct(self, *given, **options)
        if known is not None:
            self.format = known

    return constructed  # type: ignore[return-value]


class ToolEnv(EpisodeMachine):
    """An environment whose agent calls tools. Define `task` (or `task_set`), `reward` and methods marked `@tool`."""

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012  (Gymnasium declares it so)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._tools = collect(cls)
        for found in cls._tools.values():
            if hasattr(ToolEnv, found.attribute) or found.attribute in _DECLARED:
                raise EnvironmentDefect(
                    f"{cls.__name__}.{found.attribute} is a tool but replaces ToolEnv.{found.attribute}; "
                    f"rename the method and keep the agent's name with @tool(name={found.name!r})"
                )
        declared = getattr(vars(cls).get("reward"), "parts", None)
        if declared is not None and "parts" not in vars(cls):  # A reward that knows its own parts: Progressive.
            cls.parts = declared
        check_declared(cls.__name__, cls.parts)
        check_limits(cls)
        formats.get(cls.format)
        kits = [kit for kit in cls.toolkits if isinstance(kit, type) and issubclass(kit, Toolkit)]
        tools = merge(cls.__name__, cls._tools, [(kit.__name__, kit.tools) for kit in kits])
        divide(cls.__name__, tuple(tools.values()))
        owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
        if owner is cls or not issubclass(owner, ToolEnv):  # An __init__ of its own, or of a class mixed in.
            cls.__init__ = _with_options(cls.__init__)  # type: ignore[method-assign]

    tasks_file: str | None = None
    """A file of tasks to play instead of the environment's own."""

    @_with_options
    def __init__(
        self,
        split: str = "train",
        render_mode: str | None = None,
        tasks: str | None = None,
        format: str | None = None,
    ) -> None:
        """Cheap on purpose: tools and tasks are set up when an episode begins. `tasks` names a file of them.

        `split` is train or eval, or `all` of a file: a test that was published whole. `format` is the dialect in which
        calls are read, in place of the class's; every environment takes it, whatever its own constructor takes.
        """
        if format is not None:
            self.format = formats.known(format)
        if tasks is not None:
            if not isinstance(tasks, str):  # Gymnasium's spec is JSON.
                raise UsageError(
                    f"tasks is a {type(tasks).__name__}; expected the path of a file of tasks, as str(path)"
                )
            self.tasks_file = require_file(tasks)
        if split == WHOLE and self.tasks_file is None:
            raise UsageError(f"split is {WHOLE!r}, which is the whole of a file; name the file with tasks=FILE")
        check_part(split)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UsageError(f"render_mode is {render_mode!r}; expected None or one of {self.metadata['render_modes']}")
        self.split = split
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Open an episode; `options={"task": index}` picks the problem, otherwise it is drawn."""
        check_options(options, ("task",))
        event = self.begin_drawn(seed, (options or {}).get("task"))
        if event.ending is not None:
            raise Broken(event.fault)
        if self.render_mode == "human":
            print(transcript(self._messages), flush=True)
        return joined(event.messages), self.info(event, opening=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn. A BROKEN episode is `truncated` with reward 0.0, since Gymnasium wants a float: see `info`."""
        before = len(self._messages) if self.is_open else 0
        event = self.take(action)
        if self.render_mode == "human":
            judged = event.fault or f"reward {event.reward}"
            closing = f"\n[{event.ending}: {judged}]" if event.ending else ""
            print(transcript(self._messages[before:]) + closing, flush=True)
        terminated = event.ending is Ending.ANSWERED
        truncated = event.ending is not None and not terminated
        return joined(event.messages), float(event.reward or 0.0), terminated, truncated, self.info(event)

    def render(self) -> str | None:
        """The transcript so far, for "ansi"; "human" prints turns as they happen."""
        return transcript(self._messages if self._start is not None else ()) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Drop what runs and release the toolkits."""
        self.discard()

    def call(self, tool_name: str, /, **arguments: Any) -> str:
        """The text of a call, for hand-stepping; behind wrappers it is `env.unwrapped.call("search", query="x")`."""
        return formats.get(self.format).render([formats.ParsedCall(tool_name, arguments)])

    def begin_drawn(self, seed: int | None, task: int | None) -> Event:
        """Open an episode the way `reset` does."""
        return self.begin(self.drawn(seed, task), reseed=False)

    def drawn(self, seed: int | None, task: int | None) -> Start:
        """What `reset` opens: the seed, and the task where none is given, from `np_random`."""
        if seed is not None:
            super().reset(seed=seed)
        index = int(self.np_random.integers(len(self.tasks))) if task is None else int(task)
        return Start(index, int(self.np_random.random() * 2**31) if seed is None else seed)

    def snapshot(self) -> Snapshot:
        """The running episode as it stands; a UsageError where one of the toolkits does not support it."""
        return branches.take(self)

    def restore(self, snapshot: Snapshot) -> tuple[str, dict[str, Any]]:
        """Stand where the snapshot was taken and go on exactly as from there; returns what `reset` does."""
        event = branches.put(self, snapshot)
        return joined(event.messages), self.info(event, opening=True)

    def fork(self, count: int, *, own_noise: bool = True) -> list[Self]:
        """So many environments that stand where this one stands, which is left as it is.

        Each gets a seed of its own, drawn from this one's generator, its turn and the child's index, so that branches
        differ and forking again repeats them. With `own_noise=False` they all go on exactly as this one.
        """
        return branches.fork(self, count, own_noise)

    def info(self, event: Event, opening: bool = False) -> dict[str, Any]:
        """Gymnasium's info: fixed keys of fixed types, fresh objects, no timings."""
        found: dict[str, Any] = {
            "messages": fresh(event.messages),
            "turn": self._turns,
            "ending": "" if event.ending is None else str(event.ending),
            "parts": {name: event.parts.get(name, 0.0) for name in self.parts},
            "attempt": event.attempt,
            "fault": event.fault,
        }
        if opening:
            found |= {"tools": self._described, "system": self.system, "task": event.start.task}
        return found

    def take(self, action: str) -> Event:
        """One turn, with our deadlines, whatever kinds of tools it calls: what `step` is made of."""
        prepared = self.open_turn(action)
        if all(item.mode is Mode.INLINE for item in prepared):
            return self.close_turn([self.run_call(item) for item in prepared])
        calls, late = take_turn(self.spec.id if self.spec else type(self).__name__, self.slot, prepared)
        if late is None:
            return self.close_turn(calls)
        self.abandon()
        return self.finish(Ending.BROKEN, fault=self.late(late))

    def _make_set(self) -> Sequence[Task]:
        """From the file that `tasks` named, or the environment's own."""
        return super()._make_set() if self.tasks_file is None else load_tasks(self.tasks_file, self.split)


def infos(envs: Sequence[ToolEnv], events: Sequence[Event], opening: bool) -> dict[str, Any]:
    """What `info` says of these environments of one class, key by key, and the reward parts part by part: how
    Gymnasium's vectors want it."""
    found: dict[str, Any] = {
        "messages": [fresh(event.messages) for event in events],
        "turn": [env._turns for env in envs],
        "ending": ["" if event.ending is None else str(event.ending) for event in events],
        "parts": {name: [event.parts.get(name, 0.0) for event in events] for name in envs[0].parts},
        "attempt": [event.attempt for event in events],
        "fault": [event.fault for event in events],
    }
    if opening:
        found["tools"] = [env._described for env in envs]
        found["system"] = [env.system for env in envs]
        found["task"] = [event.start.task for event in events]
    return found


def check_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> None:
    """Refuse a key of `reset(options=)` that nobody reads."""
    for name in options or ():
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"is {close[0]!r} meant?" if close else f"expected {' or '.join(map(repr, known))}"
            raise UsageError(f"reset: options has no {name!r}; {hint}")
