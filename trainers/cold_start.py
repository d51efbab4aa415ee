"""From nothing to an agent that can play, badly: demonstrations, a tokenizer, a tiny model, imitation up to a gate.

The demonstrator has a bad habit: it uses its tool in three episodes of ten and guesses otherwise. What comes out
can do the task but mostly does not bother; reinforcement learning then has something to find. The guessed words stay
in the loss: without them the guesses turn into long garbage.

Imitation stops at a gate, not at a step count: success of the episodes that used the tool, which means that at least
one call was served, measured on training tasks that were not demonstrated; where no demonstration used one, success of
all episodes as a share of the demonstrations'. Initial weights that do not get there are given up and others drawn,
which is reported and counted. A demonstrator that is below the gate itself is reported at once: what it shows is all
there is to imitate. So are demonstrations that are longer than what may be played.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from palaestra import formats
from palaestra.agents import Agent, Chat, ScriptedPolicy, TokenLimits, play
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import LocalModel, find_device, serve
from palaestra.agents.policies.table import in_every_seat, trained_engines
from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer
from palaestra.episode import Episode, Start, Status, TokenRow
from palaestra.errors import TrainingHalted
from palaestra.protocols import Arena
from palaestra.registry import Demonstrator, demonstrators, format_read
from palaestra.trainers.audit.tokens import spans
from palaestra.trainers.config import ColdStartConfig, GRPOConfig
from palaestra.trainers.learner import Learner
from palaestra.trainers.opening import limits, open_arena
from palaestra.trainers.progress import Progress
from palaestra.trainers.sampling.division import Division
from palaestra.trainers.sampling.draws import counts_in
from palaestra.trainers.sampling.seats import check_seats, seated, seats_of
from palaestra.trainers.sft import Imitation
from palaestra.trainers.sft_config import SFTConfig, tiny_sft_config

_REPORTS = 50
"""How often demonstrations say how far they are."""
_MOST_TIMES = 8
"""What a mixture may ask for of demonstrations and of steps, by what one environment does."""


@dataclass(frozen=True, slots=True)
class _Measure:
    """What the gate measures: success in episodes with a served call, or success where no tool is used; of a mixture
    that of the environment where it is least.
    """

    with_tool: Mapping[str, bool]
    """By environment."""
    shown: Mapping[str, float] = field(default_factory=dict)
    """The demonstrator's success, where no tool is used. Its bad habit is in it, and who imitates it does no better."""

    @property
    def name(self) -> str:
        """As a sentence names it."""
        if any(self.with_tool.values()):
            return "success in episodes with a served call"
        return "of the demonstrator's success" if self.shown else "success"

    @property
    def metric(self) -> str:
        """As Progress names it."""
        return "success_with_tool" if any(self.with_tool.values()) else "success_of_demonstrator"

    def of(self, episodes: Sequence[Episode]) -> float:
        """Of played episodes; 0 where none counts."""
        counted: dict[str, list[float]] = {env: [] for env in self.with_tool}
        for episode in episodes:
            env = episode.start.env
            if episode.reward is not None and (_used(episode) or not self.with_tool.get(env)):
                counted.setdefault(env, []).append(episode.parts["success"])
        return min(sum(own) / max(1, len(own)) / self.shown.get(env, 1.0) for env, own in counted.items())


@dataclass(frozen=True, slots=True)
class Pupil:
    """What a cold start raises."""

    local: LocalModel
    attempts: int
    """Initial weights that were tried; 1 when the first passed."""
    steps: int
    """Imitation steps of the one that passed."""
    demonstrations: Sequence[Episode]


