"""Compare the forecast of `palaestra plan` with short runs on CPUs: `make bench-plan`

The settings are one and two processes, tools of 0 and 50 ms, play in turns and ahead, and 8 to 128 slots. The seconds
of the parts (a decode pass, a row, a turn, an update) are fitted to the runs with the fewest and the most slots; the
runs between are predicted. If play and learning compute at the same time, they share two cores, so all parts are slower
by a factor, which is fitted too. The time of a setting is the median of its runs, and that of a run the mean of an even
number of steps, because with one batch ahead a long step often follows a short one.

Exit status 1 when fewer than ten settings are within 15 %.
"""

import json
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from on_plan.runs import GENERATIONS, PROMPTS, Setting, measure, settings, trained
from peers.findings import Report, target

from palaestra.trainers.plan.step_simulation import Costs, ServingLayout, StepSimulation
from palaestra.trainers.plan.workload import PlannedEpisode, PlannedTurn

WITHIN, LEAST = 0.15, 10
FITTED, PREDICTED = (8, 128), (16, 64)
"""Numbers of slots of the fitted runs, and of the predicted ones."""
FACTORS = (4.0, 2.0, 2.0, 2.0, 1.4, 1.4, 1.2, 1.2, 1.1, 1.1, 1.05, 1.05)


@dataclass(frozen=True)
class Options:
    """Measure some settings and predict others."""

    minutes: float = 15
    """Minutes of measurement; the settings are repeated until then."""
    measured: Path | None = None
    """File of an earlier measurement to use instead of a new one."""
    targets: bool = True
    """Exit with status 1 if the target is missed."""
    out: Path = Path(__file__).parent / "results" / "plan.json"
    """File for the figures."""


@dataclass(frozen=True)
class Machine:
    """The fitted values."""

    decode_pass: float = 2e-3
    decode_row: float = 1e-5
    read_token: float = 1e-6
    turn: float = 2e-4
    latency: float = 1e-3
    publish: float = 1e-2
    crowded: float = 1.2
    """Factor of all parts if play and learning compute at the same time."""

    def costs(self, learn_token: float, *, crowded: bool) -> Costs:
        """Return the costs for the simulation. The tiny agent's cache is so small that its length has no effect."""
        slower = self.crowded if crowded else 1.0
        return Costs(
            decode_pass=self.decode_pass * slower,
            decode_row=self.decode_row * slower,
            decode_context=0.0,
            read_token=self.read_token * slower,
            turn=self.turn * slower,
            latency=self.latency,
            learn_step=0.0,
            learn_token=learn_token * slower,
            publish=self.publish * slower,
        )


@dataclass(frozen=True)
class Runs:
    """The measurements."""

    seconds: dict[Setting, float]
    """Seconds of a step by setting."""
    learn_token: float
    """Seconds of learning per token, sampled or not, as measured in turns."""
    episodes: list[PlannedEpisode]

    def forecast(self, machine: Machine, setting: Setting) -> float:
        """Return the simulated seconds of a step."""
        wait = setting.tool_ms / 1000
        played = [
            PlannedEpisode(one.prompt, (*(replace(turn, tool_seconds=wait) for turn in one.turns[:-1]), one.turns[-1]))
            for one in self.episodes
        ]
        layout = ServingLayout(
            1, setting.slots, PROMPTS * GENERATIONS, GENERATIONS, setting.ahead, own_process=setting.processes == 2
        )
        costs = machine.costs(self.learn_token, crowded=setting.ahead > 0)
        return StepSimulation(costs, layout, played).forecast(steps=4).seconds

    def fitted(self, chosen: Sequence[Setting]) -> Machine:
        """Return the values with the smallest sum of squared logarithms. Each is changed in turn, by smaller and
        smaller factors.
        """

        def lost(tried: Machine) -> float:
            return sum(math.log(self.forecast(tried, one) / self.seconds[one]) ** 2 for one in chosen)

        machine = Machine()
        least = lost(machine)
        for factor in FACTORS:
            for part in fields(Machine):
                for times in (factor, 1 / factor):
                    tried = replace(machine, **{part.name: getattr(machine, part.name) * times})
                    if (loss := lost(tried)) < least:
                        machine, least = tried, loss
        return machine


def recorded(options: Options) -> tuple[list[dict[str, Any]], list[PlannedEpisode]]:
    """Return the rows of runs and their episodes, from a file or a new measurement."""
    if options.measured is not None:
        saved = json.loads(options.measured.read_text())
        turns = [(prompt, [PlannedTurn(*turn) for turn in turns]) for prompt, turns in saved["episodes"]]
        return saved["rows"], [PlannedEpisode(prompt, tuple(some)) for prompt, some in turns]
    rows, episodes = [], list[PlannedEpisode]()
    with tempfile.TemporaryDirectory() as folder:
        model = trained(Path(folder) / "model")
        for row, played in measure(settings((*FITTED, *PREDICTED)), model, options.minutes):
            rows.append(row)
            episodes = episodes or played  # All runs play the same.
    return rows, episodes


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, fit and predict; print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    torch.set_num_threads(1)
    report = Report(options)
    rows, episodes = recorded(options)
    steps, of_runs = (defaultdict[Setting, list[float]](list) for _ in range(2))
    learned = list[float]()
    tokens = PROMPTS * GENERATIONS * statistics.mean(one.computed(GENERATIONS) for one in episodes)
    for row in rows:
        setting = Setting(row["processes"], row["tool_ms"], row["ahead"], row["slots"])
        steps[setting] += row["step"]
        of_runs[setting].append(statistics.mean(row["step"][len(row["step"]) % 2 :]))
        if not setting.ahead:
            learned += [seconds / tokens for seconds in row["learn"]]
    medians = {setting: statistics.median(seconds) for setting, seconds in of_runs.items()}
    runs = Runs(medians, statistics.median(learned), episodes)
    machine = runs.fitted([setting for setting in medians if setting.slots in FITTED])
    lines, close, predicted = [], 0, 0
    for setting, seconds in medians.items():
        forecast, way = runs.forecast(machine, setting), "fitted" if setting.slots in FITTED else "predicted"
        low, _, high = statistics.quantiles(steps[setting], n=4)
        off = forecast / seconds - 1
        predicted += way == "predicted"
        close += way == "predicted" and abs(off) <= WITHIN
        print(f"{setting!s:<38} {seconds:6.3f} s ({low:.2f} to {high:.2f}), {way:<9} {forecast:6.3f} s, {off:+.0%}")
        lines.append({"setting": str(setting), "measured": seconds, "quarters": (low, high), way: forecast, "off": off})
    targets = [target(f"predicted settings, of {predicted}, within {WITHIN:.0%}", close, least=LEAST)]
    kept = [
        [one.prompt, [[turn.sampled, turn.tool_seconds, turn.tool_tokens] for turn in one.turns]] for one in episodes
    ]
    return report.conclude({"settings": lines, "machine": asdict(machine), "rows": rows, "episodes": kept}, targets)


if __name__ == "__main__":
    sys.exit(main())
