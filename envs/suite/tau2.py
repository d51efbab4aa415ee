"""tau2-bench: the service desks of the package `tau2` (retail, airline), with its tools, policies and tasks.

A task:      Hello.          (the user, whom a model plays, says the rest)
An episode:  What can I do for you? / I want to exchange a keyboard ... / find_user_id_by_name_zip(...) / ...

A task lists right actions and texts that the agent has to say. Success means all that its `reward_basis` names: the
final database is that of the right actions (DB), the texts were said (COMMUNICATE), the actions were called (ACTION),
and assertions on the state hold (ENV_ASSERTION). A desk where nothing is to be done is served by doing nothing, as in
the benchmark. Left out: assertions in words, which only a model could judge, domains whose user has tools (telecom),
and tasks that begin in the middle of a conversation.
"""

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from palaestra.envs import Task, ToolEnv, Toolkit
from palaestra.envs.core.backends import Where
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.core.tasks import split_of
from palaestra.envs.core.tool import Tool
from palaestra.envs.data.desk_files import BASIS, desk_data
from palaestra.envs.data.problem_files import published
from palaestra.envs.data.rows import Row
from palaestra.envs.running.work import Conditions, WorkMode
from palaestra.envs.tools.mcp_schema import GivenSchema
from palaestra.envs.users import conversation, says, user_for
from palaestra.episode import Attempt, Call, Status
from palaestra.errors import MissingExtra, ToolError, UsageError

log = logging.getLogger("palaestra.envs")
PACKAGE = "tau2"
"""Package that a user may install; palaestra does not depend on it."""
OPENING = "Hello."
_JUDGED = (*BASIS, "ACTION", "ENV_ASSERTION")
_CALL_SECONDS = 60.0


class Domain:
    """A domain of the package. It makes the toolkit of an episode when it is called."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[a-z0-9_]{1,40}", name):
            raise UsageError(f"domain is {name!r:.60}; expected a name such as retail or airline")
        try:
            import_module(PACKAGE)
            self.module = import_module(f"{PACKAGE}.domains.{name}.environment")
        except ModuleNotFoundError as error:
            if error.name == f"{PACKAGE}.domains.{name}":
                raise UsageError(f"tau2 has no domain {name!r}; try retail or airline") from None
            remedy = "pip install git+https://github.com/sierra-research/tau2-bench"
            raise MissingExtra(str(error.name), "", "palaestra/Tau2-v0", remedy) from error
        self.name, self.world = name, self.module.get_environment()
        if getattr(self.world, "user_tools", None) is not None:
            raise UsageError(f"in the domain {name!r} the user has tools; only users who talk are played here")
        self.tools = {}
        for place, tool in enumerate(self.world.get_tools()):
            about = tool.openai_schema["function"]
            self.tools[tool.name] = Tool(
                name=tool.name,
                attribute=f"call_{place}",
                function=DomainTools._run,
                conditions=Conditions(WorkMode.BLOCKING, _CALL_SECONDS),
                schema=tool.openai_schema,
                signature=GivenSchema(tool.name, about["parameters"]),
            )

    def __call__(self) -> "DomainTools":
        return DomainTools(self)

    def world_of(self, row: Mapping[str, Any]) -> Any:
        """Return a new world, in the initial state of a task."""
        world = deepcopy(self.world)
        initial = _parsed(row).initial_state
        if initial is not None:
            world.set_state(initial.initialization_data, initial.initialization_actions, [])
        return world

    def rows(self, split: str) -> list[Mapping[str, Any]]:
        """Return the package's tasks of a split: its train and test, or a share of all where it has no split."""
        rows = [task.model_dump(mode="json") for task in self.module.get_tasks(None)]
        splits = self.module.get_tasks_split() if hasattr(self.module, "get_tasks_split") else {}
        if {"train", "test"} <= splits.keys():
            ids = set(splits["train" if split == "train" else "test"])
            return [row for row in rows if row["id"] in ids]
        return [row for row in rows if split_of(row["id"]) == split]


domain_of = cache(Domain)
"""Domains by name: the database of one is read once."""