def raise_tiny(config: GRPOConfig) -> Generator[Progress, None, Pupil]:
    """Raise the tiny agent on the demonstrator of a run's environment."""
    with closing(open_arena(config)) as practice:
        check_seats(practice, config.env.train_seats)
        return (
            yield from cold_start(
                practice,
                demonstrators(config.env.env_id),
                seed=config.seed,
                limits=limits(config),
                slots=config.play.slots,
                device_name=config.device,
                config=config.cold_start,
                format=format_read(config.env.env_id, config.env.options),
            )
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
) -> Generator[Progress, None, Pupil]:
    """Raise a tiny agent on demonstrations played in `arena`; a generator of Progress that returns the Pupil.

    It learns to write calls in `format`, the one that the arena reads. Of a mixture each environment has a
    demonstrator and its share of the demonstrations. There are so many times more of them, and of steps that imitation
    may take, that the rarest is shown as often as it would be alone; the gate is measured, and to be passed, in each.
    """
    config, device, (_, counts) = config or ColdStartConfig(), find_device(device_name), counts_in(arena, 0)
    rarest = min(counts_in(arena, 1000)[0].values())
    times = min(_MOST_TIMES, 1000 // max(1, rarest))
    most = config.imitation_steps * times
    config = replace(config, demonstrations=config.demonstrations * times, imitation_steps=most)
    demonstrations = yield from demonstrate(arena, demonstrator, config.demonstrations, config.tool_rate, seed, format)
    for count in counts.values():
        if warning := Division(count).warning:
            yield Progress("demonstrations", len(demonstrations), config.demonstrations, note=warning)
    measure = _measure(demonstrations, config)
    tokenizer = tiny_tokenizer(m["content"] for e in demonstrations for m in e.attempt.messages)
    chat = Chat(tokenizer)
    rows = [row for episode in demonstrations for row in written_rows(chat, episode.attempt.messages)]
    if note := _too_long(rows, limits):
        yield Progress("demonstrations", len(demonstrations), config.demonstrations, note=note)
    best = 0.0
    for attempt in range(config.max_attempts):
        model = tiny_model(len(tokenizer), layers=config.layers, seed=seed * config.max_attempts + attempt)
        local = serve(model.to(device), tokenizer, slots=slots, seed=seed)
        settings = replace(sft or tiny_sft_config(), seed=seed)
        steps, reached = yield from _imitate(local, rows, arena, limits, config, settings, measure)
        if reached >= config.imitation_gate:
            return Pupil(local, attempt + 1, steps, demonstrations)
        best = max(best, reached)
        yield Progress(
            "imitation",
            steps,
            config.imitation_steps,
            note=f"stuck at {reached:.2f} {measure.name} after {steps} steps (gate {config.imitation_gate}); "
            f"attempt {attempt + 1} of {config.max_attempts} is given up and other initial weights are drawn",
        )
    shown = len({episode.start.key[:2] for episode in demonstrations})
    raise TrainingHalted(
        f"none of {config.max_attempts} initial weights reached {config.imitation_gate} {measure.name} in "
        f"{config.imitation_steps} steps, on tasks that were not among the {shown} demonstrated; the best reached "
        f"{best:.2f}. Allow more steps (--cold-start.imitation-steps), lower the gate "
        "(--cold-start.imitation-gate), or give more tasks"
    )


def demonstrate(
    arena: Arena,
    demonstrator: Demonstrator | Mapping[str, Demonstrator],
    episodes: int,
    tool_rate: float,
    seed: int,
    format: str = formats.DEFAULT,
) -> Generator[Progress, None, Sequence[Episode]]:
    """Episodes of the demonstrator, played for real, in task order; of a game, every seat's."""
    rules = demonstrator if isinstance(demonstrator, Mapping) else {"": demonstrator}
    habits = {env: partial(rule, tool_rate=tool_rate) for env, rule in rules.items()}
    script, table = Agent(ScriptedPolicy(habits, seed, format)), seats_of(arena)
    games = max(1, episodes // max(1, len(table)))
    total = games * max(1, len(table))
    shares, _ = counts_in(arena, games)
    starts = _starts(arena, shares, lambda tasks, number: tasks.demonstrated(seed * episodes + number))
    found: list[Episode] = []
    for episode in play(in_every_seat(script, table), arena, seated(starts, table)):
        found.append(episode)
        if len(found) % max(1, total // _REPORTS) == 0 or len(found) == total:
            yield Progress("demonstrations", len(found), total)
    found.sort(key=lambda episode: (*episode.start.key[:3], episode.start.seat or ""))
    return [episode for episode in found if episode.reward is not None]


def _starts(arena: Arena, games: Mapping[str, int], task: Callable[[Division, int], int]) -> Iterator[Start]:
    """So many games of each environment; `task` says which one of its tasks the n-th is of."""
    _, counts = counts_in(arena, 0)
    places = ((env, number) for env, count in games.items() for number in range(count))
    for place, (env, number) in enumerate(places):
        yield Start(task(Division(counts[env]), number), seed=place, group=place, env=env)


def _measure(demonstrations: Sequence[Episode], config: ColdStartConfig) -> _Measure:
    """What the gate is to measure; an error where the demonstrator itself does not pass it."""
    if not demonstrations:
        raise TrainingHalted("every demonstration is BROKEN; `palaestra check` says what is wrong with the environment")
    used: dict[str, bool] = {}
    for episode in demonstrations:
        used[episode.start.env] = used.get(episode.start.env, False) or _used(episode)
    without = {env: [one for one in demonstrations if one.start.env == env] for env, tool in used.items() if not tool}
    reached = {env: _Measure({env: False}).of(own) for env, own in without.items()}
    measure = _Measure(used, {env: success for env, success in reached.items() if success})
    shown = measure.of(demonstrations)
    if shown < config.imitation_gate:
        habit = "" if any(measure.with_tool.values()) else f", played with tool_rate={config.tool_rate:g},"
        raise TrainingHalted(
            f"the demonstrator{habit} reaches {shown:.2f} {measure.name} in {len(demonstrations)} demonstrations, and "
            f"the tiny agent, which imitates it, is to reach {config.imitation_gate}: let it play better, or lower the "
            "gate with --cold-start.imitation-gate"
        )
    return measure


def _too_long(rows: Sequence[TokenRow], limits: TokenLimits) -> str:
    """What to say where demonstrations are longer than what may be played: nobody could succeed in their way."""
    turns = [max((end - begin for begin, end in spans(row.sampled)), default=0) for row in rows]
    pairs = zip(rows, turns, strict=True)
    cut = sum(len(row) > limits.max_episode_tokens or turn > limits.max_turn_tokens for row, turn in pairs)
    if not cut:
        return ""
    return (
        f"{cut / len(rows):.0%} of what is demonstrated would be cut off in play: the longest row has "
        f"{max(map(len, rows))} tokens, the longest turn {max(turns)}; raise --play.max-episode-tokens, which is "
        f"{limits.max_episode_tokens}, and --play.max-turn-tokens, {limits.max_turn_tokens}"
    )


def _used(episode: Episode) -> bool:
    """Whether a call worked in it."""
    return any(call.status is Status.OK for call in episode.attempt.calls)


def _imitate(
    local: LocalModel,
    rows: Sequence[TokenRow],
    arena: Arena,
    limits: TokenLimits,
    config: ColdStartConfig,
    sft: SFTConfig,
    measure: _Measure,
) -> Generator[Progress, None, tuple[int, float]]:
    """Imitate until the gate is passed, then let the rate fall; returns the steps and what was reached."""
    learner = Learner(local.agent, local.model, sft)
    imitation, reached = Imitation(learner, rows), 0.0
    first = min(config.first_gate, config.imitation_steps)

    def step(rate: float = 1.0) -> float:
        figures = imitation.step(rate * min(1.0, (learner.step + 1) / config.warmup_steps))
        learner.require_gradients()
        return figures["loss"]

    while learner.step < config.imitation_steps:
        metrics = {"loss": step()}
        if learner.step >= first and learner.step % config.gate_every == 0:
            reached = _reached(local, arena, limits, config, measure)
            metrics[measure.metric] = reached
        # The earliest end: the next gate, and the decay after it.
        gate = max(first, -(-learner.step // config.gate_every) * config.gate_every)
        yield Progress("imitation", learner.step, gate + config.decay_steps, metrics)
        if reached >= config.imitation_gate:
            break
    if reached >= config.imitation_gate:
        for left in reversed(range(config.decay_steps)):
            loss = step(rate=left / config.decay_steps)
            yield Progress("imitation", learner.step, learner.step + left, {"loss": loss})
        # What is handed on is the model after the decay: it must pass too.
        reached = _reached(local, arena, limits, config, measure)
    return learner.step, reached


def _reached(local: LocalModel, arena: Arena, limits: TokenLimits, config: ColdStartConfig, measure: _Measure) -> float:
    """What the gate measures of a model as it is now."""
    for engine in trained_engines(local.agent):
        engine.update_weights(local.model.named_parameters(), version=0)
    table, (_, counts) = seats_of(arena), counts_in(arena, 0)
    games = max(1, config.gate_tasks // max(1, len(table)))
    starts = _starts(arena, dict.fromkeys(counts, games), Division.kept_back)
    played = play(in_every_seat(local.agent, table), arena, seated(starts, table), limits=limits)
    return measure.of(list(played))
