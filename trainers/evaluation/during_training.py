"""Evaluate a run's agent on held-out tasks: before training, after it, and at intervals during it.

The best model is kept, and a run that no longer improves ends early. A model is better if it has more success, sampled
as in training, on the same tasks with the same seeds. All state is in the run's folder, so a resumed run evaluates and
ends as if it had never stopped. Not in this module: the metrics (`evaluate`).
"""

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from palaestra.agents import Agent
from palaestra.agents.model_folder import export
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.trainers.audit.solved import Solved
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.evaluation.evaluate import Both, Report, evaluate
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.run.atomic_files import whole_folder, write_text
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.progress import OnProgress, Progress
from palaestra.trainers.scale.fsdp import whole_model
from palaestra.trainers.scale.ranks import ALONE, Ranks, here
from palaestra.trainers.setup.open_run import limits, open_arena

STAGE = "held-out"
"""Stage name in the Progress of an evaluation during the run."""


def measure(run: Run, config: GRPOConfig, agent: Agent, when: str) -> Both | None:
    """Evaluate an agent and save the sampled episodes as `eval-WHEN`. Return None if no tasks are held out."""
    if not config.eval_tasks:
        return None
    both = evaluate_both(agent, config)
    run.keep(f"eval-{when}", [(episode, ()) for episode in both.sampled_episodes], "eval")
    if when == "before":
        run.add_before(both.figures())
    return both


def measure_before(run: Run, learner: Learner[GRPOConfig]) -> Both | None:
    """Return the evaluation before the first step, from the run's folder or measured now. Return None if the config has
    no held-out tasks, or if the first step is already taken and the folder does not have the evaluation.
    """
    if run.before is not None:
        try:
            return recalled(run.before)
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{run.folder / 'before.json'} does not hold the figures that were written ({error}); remove it to go "
                "on without them"
            ) from error
    if learner.step and _config(run).eval_tasks:
        run.notes.append("before.json is gone, and the agent is no longer as it was before the first step")
        return None
    if _config(run).eval_tasks:
        learner.publish()  # An engine of several ranks has no weights before.
    return measure(run, _config(run), learner.agent, "before")


def measure_after(run: Run, learner: Learner[GRPOConfig]) -> Both | None:
    """Evaluate the learner after the last step. If the run has evaluations during training, add this one to them."""
    after = measure(run, _config(run), learner.agent, "after")
    if after is not None and _config(run).eval.eval_steps and not _is_measured(run, learner.step):
        _write_down(run, learner, after.sampled)
    return after


def evaluation_due(run: Run, learner: Learner[GRPOConfig]) -> bool:
    """Return whether the learner's last step must be evaluated and is not evaluated yet.

    For the last step of the run return False: `measure_after` evaluates that step. All ranks get the answer of the
    first rank.
    """
    every = _config(run).eval.eval_steps
    if every is None or not 0 < learner.step < learner.steps or learner.step % every:
        return False
    return not _is_measured(run, learner.step)


def measure_on_the_way(run: Run, learner: Learner[GRPOConfig], on_progress: OnProgress) -> None:
    """Evaluate the current learner on held-out tasks, log the result, and keep the model if it is the best."""
    config = _config(run)
    temperature = config.play.temperature
    ((report, _),) = _evaluated(learner.agent, config, temperature, stage=STAGE, on_progress=on_progress)
    # The engine's cache is dropped: a run that resumes from this step has an empty one.
    learner.publish()
    _write_down(run, learner, report)
    now, best = report.as_dict(), run.best
    beside = "the best so far" if best and best["step"] == learner.step else f"the best is {_words(best)}"
    note = f"success on {report.tasks} held-out tasks {_words(now)} after step {learner.step}; {beside}"
    on_progress(Progress(STAGE, learner.step, learner.steps, note=note))


