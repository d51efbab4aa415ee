"""Measure whole steps of GRPO with tools, played by a vLLM server that the run starts on the same device.

The model has random weights, so no turn ends by itself: each ends at a length that is drawn from a long-tailed
distribution.
"""

import statistics
import tempfile
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import palaestra
from on_gpu.answers import ENV_ID, WORDS, words
from on_gpu.memory import Peak, outside_of_torch
from on_gpu.settings import chosen_settings, settled
from on_gpu.shapes import Shape, Work
from palaestra import Completion, Request
from palaestra.agents.local_model import serve
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_tokenizer
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.setup.choose_engine import vllm_engine

_RESULT_TOKENS = 32
"""Maximum tokens of a tool's result with the template's text around it."""
_SPREAD = 0.8
"""Sigma of the log-normal lengths of turns."""


def engine(shape: Shape, device: torch.device, python: str) -> dict[str, Any]:
    """Run `train` itself: play with tools, learn, publish. The first step is the warm-up."""
    work = shape.work
    longest = work.prompt_tokens + work.turns * (work.turn_tokens + _RESULT_TOKENS) + _RESULT_TOKENS
    with tempfile.TemporaryDirectory() as folder:
        transfer = "ipc" if device.type == "cuda" and find_spec("vllm") else "files"
        fit = settled(
            shape,
            device,
            model=folder,
            engine={"kind": "vllm", "python": python, "transfer": transfer},
            slots=work.prompts * work.group,
            num_prompts=work.prompts,
            num_generations=work.group,
            max_turn_tokens=work.turn_tokens,
            max_episode_tokens=longest,
            steps=work.steps,
        )
        play, peak, model = fit.config.play, Peak(device), shape.build(device)
        tokenizer = tiny_tokenizer([words(1000, 0), *WORDS])
        export(model, tokenizer, Path(folder))
        local = serve(model, tokenizer, slots=play.slots, engine=partial(_ending_turns, work, fit.config))
        options = {"turns": work.turns, "prompt_tokens": work.prompt_tokens, "wait_seconds": work.wait_seconds}
        with (
            closing(local.agent.engine),
            # Rewards are drawn: any from 1 on is a success.
            closing(palaestra.arena(ENV_ID, play.slots, success_at=1, **options)) as arena,
            # No turn here ends with a stop.
            patch("palaestra.trainers.learn.online_audit.turn_findings", return_value=()),
        ):
            local.agent.engine.check(tokenizer, longest)
            found = [step.metrics for step in train_learner(Learner(local.agent, model, fit.config), arena)][1:]
            figures = _figures(found) | {"transfer": transfer, "settings": chosen_settings(fit.config)}
            if device.type == "cuda":
                figures |= {"server_bytes": outside_of_torch(device)}
                local.agent.engine.release()
                figures |= {"sleeping_server_bytes": outside_of_torch(device)}
        needed = fit.estimate
        largest = max((needed.learning, needed.stepping), key=lambda parts: sum(part.size for part in parts))
        own = [part for part in (*needed.persistent, *largest) if part.name != "GPU context"]
        return figures | peak.read(own, alone=False)


def _figures(found: list[dict[str, float]]) -> dict[str, Any]:
    names = {"step_seconds": "step_time", "play_seconds": "time/play", "learn_seconds": "time/learn"}
    figures: dict[str, Any] = {
        name: statistics.median(metrics[key] for metrics in found) for name, key in names.items()
    }
    sampled = statistics.median(metrics["num_tokens/sampled"] for metrics in found)
    return figures | {
        "turns": found[-1]["episodes/turns"],
        "sampled_tokens": sampled,
        "sampled_tokens_per_play_second": sampled / figures["play_seconds"],
        "sampled_tokens_per_second": sampled / figures["step_seconds"],
        "engine_and_trainer_differ_by": found[-1]["sampling/sampling_logp_difference/mean"],
    }


def _ending_turns(work: Work, config: Any, model: Any, stops: Any, **options: Any) -> Any:
    """Return the run's engine. A turn that reaches its drawn length ends as if the model had ended it."""
    made = vllm_engine(config, model, stops, **options)
    submit, poll = made.submit, made.poll

    def shortened(request: Request) -> int:
        rng = np.random.default_rng([request.start.task, request.start.seed, request.turn])
        drawn = round(work.median_tokens * rng.lognormal(0.0, _SPREAD))
        return submit(replace(request, max_tokens=min(request.max_tokens, max(1, drawn))))

    def ended(timeout: float = 0.0) -> list[Completion]:
        return [replace(completion, cut=False) for completion in poll(timeout)]

    made.submit, made.poll = shortened, ended  # type: ignore[method-assign]
    return made