class DomainTools(Toolkit):
    """The tools of a domain, over the database of one episode."""

    def __init__(self, domain: Domain) -> None:
        self.domain, self.lock = domain, threading.Lock()
        object.__setattr__(self, "tools", domain.tools)
        for tool in domain.tools.values():
            setattr(self, tool.attribute, partial(self._run, tool.name))

    def start(self, task: Task, rng: np.random.Generator) -> None:
        self.data, self.world = task.data, self.domain.world_of(task.data["row"])

    def _run(self, name: str, /, **arguments: Any) -> str:
        with self.lock:  # Calls of a turn run in several threads.
            try:
                result = self.world.make_tool_call(name, requestor="assistant", **arguments)
            except Exception as error:  # The package's tools refuse with errors of any kind.
                raise ToolError(str(error)) from error
            self.world.sync_tools()
            return str(self.world.to_json_str(result))

    def final(self) -> dict[str, Any]:
        """Return the hashes of the final database and of the one after the right actions, and whether assertions
        hold."""
        right = self.domain.world_of(self.data["row"])
        for action in self.data["actions"]:
            try:
                right.make_tool_call(action["name"], requestor=action["by"], **action["arguments"])
                right.sync_tools()
            except Exception as error:  # As in the benchmark: some right actions are refused.
                log.debug("task %s: %s: %s", self.data["row"].get("id"), action["name"], error)
        criteria = _parsed(self.data["row"]).evaluation_criteria
        assertions = (criteria.env_assertions if criteria is not None else None) or []
        hold = [bool(self.world.run_env_assertion(assertion, raise_assertion_error=False)) for assertion in assertions]
        return {"database": self.world.get_db_hash(), "right": right.get_db_hash(), "assertions": hold}

    def snapshot(self) -> Any:
        return {"data": self.data, "world": self.world}

    def restore(self, state: Any) -> None:
        self.data, self.world = state["data"], state["world"]


class Tau2(ToolEnv):
    """Serve a user by the policy of a desk of tau2-bench, with tools over its database."""

    max_turns = 100
    deadlines = {"start": 60.0, "final": 60.0}  # noqa: RUF012
    parts = {  # noqa: RUF012
        "success": RewardPart(),
        **{name.lower(): RewardPart(weight=0.0) for name in _JUDGED},
    }

    def __init__(
        self, split: str = "train", tasks: str | None = None, domain: str = "retail", user: Where = "script"
    ) -> None:
        """`domain` is one of the package `tau2` whose user only talks, such as retail or airline. `user` is a mapping
        with base_url and model of a server that plays the user; without it the user says nothing. `tasks` is a file in
        the layout of the package's tasks.json, to play in place of the package's own."""
        super().__init__(split, tasks)
        desk = domain_of(domain)
        self.desk, self.toolkits = desk, (desk,)
        self.system = (
            f"You serve a user. A turn without a call is said to the user. Your policy:\n\n{desk.world.get_policy()}"
        )
        self.user = user_for(user, lambda attempt: None)  # type: ignore[method-assign]

    def task_set(self, split: str) -> Sequence[Task]:
        """Return the package's tasks that can be judged without a model."""
        tasks, left_out = list[Task](), 0
        for number, row in enumerate(self.desk.rows(split), 1):
            try:
                tasks.append(_task(Row(number, dict(row)))[1])
            except ValueError:
                left_out += 1
        if left_out:
            log.info(
                "tau2 %s, %s: %d tasks need a judge or a past conversation, and are left out",
                self.desk.name,
                split,
                left_out,
            )
        return tasks

    def read_tasks(self, path: str, split: str) -> Sequence[Task]:
        """Read tasks in the layout of tau2-bench."""
        return published(path, split, _task)

    def reward(self, attempt: Attempt) -> dict[str, float]:
        """Judge each part that the task's `reward_basis` may name, and their product."""
        data, final = attempt.task.data, attempt.final
        texts = [text for role, text in conversation(attempt) if role == "assistant"]
        actions = [action for action in data["actions"] if action["by"] == "assistant"]
        holds = {
            "DB": final["database"] == final["right"],
            "COMMUNICATE": all(says(texts, text) for text in data["outputs"]),
            "ACTION": all(any(_matches(action, call) for call in attempt.calls) for action in actions),
            "ENV_ASSERTION": all(final["assertions"]),
        }
        parts = {name.lower(): float(value) for name, value in holds.items()}
        return {"success": float(all(holds[name] for name in data["basis"])), **parts}


def _task(row: Row) -> tuple[str, Task]:
    """Return the split and the task of a row. Raise ValueError for a row that cannot be played or judged."""
    data = desk_data(row.columns)
    if beyond := [name for name in data["basis"] if name not in _JUDGED]:
        raise ValueError(f"is judged by {', '.join(beyond)}, which is not judged here")
    try:
        initial = _parsed(row.columns).initial_state
    except ValueError as error:
        raise ValueError(f"is no task of tau2: {str(error)[:300]}") from None
    if initial is not None and initial.message_history:
        raise ValueError("begins in the middle of a conversation ('message_history'); expected the beginning")
    task_id = str(row.columns.get("id") or f"entry {row.number}")
    return split_of(data["instructions"]), Task(OPENING, None, task_id, {**data, "row": row.columns})


def _parsed(row: Mapping[str, Any]) -> Any:
    """Return a row as a task of the package, which checks it."""
    parse: Callable[[Any], Any] = import_module(f"{PACKAGE}.data_model.tasks").Task.model_validate
    return parse({"id": "", **row})


def _matches(action: Mapping[str, Any], call: Call) -> bool:
    """Return whether a call is a right action, by the arguments that the action compares, or by all."""
    if call.name != action["name"] or call.status is not Status.OK:
        return False
    names = action["compare"] if action["compare"] is not None else {*action["arguments"], *call.arguments}
    return all(call.arguments.get(name) == action["arguments"].get(name) for name in names)
