"""`palaestra curate ID --model M -k 8 --out FILE.json`: a model plays tasks, and those that fit it are kept.

    play  ->  FILE.played.jsonl, one line when an episode ends  ->  pass rates  ->  FILE.json, for `train --curated`

Left out: playing (`rollouts`), and the rules (`trainers.data.curation`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import tyro

from palaestra.causes import Causes
from palaestra.cli.display import note, show_line, table
from palaestra.cli.ids import resolve
from palaestra.cli.rollouts import EpisodeCollection, RolloutOptions, run_rollouts
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.plain import from_pairs
from palaestra.trainers.data.curated import Curated
from palaestra.trainers.data.curation import OUTCOMES, curate, histogram, shares


@dataclass(frozen=True, kw_only=True)
class CurateOptions(RolloutOptions):
    """Let a model play each task several times, and keep the tasks that it solves sometimes but not always.

    The same command again plays only what is missing in FILE.played.jsonl. For a newer policy use another --out.
    """

    SUFFIX: ClassVar[str] = ".json"

    samples: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 8
    """Episodes per task: the k of the pass rate, which is a multiple of 1/k."""
    target: tuple[str, ...] = ()
    """Keep as many tasks as fit this histogram: hard=1 medium=2 easy=1, or another model's curated file, to use its
    histogram."""

    def __post_init__(self) -> None:
        super().__post_init__()
        curate((), samples=self.samples)
        if self.temperature == 0:
            raise UsageError("temperature is 0; a model that plays greedily passes a task always or never")

    def histogram(self, env_id: str) -> Mapping[str, float] | None:
        """Return the target, from its numbers or from a curated file of the same environment; None without one."""
        if len(self.target) == 1 and "=" not in self.target[0]:
            other = Curated.read(self.target[0])
            other.check_env(env_id, self.target[0])
            return histogram(other.tasks)
        if not self.target:
            return None
        weights: dict[str, Any] = from_pairs(self.target, "target")
        shares(weights)  # Raises an error if it is not a histogram.
        return weights


def run(arguments: Sequence[str]) -> int:
    """Play the missing episodes, compute pass rates, and keep the tasks that fit. Return 1 if no task was kept."""
    options = tyro.cli(CurateOptions, args=list(arguments), prog="palaestra curate")
    target = options.histogram(resolve(options.env_id))
    return run_rollouts(options, "curate", lambda rollouts: _keep_tasks(options, target, rollouts))


def _keep_tasks(options: CurateOptions, target: Mapping[str, float] | None, rollouts: EpisodeCollection) -> int:
    tokens: list[int] = []
    causes = Causes()

    def episodes() -> Iterator[Episode]:
        """Yield the episodes one by one, since a large set does not fit into memory."""
        for record in rollouts.file.every(rollouts.starts):
            tokens.append(record.episode.sampled_tokens)
            causes.add_episode(record.episode)
            yield record.episode

    rule: dict[str, Any] = {"samples": options.samples, "least_success": options.least_success, "seed": options.seed}
    curated = curate(episodes(), target=target, **rule)
    summary = {
        "model": options.agent.model,
        "weights": rollouts.file.weights,
        "options": dict(rollouts.environment),
        "temperature": options.temperature,
        **rule,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "episodes": len(tokens),
        "generated_tokens": sum(tokens),
        "spent_last": rollouts.cost,
        "target": target,
        "found": dict(curated.outcomes),
        "kept": curated.histogram,
    }
    rollouts.figures.update({"env_id": rollouts.env_id, "split": options.split, "out": str(options.out), **summary})
    kept_counts = {**dict.fromkeys(OUTCOMES, 0), **curated.histogram}
    rows = {"tasks": curated.outcomes, "kept": kept_counts}
    cells = {name: tuple(str(row[outcome]) for outcome in OUTCOMES) for name, row in rows.items()}
    rollouts.console.print(table(f"Tasks of {rollouts.env_id.rpartition(':')[2]}", cells, OUTCOMES))
    rollouts.print_causes(causes)
    if curated.outcomes["incomplete"]:
        note(f"{curated.outcomes['incomplete']} tasks have BROKEN episodes and are left out")
    if not curated.tasks:
        show_line(
            rollouts.console,
            f"no task is solved now and then, so {options.out} was not written; more -k, other tasks or another model "
            "may find some",
        )
        return 1
    Curated(rollouts.env_id, options.split, curated.tasks, summary).write(options.out)
    show_line(rollouts.console, f"{len(curated.tasks)} tasks: {options.out}; {sum(tokens):,} tokens were generated")
    rollouts.print_defects()
    return 0
