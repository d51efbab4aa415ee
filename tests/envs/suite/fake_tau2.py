"""What of the package tau2 is used, over a desk of our own: a library, in the layout of its domains."""

import json
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel

FOLDER = Path(__file__).parent / "library_desk"


class EnvCall(BaseModel):
    func_name: str
    arguments: dict[str, Any]
    assert_value: bool = True


class InitialState(BaseModel):
    initialization_data: Any = None
    initialization_actions: list[EnvCall] | None = None
    message_history: list[Any] | None = None


class Criteria(BaseModel):
    actions: list[dict[str, Any]] | None = None
    env_assertions: list[EnvCall] | None = None
    communicate_info: list[str] | None = None
    nl_assertions: list[str] | None = None
    reward_basis: list[str] = ["DB", "COMMUNICATE"]


class Task(BaseModel):
    id: str
    user_scenario: dict[str, Any]
    initial_state: InitialState | None = None
    evaluation_criteria: Criteria | None = None


class Library:
    """A world, as the package has it: tools over a database, calls before the start, assertions."""

    user_tools = None

    def __init__(self):
        self.db = json.loads((FOLDER / "db.json").read_text())

    def get_policy(self):
        return (FOLDER / "policy.md").read_text()

    def get_tools(self):
        def tool(name, **properties):
            parameters = {"type": "object", "properties": properties, "required": list(properties)}
            about = {"name": name, "description": f"{name} it.", "parameters": parameters}
            return SimpleNamespace(name=name, openai_schema={"type": "function", "function": about})

        loan = {"type": "string"}
        return [tool("get_loan", loan=loan), tool("renew", loan=loan, weeks={"type": "integer"})]

    def make_tool_call(self, tool_name, requestor="assistant", **arguments):
        assert requestor == "assistant"
        loan = self.db["loans"].get(arguments.pop("loan"))
        if loan is None:
            raise ValueError("Loan not found")
        if tool_name == "renew":
            loan["due"] = f"{int(loan['due'].split()[0]) + 7 * arguments['weeks']} May"
        return loan

    def set_state(self, data, calls, history):
        assert (data, history) == (None, [])
        for one in calls or ():
            self.db["loans"][one.arguments["loan"]]["due"] = one.arguments["due"]

    def run_env_assertion(self, one, raise_assertion_error=True):
        return (self.db["loans"][one.arguments["loan"]]["due"] == one.arguments["due"]) == one.assert_value

    def sync_tools(self):
        pass

    def to_json_str(self, result):
        return json.dumps(result)

    def get_db_hash(self):
        return blake2b(json.dumps(self.db, sort_keys=True).encode()).hexdigest()


def modules():
    """The package, by the names of its modules."""
    made = {name: ModuleType(name) for name in (
        "tau2", "tau2.domains", "tau2.domains.library_desk", "tau2.domains.library_desk.environment", "tau2.data_model",
        "tau2.data_model.tasks",
    )}  # fmt: skip
    desk = made["tau2.domains.library_desk.environment"]
    desk.get_environment = Library
    desk.get_tasks = lambda split: [Task(**one) for one in deepcopy(json.loads((FOLDER / "tasks.json").read_text()))]
    desk.get_tasks_split = lambda: json.loads((FOLDER / "split_tasks.json").read_text())
    made["tau2.data_model.tasks"].Task = Task
    for name in ("tau2", "tau2.domains", "tau2.domains.library_desk", "tau2.data_model"):
        made[name].__path__ = []
    return made
