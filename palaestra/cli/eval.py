"""`palaestra eval ID --model FOLDER`: how good is an agent on tasks it was not trained on?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from palaestra.cli.display import table
from palaestra.cli.ids import resolve
from palaestra.errors import UsageError
from palaestra.registry import arena, demonstrator


@dataclass(frozen=True)
class Options:
    """Measure an agent on held-out tasks."""

    env_id: Annotated[str, tyro.conf.Positional]
    """Environment, by id."""
    model: str = "demonstrator"
    """A model's folder or hub name (a run's is RUN/model), or `demonstrator` for the environment's own script."""
    tasks: int = 256
    """Held-out tasks."""
    samples: int = 1
    """Episodes a task: the k of avg@k."""
    temperature: float = 1.0
    """Of sampling; 0 is greedy."""
    split: Literal["train", "eval"] = "eval"
    """Which tasks."""
    slots: int = 96
    """Episodes played at once."""
    max_turn_tokens: int = 4096
    """A turn that is cut here ends its episode."""
    max_episode_tokens: int = 23_040
    """Longest row: prompt, tool results and what the agent says."""
    seed: int = 0
    """Decides the sampling noise."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`."""
    json: Path | None = None
    """Write the figures here too."""

    def __post_init__(self) -> None:
        if min(self.tasks, self.samples, self.slots) < 1 or not self.temperature >= 0 or self.seed < 0:
            raise UsageError("tasks, samples and slots must be at least 1, and temperature and seed at least 0")


def run(arguments: Sequence[str]) -> int:
    """Print the figures."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra eval")
    env_id = resolve(options.env_id)
    from palaestra.agents import Agent, Limits, ScriptedPolicy
    from palaestra.trainers.evaluate import evaluate

    if options.model == "demonstrator":
        agent = Agent(ScriptedPolicy(demonstrator(env_id), options.seed))
    else:
        from palaestra.agents.local_model import load

        agent = load(options.model, slots=options.slots, seed=options.seed, device=options.device).agent
    held_out = arena(env_id, min(options.slots, options.tasks * options.samples), split=options.split)
    report, episodes = evaluate(
        agent,
        held_out,
        tasks=options.tasks,
        samples=options.samples,
        temperature=options.temperature,
        limits=Limits(options.max_turn_tokens, options.max_episode_tokens),
        seed=options.seed,
    )
    held_out.close()
    faults = [episode.fault for episode in episodes if episode.fault]
    figures = report.as_dict()
    rows = {
        name: (f"{value:.3f}" if isinstance(value, float) else str(value),)
        for name, value in figures.items()
        if name != "endings"
    }
    rows |= {f"ended {name}": (str(count),) for name, count in report.endings.items()}
    Console().print(table(f"{options.model} in {env_id.rpartition(':')[2]}, avg@{options.samples}", rows, ("",)))
    if faults:
        Console().print(f"{len(faults)} episodes broke; the last: {faults[-1]}", markup=False, highlight=False)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0
