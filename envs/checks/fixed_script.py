"""A fixed script that calls every tool of a seat, and what each of its steps gave, for comparison.

Left out: which episodes are compared (`check`).
"""

from copy import deepcopy
from typing import Any

from palaestra.envs.checks.cheats import arguments
from palaestra.envs.checks.findings import require_same
from palaestra.envs.checks.trials import Chair, TrialRule
from palaestra.episode import Event, Task


def scripted(chair: Chair, rule: TrialRule | None, task: int, seed: int) -> dict[str, Any]:
    """Play a fixed script, in the episode that has just begun, and return its results by step: each tool, bad calls,
    and an answer; then an episode by rule, if there is one."""
    original = deepcopy(chair.spec.task(task % chair.machine.task_count))
    met: dict[str, Any] = {"the opening": list(chair.messages)}
    names = [(schema["function"]["name"], arguments(schema)) for schema in chair.schemas]
    script = {name: chair.call(name, **tool_arguments) for name, tool_arguments in names}
    script |= {
        "the turn of bad calls": chair.call("nobody") + "<tool_call>{</tool_call>",
        "the answer": original.prompt,
    }
    for name, turn_text in script.items():
        turn_count = sum(message["role"] == "assistant" for message in chair.messages)
        if not chair.machine.is_open or turn_count >= chair.max_turns - 1:
            chair.begin(task, seed)
        if chair.machine.is_open:
            met[name] = _event_summary(chair.say(turn_text))
            require_untouched(original, chair.problem)
    if rule is not None:
        event = chair.play_by(rule, task, seed)
        require_untouched(original, chair.problem)
        met |= {"the play by rule": _event_summary(event), "attempt": event.attempt}
    return met


def _event_summary(event: Event) -> dict[str, Any]:
    final = None if event.attempt is None else event.attempt.final
    return {"messages": event.messages, "parts": dict(event.parts), "ending": event.ending, "final": final}


def require_untouched(original: Task, task: Task) -> None:
    """Require that playing a task did not change it: later episodes and records hold the same object."""
    problem = "a task is changed as it is played, for later episodes and records too; copy it first"
    require_same(original.data, task.data, "Task.data", problem)
    require_same(original.answer, task.answer, "Task.answer", problem)
