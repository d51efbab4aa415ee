"""palaestra: a gym where language-model agents practise with tools.

Importing palaestra registers the ids of its suite and of installed packages, so that
`gymnasium.make("palaestra/TwoHop-v0")` works. An environment, a model library or a tool is loaded only when it is used.
"""

from importlib.util import find_spec

from palaestra.episode import Attempt, Call, Ending, Episode, Event, Message, Start, Status, Task, TokenRow
from palaestra.errors import (
    Broken,
    ConfigError,
    EnvironmentDefect,
    MissingExtra,
    PalaestraError,
    RecordError,
    SandboxUnavailable,
    ToolError,
    TrainingHalted,
    UnknownId,
    UnknownTask,
    UsageError,
)
from palaestra.installed import register_installed
from palaestra.protocols import Arena, Completion, Engine, Request
from palaestra.registry import arena, demonstrator, games, register, register_adapter, register_game, registered

__version__ = "0.1.0"

__all__ = [
    "Arena",
    "Attempt",
    "Broken",
    "Call",
    "Completion",
    "ConfigError",
    "Ending",
    "Engine",
    "EnvironmentDefect",
    "Episode",
    "Event",
    "Message",
    "MissingExtra",
    "PalaestraError",
    "RecordError",
    "Request",
    "SandboxUnavailable",
    "Start",
    "Status",
    "Task",
    "TokenRow",
    "ToolError",
    "TrainingHalted",
    "UnknownId",
    "UnknownTask",
    "UsageError",
    "arena",
    "demonstrator",
    "games",
    "register",
    "register_game",
    "registered",
]

_SUITE = "palaestra.envs.suite"
register("palaestra/Arithmetic-v0", f"{_SUITE}.arithmetic:Arithmetic", demonstrator=f"{_SUITE}.arithmetic:demonstrate")
register("palaestra/Calculator-v0", f"{_SUITE}.calculator:Calculator", demonstrator=f"{_SUITE}.calculator:demonstrate")
register("palaestra/TwoHop-v0", f"{_SUITE}.two_hop:TwoHop", demonstrator=f"{_SUITE}.two_hop:demonstrate")
register("palaestra/CodeMath-v0", f"{_SUITE}.code_math:CodeMath", demonstrator=f"{_SUITE}.code_math:demonstrate")
register(
    "palaestra/CodeContest-v0", f"{_SUITE}.code_contest:CodeContest", demonstrator=f"{_SUITE}.code_contest:demonstrate"
)
register("palaestra/HumanEval-v0", f"{_SUITE}.human_eval:HumanEval")
register("palaestra/Science-v0", f"{_SUITE}.science:Science", demonstrator=f"{_SUITE}.science:demonstrate")
register("palaestra/Reasoning-v0", f"{_SUITE}.reasoning:Reasoning", demonstrator=f"{_SUITE}.reasoning:demonstrate")
register("palaestra/DataTable-v0", f"{_SUITE}.data_table:DataTable", demonstrator=f"{_SUITE}.data_table:demonstrate")
register("palaestra/Service-v0", f"{_SUITE}.service_v0:ServiceV0", demonstrator=f"{_SUITE}.service_clerk:demonstrate")
register("palaestra/Service-v1", f"{_SUITE}.service:ServiceEnv", demonstrator=f"{_SUITE}.service_clerk:demonstrate")
register("palaestra/WebNav-v0", f"{_SUITE}.web_nav:WebNav", demonstrator=f"{_SUITE}.web_nav:demonstrate")
register("palaestra/WebShop-v0", f"{_SUITE}.web_shop:WebShop", demonstrator=f"{_SUITE}.web_shop:demonstrate")
register("palaestra/MiniWoB-v0", f"{_SUITE}.miniwob:MiniWoB")
register("palaestra/SearchQA-v0", f"{_SUITE}.search_qa:SearchQA", demonstrator=f"{_SUITE}.search_qa:demonstrate")
register("palaestra/LongQA-v0", f"{_SUITE}.long_qa:LongQA", demonstrator=f"{_SUITE}.long_qa:demonstrate")
register("palaestra/Research-v0", f"{_SUITE}.research:Research", demonstrator=f"{_SUITE}.research:demonstrate")
register("palaestra/Judge-v0", f"{_SUITE}.judge:JudgeEnv", demonstrator=f"{_SUITE}.judge:demonstrate")
if find_spec("tau2") is not None:  # tau2-bench, which has the tools and the tasks.
    register("palaestra/Tau2-v0", f"{_SUITE}.tau2:Tau2")
for _name, _class in (("solver_critic", "SolverCritic"), ("debate", "Debate"), ("negotiation", "Negotiation")):
    register_game(f"palaestra/{_name}_v0", f"{_SUITE}.{_name}:{_class}", demonstrator=f"{_SUITE}.{_name}:demonstrate")
for _class in ("Gem", "SkyRL", "TextArena", "OpenEnv", "Verifiers", "Inspect"):
    register_adapter(f"foreign/{_class}-v0", f"palaestra.envs.foreign.{_class.lower()}:{_class}")
for _class in ("Verifiers", "Inspect"):  # Loops of their own, which ask the model.
    register(f"foreign/{_class}-v0", f"palaestra.envs.foreign.{_class.lower()}:{_class}")
register_installed()
