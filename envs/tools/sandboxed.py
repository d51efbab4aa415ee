"""The base of toolkits that run an agent's programs: a sandbox, a session that starts late, budgets, branches.

The sandbox opens when the first episode begins; all environments of this process share it. A session starts at the
first call, so an episode without a call costs nothing. Whatever a program does, the agent gets a text about it:
`Broken` means a fault of the sandbox, or settings that it refuses. Left out: names and arguments of tools (`python`,
`shell`), the text of replies (`replies`), and where programs run (`envs.sandboxes`).
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from palaestra.envs.core.backends import Where
from palaestra.envs.core.toolkit import Toolkit
from palaestra.envs.sandboxes import Limits, Sandbox, Session
from palaestra.envs.sandboxes.opening import SANDBOXES
from palaestra.envs.sandboxes.sandbox import Program
from palaestra.envs.tools.budgets import BudgetedToolkit, BudgetUsage, with_timeout
from palaestra.envs.tools.replies import reply
from palaestra.envs.tools.settings import check_files, check_settings
from palaestra.episode import Task
from palaestra.errors import Broken, UsageError

START_SECONDS = 60.0
"""Seconds of a call beyond its program's time; the first call of an episode starts a session."""


def in_sandbox(where: Where, *toolkits: Callable[..., Toolkit]) -> tuple[Callable[[], Toolkit], ...]:
    """Return factories of these toolkits with this sandbox, for an environment's `self.toolkits`."""
    SANDBOXES.read(where)
    return tuple(partial(kit, where) for kit in toolkits)


class SandboxedToolkit(BudgetedToolkit):
    """Base of toolkits that run programs. Settings are class attributes: a subclass changes them."""

    limits: Limits = Limits()
    """Limits of a session; `limits.seconds` is the time of one call."""
    stateful: bool = True
    """True for one session per episode; False runs each call in a new session."""
    keeps_variables: bool = False
    """True if later runs of a session see the variables of earlier ones, not only their files."""
    require: Sequence[str] = ()
    """Guards that the sandbox must have, or no episode begins (`Capabilities` lists them)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_settings(cls)
        cls.tools = with_timeout(cls.tools, cls.limits.seconds + START_SECONDS)

    @property
    def call_seconds(self) -> float:  # type: ignore[override]
        """Return `limits.seconds`."""
        return self.limits.seconds

    _files: Mapping[str, bytes]
    _turn: asyncio.Lock
    _episode: object
    """A new object for each episode, by which a session that starts too late is recognized."""

    def __init__(self, sandbox: Where = "local") -> None:
        """An option `limits` of the sandbox replaces the toolkit's limits; a mapping replaces only those it names."""
        self.backend, self._options = SANDBOXES.read(sandbox)
        if self._options.get("limits") is not None:
            self.limits = self._options["limits"] = Limits.of(self._options["limits"], self.limits)
            self.set_tools(with_timeout(self.tools, self.limits.seconds + START_SECONDS))
        self._sandbox: Sandbox | None = None
        self._session: Session | None = None
        self._guard = threading.Lock()

    def files(self, task: Task) -> Mapping[str, bytes]:
        """Return the files of a new session's working folder, by path. Called when an episode begins."""
        return {}

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Open the sandbox; a session starts with the first call.

        `files` is called here and not in the first call, because an error in it must not become a reply to the agent,
        and it may be slow.
        """
        self._begin(check_files(self.files(task), type(self).__name__, self.limits), BudgetUsage(), None)

    def close(self) -> None:
        """End the session and all programs that run in it."""
        with self._guard:
            self._episode = object()
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def snapshot(self) -> "tuple[Mapping[str, bytes], BudgetUsage, _Branch | None]":
        """Return files, budgets and, if a session has started, a branch of it."""
        if self._session is None:
            return self._files, self.usage, None
        if not self._open_sandbox().capabilities().forks:
            raise UsageError(
                f"{type(self).__name__} has no snapshots here: the sandbox {self.backend!r} cannot fork a session; "
                "use another one, or stateful = False"
            )
        return self._files, self.usage, _Branch(self._session)

    def restore(self, state: "tuple[Mapping[str, bytes], BudgetUsage, _Branch | None]") -> None:
        """Continue from a snapshot, in the fork of its session."""
        files, usage, branch = state
        self._begin(files, usage, None if branch is None else branch.take())

    async def run(self, program: Program, *, show_last: bool = False) -> str:
        """Run a program within the budgets and return the text for the agent. A session runs one program after another.

        Without a session, the calls of one turn run at the same time; each gets the time that was left when it began.
        """
        async with self._turn if self.stateful else nullcontext():
            seconds = self.admit()
            try:
                if self.stateful:
                    session = self._session or await self._start_session()
                    result = await session.arun(program, timeout=seconds, show_last=show_last)
                else:
                    result = await self._open_sandbox().arun_once(
                        program, files=self._files, timeout=seconds, show_last=show_last, limits=self.limits
                    )
            except UsageError as error:  # It is about settings, which no agent can choose.
                raise Broken(f"the sandbox {self.backend!r} refused {type(self).__name__}: {error}") from error
        self.count(result.duration_s)
        return reply(result, self.limits, seconds, variables=self.stateful and self.keeps_variables)

    # Private methods.

    def _begin(self, files: Mapping[str, bytes], usage: BudgetUsage, session: Session | None) -> None:
        self.close()
        self._files, self.usage = files, usage
        self._turn = asyncio.Lock()
        self._session = session
        self._open_sandbox()

    def _open_sandbox(self) -> Sandbox:
        """Return the shared sandbox, or another one if this toolkit's limits are higher than the default limits."""
        if self._sandbox is None:
            options = dict(self._options)
            usual = Limits()
            if any(getattr(self.limits, field.name) > getattr(usual, field.name) for field in fields(Limits)):
                options.setdefault("limits", self.limits)
            sandbox = SANDBOXES.shared(self.backend, **options)
            sandbox.capabilities().require(*self.require)
            if self.stateful and not sandbox.has_sessions:
                raise UsageError(
                    f"{type(self).__name__} keeps a session, and the sandbox {self.backend!r} has none; "
                    "use another one, or stateful = False"
                )
            self._sandbox = sandbox
        return self._sandbox

    async def _start_session(self) -> Session:
        episode = self._episode
        session = await self._open_sandbox().astart(files=self._files, limits=self.limits)
        with self._guard:
            if self._episode is episode:
                self._session = session
        if self._session is not session:  # The episode was closed meanwhile, from another thread.
            session.close()
            raise Broken("the episode was closed while its session started")
        return session


class _Branch:
    """A session in a snapshot. A deep copy of this object holds a fork of the session, and owns it until `take`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __deepcopy__(self, memo: object) -> "_Branch":
        copied = _Branch(self._session.fork())
        copied._drop = weakref.finalize(copied, copied._session.close)
        copied._drop.atexit = False  # At exit, remaining sessions end with their sandbox.
        return copied

    _drop: Any = None
    """Closes the fork if the copy is dropped; None if this is no copy."""

    def take(self) -> Session:
        """Return the session; the caller then owns it."""
        if self._drop is not None:
            self._drop.detach()
        return self._session