def ends_early(run: Run, learner: Learner[GRPOConfig], solved: bool, on_progress: OnProgress) -> bool:
    """Return whether the run ends before its last step: solved, or no longer improving. Report the reason."""
    if solved and _config(run).eval.stop_when == "solved":
        note = f"solved: the run ends early, after step {learner.step} (--eval.stop-when solved)"
        on_progress(Progress("grpo", learner.step, learner.steps, note=note))
        return True
    if not has_stopped_improving(run):
        return False
    best, patience = run.best or {}, _config(run).eval.early_stopping_patience
    note = (
        f"the last {patience} measurements had no more success than step {best['step']}, {_words(best)}: the run "
        f"ends early, after step {learner.step}"
    )
    on_progress(Progress(STAGE, learner.step, learner.steps, note=note))
    return True


def has_stopped_improving(run: Run) -> bool:
    """Return whether the number of evaluations after the best one has reached the config's patience."""
    config, best = run.config, run.best
    if not isinstance(config, GRPOConfig) or config.eval.early_stopping_patience is None or best is None:
        return False
    later = [line for line in run.measured if line["step"] > best["step"]]
    return len(later) >= config.eval.early_stopping_patience


def evaluations_summary(run: Run) -> dict[str, Any]:
    """Return the summary of the evaluations during the run and of its early end; empty if there was neither."""
    best, metrics = run.best, run.metrics
    solved = _config(run).eval.stop_when == "solved" and Solved(metrics).now
    if best is None and not solved:
        return {}
    figures = {} if best is None else {"best": {name: best[name] for name in ("step", "success", "low", "high")}}
    stopped_early = solved or has_stopped_improving(run)
    return {**figures, "steps_taken": metrics[-1]["step"], "stopped_early": stopped_early, "solved": solved}


def recalled(figures: dict[str, dict[str, object]]) -> Both:
    """Rebuild an evaluation from saved metrics. Its lists of episodes are empty."""
    return Both(Report(**figures["sampled"]), Report(**figures["greedy"]), (), ())  # type: ignore[arg-type]


def evaluate_both(agent: Agent, config: GRPOConfig) -> Both:
    """Evaluate an agent on the evaluation split, sampled and greedy."""
    (sampled, episodes), (greedy, greedy_episodes) = _evaluated(agent, config, config.play.temperature, 0.0)
    return Both(sampled, greedy, episodes, greedy_episodes)


def _evaluated(
    agent: Agent, config: GRPOConfig, *temperatures: float, **options: Any
) -> list[tuple[Report, list[Episode]]]:
    """Evaluate an agent on the evaluation split at each temperature. Each rank plays its share, or the first rank plays
    all, and all ranks get the same result.
    """

    def played(ranks: Ranks) -> list[tuple[Report, list[Episode]]]:
        how = {"tasks": config.eval_tasks, "limits": limits(config), "seed": config.seed, "ranks": ranks, **options}
        with closing(open_arena(config, "eval")) as held_out:
            return [
                evaluate(agent, held_out, temperature=each, seats=config.env.train_seats, **how)
                for each in temperatures
            ]

    return here().broadcast(lambda: played(ALONE)) if config.first_rank_plays else played(here())


def _config(run: Run) -> GRPOConfig:
    assert isinstance(run.config, GRPOConfig), "imitation is not measured on the way"
    return run.config


def _is_measured(run: Run, step: int) -> bool:
    # The first rank decides for all, because it may have written the line before another rank looks.
    return here().broadcast(lambda: any(line["step"] == step for line in run.measured))


def _write_down(run: Run, learner: Learner[GRPOConfig], report: Report) -> None:
    """Save the model if it is the best, then log the evaluation. After a kill in between, it is repeated."""
    line, best, ranks = {"step": learner.step, **report.as_dict()}, run.best, learner.ranks
    scored = sum(report.endings.values()) > report.broken
    if ranks.broadcast(lambda: scored and (best is None or report.success > best["success"])):
        model = whole_model(learner.model, ranks)
        if run.writes:
            with whole_folder(run.folder / "best") as folder:
                export(model, learner.tokenizer, folder)
                write_text(folder / "measured.json", json.dumps(line, indent=2) + "\n")
    run.add_measured(line)
    ranks.meet()  # The files decide for all ranks whether the run continues.


def _words(line: Mapping[str, Any] | None) -> str:
    """Return success with its 95 % interval, as text."""
    return f"{line['success']:.3f} [{line['low']:.2f}, {line['high']:.2f}]" if line else "nothing: every episode broke"
