"""What the checks of environments and of games ask of one tool: is the agent told what it needs to call it?

Left out: what a decorator refuses when the class is made (`envs.core.tool`), and what a call does.
"""

from collections.abc import Mapping
from typing import Any

from palaestra.envs.checks.findings import require


def require_told(schema: Mapping[str, Any], whose: str = "") -> None:
    """The tool has a description and a name that every model can call, and says of each parameter what it takes."""
    name = schema["function"]["name"]
    tool = f"tool {name!r}{whose}"
    require(schema["function"]["description"], f"{tool} has no description; write a docstring, the agent reads it")
    require(name.isidentifier(), f"tool name {name!r}{whose} is no identifier; not every model can call it")
    for parameter, told in schema["function"]["parameters"]["properties"].items():
        require(
            set(told) - {"default"},
            f"the parameter {parameter!r} of {tool} takes anything, so the agent is told nothing of it; write a type "
            f"such as {parameter}: str, or describe it in the docstring",
        )
