"""Train a run of any kind, for both Python and the command line."""

from collections.abc import Generator

from palaestra.agents.local_model import LocalModel
from palaestra.trainers import grpo, sft
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.interrupts import Interrupts
from palaestra.trainers.run.progress import OnProgress, Progress, ignore


def train(
    run: Run,
    *,
    learner: Learner[GRPOConfig] | None = None,
    model: LocalModel | None = None,
    interrupts: Interrupts | None = None,
    on_progress: OnProgress = ignore,
) -> Generator[Progress, None, None]:
    """Train a run from its present step to its end. Yield each step before it is logged and saved; a finished run
    yields no step.

    If the caller stops early or is interrupted, a checkpoint of the last step is saved, and the same call resumes from
    it. Pass `learner` if you opened the run's learner (`open_learner`) to read or change it between two steps, and
    `model` if you have already loaded the run's model. `on_progress` gets each step, and also all other reports (notes,
    cold start, evaluation).
    """
    if isinstance(run.config, GRPOConfig):
        return grpo.train(run, learner=learner, model=model, interrupts=interrupts, on_progress=on_progress)
    return sft.train(run, interrupts=interrupts, on_progress=on_progress)
