"""How good a run's agent is on held-out tasks: before its training, after it, and every so many steps on the way.

On the way the best model is kept, and a run that no longer improves ends. Better means: more success, sampled as in
training, on the same tasks with the same noise. All that this depends on is in the run's folder, so a run that goes on
measures and ends as if it had never stopped. Left out: the figures (`evaluate`).
"""

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from palaestra.agents import Agent
from palaestra.agents.local_model import export
from palaestra.errors import UsageError
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.durable import whole_folder, write_text
from palaestra.trainers.evaluate import Both, Report, evaluate, evaluation
from palaestra.trainers.interrupts import Interrupts
from palaestra.trainers.learner import Learner
from palaestra.trainers.opening import limits, open_arena
from palaestra.trainers.progress import Progress
from palaestra.trainers.run import Run
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.scale.shards import whole_model

STAGE = "held-out"
"""The Progress of a measurement on the way."""


def measure(run: Run, config: GRPOConfig, agent: Agent, when: str) -> Both | None:
    """Measure an agent on held-out tasks `before` or `after` a run's training, and keep the sampled episodes."""
    if not config.eval_tasks:
        return None
    both = evaluate_both(agent, config)
    run.keep(f"eval-{when}", [(episode, ()) for episode in both.sampled_episodes], "eval")
    if when == "before":
        run.add_before(both.figures())
    return both


def measure_before(run: Run, learner: Learner[GRPOConfig]) -> Both | None:
    """How good the learner of a run is before the first step, measured once; None where that was missed."""
    if run.before is not None:
        try:
            return recalled(run.before)
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{run.folder / 'before.json'} does not hold the figures that were written ({error}); remove it to go "
                "on without them"
            ) from error
    if learner.step and learner.config.eval_tasks:
        run.notes.append("before.json is gone, and the agent is no longer as it was before the first step")
        return None
    return measure(run, learner.config, learner.agent, "before")


def measure_after(run: Run, learner: Learner[GRPOConfig]) -> Both | None:
    """How good the learner of a run is after its last step, which is a measurement like those on the way."""
    after = measure(run, learner.config, learner.agent, "after")
    if after is not None and learner.config.eval.eval_steps and not _is_measured(run, learner.step):
        _write_down(run, learner, after.sampled)
    return after


def measured_on_the_way(
    run: Run, learner: Learner[GRPOConfig], steps: Generator[Progress, None, None], interrupts: Interrupts
) -> Generator[Progress, None, None]:
    """Let a run take its steps, and measure it between them; ends them when it no longer improves.

    An interrupt is obeyed at once while it is measured: the step before it is saved. The last step is left to
    `measure_after`.
    """
    with closing(steps):
        if _due(run, learner):
            learner.publish()
            yield from _measured(run, learner, interrupts)
        while not has_stopped_improving(run):
            progress = next(steps, None)
            if progress is None:
                return
            yield progress
            if _due(run, learner):
                yield from _measured(run, learner, interrupts)
        best, patience = run.best or {}, learner.config.eval.early_stopping_patience
        note = (
            f"the last {patience} measurements had no more success than step {best['step']}, {_words(best)}: the run "
            f"ends early, after step {learner.step}"
        )
        yield Progress(STAGE, learner.step, learner.steps, note=note)


def has_stopped_improving(run: Run) -> bool:
    """Whether so many measurements as the config allows came after the best one."""
    config, best = run.config, run.best
    if not isinstance(config, GRPOConfig) or config.eval.early_stopping_patience is None or best is None:
        return False
    later = [line for line in run.measured if line["step"] > best["step"]]
    return len(later) >= config.eval.early_stopping_patience


def told_best(run: Run) -> dict[str, Any]:
    """What a summary says of the measurements on the way; nothing where there were none."""
    best = run.best
    if best is None:
        return {}
    figures, taken = {name: best[name] for name in ("step", "success", "low", "high")}, run.metrics[-1]["step"]
    return {"best": figures, "steps_taken": taken, "stopped_early": has_stopped_improving(run)}


def recalled(figures: dict[str, dict[str, object]]) -> Both:
    """What was measured, from its figures; the episodes are gone."""
    return Both(Report(**figures["sampled"]), Report(**figures["greedy"]), (), ())  # type: ignore[arg-type]


def evaluate_both(agent: Agent, config: GRPOConfig) -> Both:
    """Measure an agent on the evaluation split."""
    with closing(open_arena(config, "eval")) as held_out:
        (sampled, episodes), (greedy, played) = (
            evaluate(agent, held_out, temperature=temperature, **_how(config))
            for temperature in (config.play.temperature, 0.0)
        )
    return Both(sampled, greedy, episodes, played)


def _how(config: GRPOConfig) -> dict[str, Any]:
    seats = config.env.train_seats
    return {"tasks": config.eval_tasks, "limits": limits(config), "seed": config.seed, "seats": seats, "ranks": here()}


def _due(run: Run, learner: Learner[GRPOConfig]) -> bool:
    every = learner.config.eval.eval_steps
    if every is None or not 0 < learner.step < learner.steps or learner.step % every:
        return False
    return not _is_measured(run, learner.step)


def _is_measured(run: Run, step: int) -> bool:
    # Of several ranks the first says it, for it may have written the line before another looks.
    return here().told(lambda: any(line["step"] == step for line in run.measured))


def _measured(run: Run, learner: Learner[GRPOConfig], interrupts: Interrupts) -> Generator[Progress, None, None]:
    """Measure the learner as it is, and write that down."""
    config = learner.config
    with interrupts.held(lambda: False), closing(open_arena(config, "eval")) as held_out:
        interrupts.check()
        stage = evaluation(learner.agent, held_out, temperature=config.play.temperature, stage=STAGE, **_how(config))
        with closing(stage):
            report, _ = yield from stage
    # The engine keeps what it has read: a run that goes on from this step has an engine that has read nothing.
    learner.publish()
    _write_down(run, learner, report)
    now, best = report.as_dict(), run.best
    beside = "the best so far" if best and best["step"] == learner.step else f"the best is {_words(best)}"
    note = f"success on {report.tasks} held-out tasks {_words(now)} after step {learner.step}; {beside}"
    yield Progress(STAGE, learner.step, learner.steps, note=note)


def _write_down(run: Run, learner: Learner[GRPOConfig], report: Report) -> None:
    """Keep the model if it is the best, then add the line: a measurement that is written down is dealt with."""
    line, best, ranks = {"step": learner.step, **report.as_dict()}, run.best, learner.ranks
    scored = sum(report.endings.values()) > report.broken
    if ranks.told(lambda: scored and (best is None or report.success > best["success"])):
        model = whole_model(learner.model, ranks)
        if run.writes:
            with whole_folder(run.folder / "best") as folder:
                export(model, learner.tokenizer, folder)
                write_text(folder / "measured.json", json.dumps(line, indent=2) + "\n")
    run.add_measured(line)
    ranks.meet()  # What was written decides for all whether the run goes on.


def _words(line: Mapping[str, Any] | None) -> str:
    """Success with its 95 % interval."""
    return f"{line['success']:.3f} [{line['low']:.2f}, {line['high']:.2f}]" if line else "nothing: every episode broke"
