"""Start models: the tiny agent after imitation, one for each seed, in a folder that all arms of a comparison share.

Left out: a success that a start model must reach, since the comparisons need weak ones. Where nearly all calls shall
fail, the share of served first calls must lie within bounds; otherwise the last phase is trained again on other
demonstrations. The number of tries, and the distance of the nearest one from the bounds, are saved.
"""

import copy
import fcntl
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from critics import both_attempts
from measuring import measure

import palaestra
from palaestra.agents import TokenLimits
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import serve
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer
from palaestra.episode import Message
from palaestra.trainers.config.sft_config import tiny_sft_config
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.setup.cold_start import demonstrate

MOST_TRIES = 4


@dataclass(frozen=True)
class Phase:
    """Demonstrations in one environment, and the steps of imitation."""

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    habits: Mapping[str, Any] = field(default_factory=dict)
    """Options of the demonstrator."""
    tool_rate: float = 1.0
    episodes: int = 5000
    steps: int = 350
    """Number of steps; 0 only adds the words to the tokenizer."""
    decay: int = 150
    """Number of last steps, in which the learning rate falls to 0."""
    rates: tuple[float, float] = (4e-3, 0.03)
    """Learning rates of AdamW and of Muon."""


@dataclass(frozen=True)
class CritiquedPhase(Phase):
    """Demonstrations in Codes, each followed by a critique and a second attempt. The model imitates both attempts."""


@dataclass(frozen=True)
class StartModel:
    """The phases of imitation that make a start model."""

    phases: Sequence[Phase]
    served: tuple[float, float] | None = None
    """Bounds of the share of first calls that are served, after the last phase."""
    restarts: ClassVar[bool] = True
    """Whether a further try begins from the weights before the last phase."""


@dataclass(frozen=True)
class PatientStart(StartModel):
    """A start model whose further tries continue from the one before, until the share is that of the demonstrations."""

    restarts: ClassVar[bool] = False


def start_folder(name: str, recipe: StartModel, seed: int, root: Path) -> Path:
    """Return the folder of a start model. If there is none, train it, while other processes that need it wait."""
    folder = root / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "raised.json").is_file():
            began = time.process_time()
            content = _train(recipe, seed, folder) | {"cpu_seconds": round(time.process_time() - began, 1)}
            (folder / "raised.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def _train(recipe: StartModel, seed: int, folder: Path) -> dict[str, float]:
    """Train a start model into the folder. Return its tries and their result if its calls have bounds."""
    all_dialogues = [_demonstrations(phase, seed) for phase in recipe.phases]
    tokenizer = tiny_tokenizer(m["content"] for dialogues in all_dialogues for messages in dialogues for m in messages)
    local = serve(tiny_model(len(tokenizer), seed=seed), tokenizer, slots=96, seed=seed)
    *before, last = [
        (phase, dialogues) for phase, dialogues in zip(recipe.phases, all_dialogues, strict=True) if phase.steps
    ]
    for phase, dialogues in before:
        _imitate(local, phase, dialogues, seed)
    phase, dialogues = last
    if recipe.served is None:
        _imitate(local, phase, dialogues, seed)
        export(local.model, tokenizer, folder)
        return {}
    before_last, (least, most) = copy.deepcopy(local.model.state_dict()), recipe.served
    tries: list[tuple[float, float, dict[str, Any]]] = []
    while len(tries) < MOST_TRIES and not (tries and tries[-1][0] == 0):
        if recipe.restarts:
            local.model.load_state_dict(before_last)
        _imitate(local, phase, dialogues, seed)
        served = measure(local.agent, phase.env_id, phase.options, TokenLimits(72, 256))["served"]
        tries.append((max(least - served, served - most, 0.0), served, copy.deepcopy(local.model.state_dict())))
        dialogues = _demonstrations(phase, seed + 1000 * len(tries))
    outside, served, nearest = min(tries, key=lambda one: one[0])
    local.model.load_state_dict(nearest)
    export(local.model, tokenizer, folder)
    return {"tries": len(tries), "served": served, "outside": outside}


def _demonstrations(phase: Phase, seed: int) -> list[Sequence[Message]]:
    """Return the dialogues of the demonstrator. They include its guesses, and calls that cannot be parsed."""
    arena = palaestra.arena(phase.env_id, 96, ordered=True, **phase.options)
    demonstrator = partial(palaestra.demonstrator(phase.env_id), **phase.habits)
    episodes = demonstrate(arena, demonstrator, phase.episodes, phase.tool_rate, seed)
    if isinstance(phase, CritiquedPhase):
        dialogues = both_attempts(arena, episodes)
    else:
        dialogues = [episode.attempt.messages for episode in episodes]
    arena.close()
    return dialogues


def _imitate(local: Any, phase: Phase, dialogues: Sequence[Sequence[Message]], seed: int) -> None:
    rows = [row for messages in dialogues for row in written_rows(local.agent.chat, messages)]
    config = tiny_sft_config(seed=seed, learning_rate=phase.rates[0], matrix_learning_rate=phase.rates[1])
    learner = Learner(local.agent, local.model, config)
    imitation = Imitation(learner, rows)
    for step in range(phase.steps):
        imitation.step(min(1.0, (step + 1) / 20, (phase.steps - step) / max(1, phase.decay)))
    learner.step = 0
    with torch.no_grad():
        learner.publish()
