"""Cold start: an agent imitates demonstrations until a gate is passed. The tiny agent starts from random weights and a
tokenizer made from the demonstrations; a pretrained model starts from its own weights.

The demonstrator has a bad habit: it uses its tool in three episodes of ten and guesses otherwise. The resulting agent
can do the task but mostly does not use the tool, so reinforcement learning has something to improve. The guessed words
stay in the loss: without them the guesses become long garbage.

Imitation stops at a gate, not at a step count. The gate is the success of episodes that used the tool (at least one
call was served), measured on training tasks that were not demonstrated. If no demonstration used a tool, it is the
success of all episodes relative to the demonstrations'. If the tiny agent does not reach the gate, a new attempt
begins with other initial weights; attempts are reported and counted. A pretrained model has one attempt. A
demonstrator is refused at once if its own success is below the gate, because imitation cannot exceed it, or if the
token limits of play would bring it below the gate.

The gate may also ask for the habit (`max_greedy_tool_share`): the greedy agent uses its tool in few of these tasks.
Where it does not, imitation continues with half of the demonstrations that use the tool. The cause is chance: of 50
demonstrations of one kind of question 26 used the tool, at a `tool_rate` of 0.3, and the agent learned that.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerBase

from palaestra import formats
from palaestra.agents import Chat, TokenLimits, play
from palaestra.agents.conversation import episode_rows
from palaestra.agents.heap import trim_heap
from palaestra.agents.local_model import LocalModel, find_device, serve
from palaestra.agents.policies.table import free_until_play, in_every_seat, trained_engines
from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer
from palaestra.episode import Episode, TokenRow
from palaestra.errors import ConfigError, TrainingHalted
from palaestra.protocols import Arena
from palaestra.registry import Demonstrator, demonstrators, format_read
from palaestra.trainers.audit.tokens import spans
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.sections_config import ColdStartConfig
from palaestra.trainers.config.sft_config import SFTConfig, tiny_sft_config
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.run.progress import OnProgress, Progress, ignore
from palaestra.trainers.samplers.seats import check_seats, seated, seats_of
from palaestra.trainers.samplers.task_of_group import counts_in
from palaestra.trainers.setup.demonstration_split import Division, demonstrate, starts_of
from palaestra.trainers.setup.imitation_gate import (
    GateMeasure,
    GateScore,
    Rows,
    gate_measure,
    halve_tool_use,
    used_tool,
    why_halted,
)
from palaestra.trainers.setup.open_run import limits, open_arena
from palaestra.trainers.validation import changed

_TINY_DEMONSTRATIONS = 6000
_MOST_TIMES = 8
"""Largest factor on demonstrations and steps for a mixture, relative to one environment."""


@dataclass(frozen=True, slots=True)
class Pupil:
    """Result of a cold start: the agent that has imitated, and how it was made."""

    local: LocalModel
    attempts: int
    """Number of initial weights that were tried; 1 if the first passed, or for a pretrained model."""
    steps: int
    """Number of imitation steps of the weights that passed."""
    demonstrations: Sequence[Episode]


def cold_started(config: GRPOConfig, model: LocalModel | None = None, on_progress: OnProgress = ignore) -> Pupil:
    """Train the agent of a run on demonstrations of the run's environment: `model`, or a new tiny agent."""
    with closing(open_arena(config)) as practice:
        check_seats(practice, config.env.train_seats)
        return cold_start(
            practice,
            demonstrators(config.env.env_id),
            seed=config.seed,
            limits=limits(config),
            slots=config.play.slots,
            device_name=config.device,
            config=config.cold_start,
            sft=None if model is None else _imitation_of_pretrained(config),
            format=format_read(config.env.env_id, config.env.options),
            model=model,
            on_progress=on_progress,
        )


