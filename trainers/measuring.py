"""How good a run's agent is on held-out tasks, before its training and after it, and what is kept of that."""

from palaestra.agents import Agent
from palaestra.errors import UsageError
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.evaluate import Both, Report, evaluate
from palaestra.trainers.learner import Learner
from palaestra.trainers.opening import limits, open_arena
from palaestra.trainers.run import Run


def measure(run: Run, config: GRPOConfig, agent: Agent, when: str) -> Both:
    """Measure an agent on held-out tasks `before` or `after` a run's training, and keep the sampled episodes."""
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
    if learner.step:
        run.notes.append("before.json is gone, and the agent is no longer as it was before the first step")
        return None
    return measure(run, learner.config, learner.agent, "before")


def recalled(figures: dict[str, dict[str, object]]) -> Both:
    """What was measured, from its figures; the episodes are gone."""
    return Both(Report(**figures["sampled"]), Report(**figures["greedy"]), (), ())  # type: ignore[arg-type]


def evaluate_both(agent: Agent, config: GRPOConfig) -> Both:
    """Measure an agent on the evaluation split."""
    held_out = open_arena(config, "eval")
    try:
        (sampled, episodes), (greedy, played) = (
            evaluate(
                agent,
                held_out,
                tasks=config.eval_tasks,
                temperature=temperature,
                limits=limits(config),
                seed=config.seed,
                seats=config.env.train_seats,
            )
            for temperature in (config.play.temperature, 0.0)
        )
    finally:
        held_out.close()
    return Both(sampled, greedy, episodes, played)
