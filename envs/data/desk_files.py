"""Tasks of service desks in the columns of tau-bench and tau2-bench: what the user wants, right actions, texts to say.

    tau-bench     instruction, actions: [{name, kwargs}], outputs: [text]
    tau2-bench    user_scenario: {persona, instructions}, evaluation_criteria: {actions, communicate_info, reward_basis}

Left out: the tools that the actions name, and assertions in words, which only a model could judge.
"""

from collections.abc import Mapping
from typing import Any

from palaestra.envs.data.rows import describe

BASIS = ("DB", "COMMUNICATE")
"""What a reward is based on where a task does not say it: the final database, and what was said to the user."""
_PARTS = {
    "reason_for_call": "Your reason to call",
    "known_info": "You know",
    "unknown_info": "You do not know",
    "task_instructions": "How you behave",
}
"""Parts of tau2-bench's instructions, with the words before them."""


def holds_desk_tasks(columns: Mapping[str, Any]) -> bool:
    """Return whether a row has the columns of tau-bench or of tau2-bench."""
    return {"instruction", "actions"} <= columns.keys() or "user_scenario" in columns


def desk_data(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a task: `instructions`, `actions`, `outputs` and `basis`. Raise ValueError for a wrong row."""
    if "user_scenario" in columns:
        scenario, criteria = columns["user_scenario"], columns.get("evaluation_criteria") or {}
        if not isinstance(scenario, Mapping) or not isinstance(criteria, Mapping):
            raise ValueError("has no objects in 'user_scenario' and 'evaluation_criteria'")
        column, instructions = "user_scenario", _instructions(scenario)
        actions, outputs = criteria.get("actions") or [], criteria.get("communicate_info") or []
        basis = criteria.get("reward_basis") or list(BASIS)
        if not criteria.get("nl_assertions") and isinstance(basis, list):  # Nothing is asserted in words.
            basis = [name for name in basis if name != "NL_ASSERTION"]
    else:
        column, instructions = "instruction", columns.get("instruction")
        actions, outputs, basis = columns.get("actions"), columns.get("outputs") or [], list(BASIS)
    if not isinstance(instructions, str) or not instructions.strip():
        raise ValueError(f"has {describe(instructions)} in {column!r}; expected what the user is told")
    if not isinstance(actions, list):
        raise ValueError(f"has {describe(actions)} in 'actions'; expected a list of objects with name and arguments")
    for name, texts in (("the texts that are to be said", outputs), ("'reward_basis'", basis)):
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"has {describe(texts)} as {name}; expected a list of texts")
    read = [_action(cell) for cell in actions]
    return {"instructions": instructions.strip(), "actions": read, "outputs": outputs, "basis": basis}


def _instructions(scenario: Mapping[str, Any]) -> Any:
    """Return persona and instructions of a tau2-bench user as one text; None if there are no instructions."""
    instructions = scenario.get("instructions")
    if isinstance(instructions, Mapping):
        parts = [f"{words}:\n{instructions[name]}" for name, words in _PARTS.items() if instructions.get(name)]
        instructions = "\n\n".join(parts)
    persona = scenario.get("persona")
    return f"{persona}\n\n{instructions}" if persona and isinstance(instructions, str) else instructions


def _action(cell: Any) -> dict[str, Any]:
    if not isinstance(cell, Mapping):
        raise ValueError(f"has {describe(cell)} among its actions; expected an object with name and arguments")
    name, arguments = cell.get("name"), cell.get("arguments", cell.get("kwargs", {}))
    if not isinstance(name, str) or not name:
        raise ValueError(f"has {describe(name)} as the name of an action; expected that of a tool")
    if not isinstance(arguments, dict):
        raise ValueError(f"has {describe(arguments)} as arguments of {name}; expected an object")
    return {
        "name": name,
        "arguments": arguments,
        "compare": cell.get("compare_args"),
        "by": cell.get("requestor", "assistant"),
    }