def cold_start(
    arena: Arena,
    demonstrator: Demonstrator | Mapping[str, Demonstrator],
    *,
    seed: int,
    limits: TokenLimits,
    slots: int = 96,
    device_name: str = "auto",
    config: ColdStartConfig | None = None,
    sft: SFTConfig | None = None,
    format: str = formats.DEFAULT,
    model: LocalModel | None = None,
    on_progress: OnProgress = ignore,
) -> Pupil:
    """Train `model`, or a new tiny agent, on demonstrations played in `arena`.

    The agent learns to write calls in `format`, which the arena must read. In a mixture each environment has its own
    demonstrator and a share of the demonstrations. The number of demonstrations and the limit on imitation steps are
    multiplied, at most by 8, so that the rarest environment is demonstrated as often as if it were the only one. The
    gate must be passed in each environment.
    """
    config, (_, counts) = config or ColdStartConfig(), counts_in(arena, 0)
    rarest = min(counts_in(arena, 1000)[0].values())
    times = min(_MOST_TIMES, 1000 // max(1, rarest))
    total = (config.demonstrations or _TINY_DEMONSTRATIONS) * times
    config = replace(config, demonstrations=total, imitation_steps=config.imitation_steps * times)
    demonstrations = demonstrate(arena, demonstrator, total, config.tool_rate, seed, format, on_progress=on_progress)
    for count in counts.values():
        if model is None and (warning := Division(count).warning):
            on_progress(Progress("demonstrations", len(demonstrations), total, note=warning))
    measure = gate_measure(demonstrations, config)
    if model is None:
        tokenizer = tiny_tokenizer(m["content"] for e in demonstrations for m in e.attempt.messages)
        chat, agents = Chat(tokenizer), _tiny_agents(tokenizer, config, find_device(device_name), slots, seed)
    else:
        chat, agents = model.agent.chat or Chat(model.tokenizer), iter([model])
    rows_of = [episode_rows(chat, episode) for episode in demonstrations]
    if note := _too_long(demonstrations, rows_of, limits, measure, config.imitation_gate):
        on_progress(Progress("demonstrations", len(demonstrations), total, note=note))
    pairs = list(zip(demonstrations, rows_of, strict=True))
    attempts = config.max_attempts if model is None else 1
    best = GateScore()
    for attempt, local in enumerate(agents):
        settings = replace(sft or tiny_sft_config(batch_rows=config.imitation_batch_rows), seed=seed)
        steps, score = _imitate(local, pairs, arena, limits, config, settings, measure, on_progress)
        trim_heap()  # The gradients and moments of all weights were freed.
        if score.passes(config):
            return Pupil(local, attempt + 1, steps, demonstrations)
        best = max(best, score, key=lambda one: one.reached)
        note = (
            f"stuck at {score.reached:.2f} {measure.name}{score.habit} after {steps} steps (gate "
            f"{config.imitation_gate}); attempt {attempt + 1} of {attempts} is given up"
        )
        on_progress(Progress("imitation", steps, config.imitation_steps, note=note))
    task_count = len({episode.start.key[:2] for episode in demonstrations})
    raise TrainingHalted(why_halted(best, measure, config, attempts, task_count))


def _tiny_agents(
    tokenizer: PreTrainedTokenizerBase, config: ColdStartConfig, device: torch.device, slots: int, seed: int
) -> Iterator[LocalModel]:
    """Yield tiny agents with different random weights, one for each attempt."""
    for attempt in range(config.max_attempts):
        weights = tiny_model(len(tokenizer), layers=config.layers, seed=seed * config.max_attempts + attempt)
        yield serve(weights.to(device), tokenizer, slots=slots, seed=seed)


def _imitation_of_pretrained(config: GRPOConfig) -> SFTConfig:
    """Return the settings with which a pretrained model imitates before a run."""
    settings = {
        "batch_rows": config.cold_start.imitation_batch_rows,
        "learning_rate": config.cold_start.imitation_learning_rate,
        "micro_batch_tokens": config.optimizer.micro_batch_tokens,
    }
    # An adapter is added after imitation, which trains all weights.
    scale = replace(config.scale, lora_r=0)
    return changed(SFTConfig(model=config.model, device=config.device, scale=scale), settings)


def _too_long(
    demonstrations: Sequence[Episode],
    rows_of: Sequence[Sequence[TokenRow]],
    limits: TokenLimits,
    measure: GateMeasure,
    gate: float,
) -> str:
    """Return a note on demonstrations that exceed the token limits of play; "" if all fit.

    Raise `ConfigError` if so many are too long that an agent which imitates them perfectly would not pass the gate.
    """
    turns = [[end - begin for row in rows for begin, end in spans(row.sampled)] for rows in rows_of]
    sizes = [
        (max(map(len, rows), default=0), max(turn_sizes, default=0))
        for rows, turn_sizes in zip(rows_of, turns, strict=True)
    ]
    caps = limits.max_episode_tokens, limits.max_turn_tokens
    fits = [row <= caps[0] and turn <= caps[1] for row, turn in sizes]
    if all(fits):
        return ""
    row, turn = map(max, zip(*sizes, strict=True))
    text = (
        f"{1 - sum(fits) / len(fits):.0%} of the demonstrations are longer than what may be played: the longest row "
        f"has {row} tokens and the longest turn {turn}; set --play.max-episode-tokens, which is {caps[0]}, to "
        f"{max(row, caps[0])} or more, and --play.max-turn-tokens, which is {caps[1]}, to {max(turn, caps[1])} or more"
    )
    limited = [
        replace(episode, parts={"success": episode.parts["success"] * fit})
        for episode, fit in zip(demonstrations, fits, strict=True)
    ]
    if measure.of(limited) < gate:
        raise ConfigError(f"the agent cannot learn from the demonstrations: {text}")
    return text


def _imitate(
    local: LocalModel,
    demonstrations: Sequence[tuple[Episode, Rows]],
    arena: Arena,
    limits: TokenLimits,
    config: ColdStartConfig,
    sft: SFTConfig,
    measure: GateMeasure,
    on_progress: OnProgress,
) -> tuple[int, GateScore]:
    """Imitate until the gate is passed, then decay the learning rate. Return the steps taken and the last score."""
    learner, score = Learner(local.agent, local.model, sft), GateScore()
    imitation = Imitation(learner, [row for _, rows in demonstrations for row in rows])
    first = min(config.first_gate, config.imitation_steps)

    def restore_habit() -> None:
        nonlocal demonstrations, imitation
        if learner.step >= config.imitation_steps:  # Nothing is imitated after this; the caller reports the habit.
            return
        demonstrations = halve_tool_use(demonstrations)
        imitation = Imitation(learner, [row for _, rows in demonstrations for row in rows])
        count = sum(used_tool(episode) for episode, _ in demonstrations)
        note = f"the agent has {score.reached:.2f} {measure.name}{score.habit}: {count} of {len(demonstrations)} "
        note += "demonstrations use it from now on"
        on_progress(Progress("imitation", learner.step, config.imitation_steps, note=note))

    def step(rate: float = 1.0) -> float:
        figures = imitation.step(rate * min(1.0, (learner.step + 1) / config.imitation_warmup))
        learner.require_gradients()
        return figures["loss"]

    while learner.step < config.imitation_steps:
        metrics = {"loss": step()}
        if learner.step >= first and learner.step % config.gate_every == 0:
            score = _score(local, arena, limits, measure, config)
            metrics |= score.metrics(measure)
            if score.lost_habit:
                restore_habit()
        # The total assumes the earliest end: the next gate, and the decay after it.
        gate = max(first, -(-learner.step // config.gate_every) * config.gate_every)
        on_progress(Progress("imitation", learner.step, gate + config.imitation_decay, metrics))
        if not score.passes(config):
            continue
        for left in reversed(range(config.imitation_decay)):
            loss = step(rate=left / config.imitation_decay)
            on_progress(Progress("imitation", learner.step, learner.step + left, {"loss": loss}))
        # The result is the model after the decay, so it must pass too. A lost habit alone may come back.
        score = _score(local, arena, limits, measure, config)
        if not score.lost_habit:
            break
        restore_habit()
    return learner.step, score


def _score(
    local: LocalModel, arena: Arena, limits: TokenLimits, measure: GateMeasure, config: ColdStartConfig
) -> GateScore:
    """Return what the present model reaches; its greedy tool use only where that decides."""
    reached, limit = _reached(local, arena, limits, measure, config.gate_episodes), config.max_greedy_tool_share
    if reached < config.imitation_gate or limit is None:
        return GateScore(reached)
    share = measure.tool_share(_played(local, arena, limits, config.gate_episodes, greedy=True))
    return GateScore(reached, share, lost_habit=share > limit)


def _reached(local: LocalModel, arena: Arena, limits: TokenLimits, measure: GateMeasure, episodes: int) -> float:
    """Let the present model play tasks that were not demonstrated, and return the gate's measure."""
    return measure.of(_played(local, arena, limits, episodes))


def _played(
    local: LocalModel, arena: Arena, limits: TokenLimits, episodes: int, greedy: bool = False
) -> Sequence[Episode]:
    """Return the present model's episodes of tasks that were not demonstrated."""
    trim_heap()  # Gradients and activations were freed, and play needs other sizes.
    for engine in trained_engines(local.agent):
        engine.update_weights(local.model.named_parameters(), version=0)
    table, (_, counts) = seats_of(arena), counts_in(arena, 0)
    games = max(1, episodes // max(1, len(table)))
    starts = (
        replace(start, greedy=greedy) for start in starts_of(arena, dict.fromkeys(counts, games), Division.kept_back)
    )
    finished = list(play(in_every_seat(local.agent, table), arena, seated(starts, table), limits=limits))
    free_until_play(local.agent)  # Imitation needs the memory.
    return finished
