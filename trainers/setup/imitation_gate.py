"""The gate of a cold start: what is measured, and whether the demonstrator itself passes it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from palaestra.episode import Episode, Status, TokenRow
from palaestra.errors import TrainingHalted
from palaestra.trainers.config.sections_config import ColdStartConfig

Rows = Sequence[TokenRow]


@dataclass(frozen=True, slots=True)
class GateMeasure:
    """Measure of the gate: the success of episodes with a served call; if no demonstration used a tool, the success of
    all episodes relative to the demonstrator's. In a mixture, the minimum over its environments.
    """

    with_tool: Mapping[str, bool]
    """True, by environment, if its demonstrations use a tool."""
    demonstrator_success: Mapping[str, float] = field(default_factory=dict)
    """Success of the demonstrator by environment, if no tool is used. It includes the bad habit, which the agent
    imitates."""

    @property
    def name(self) -> str:
        """Return the name of the measure, for use in a sentence."""
        if any(self.with_tool.values()):
            return "success in episodes with a served call"
        return "of the demonstrator's success" if self.demonstrator_success else "success"

    @property
    def metric(self) -> str:
        """Return the key of the measure in the metrics of `Progress`."""
        return "success_with_tool" if any(self.with_tool.values()) else "success_of_demonstrator"

    def of(self, episodes: Sequence[Episode]) -> float:
        """Return the measure of these episodes; 0 if an environment has no episode that counts."""
        successes: dict[str, list[float]] = {env: [] for env in self.with_tool}
        for episode in episodes:
            env = episode.start.env
            if episode.reward is not None and (used_tool(episode) or not self.with_tool.get(env)):
                successes.setdefault(env, []).append(episode.parts["success"])
        return min(
            sum(env_successes) / max(1, len(env_successes)) / self.demonstrator_success.get(env, 1.0)
            for env, env_successes in successes.items()
        )

    def tool_share(self, episodes: Sequence[Episode]) -> float:
        """Return the share of these episodes with a served call. In a mixture, the maximum over the environments."""
        uses: dict[str, list[bool]] = {}
        for episode in episodes:
            if episode.reward is not None:
                uses.setdefault(episode.start.env, []).append(used_tool(episode))
        return max((sum(env_uses) / len(env_uses) for env_uses in uses.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class GateScore:
    """The gate's measurements of an agent."""

    reached: float = 0.0
    """The gate's measure."""
    greedy_tool_share: float | None = None
    """Share of the greedy episodes that used the tool; None if it was not measured."""
    lost_habit: bool = False
    """True if that share is above the limit."""

    def passes(self, config: ColdStartConfig) -> bool:
        """Return whether imitation may end."""
        return self.reached >= config.imitation_gate and not self.lost_habit

    @property
    def habit(self) -> str:
        """Return a part of a sentence about a lost habit; "" if it is not lost."""
        return f", but uses its tool in {self.greedy_tool_share:.0%} of its greedy episodes" if self.lost_habit else ""

    def metrics(self, measure: GateMeasure) -> dict[str, float]:
        """Return the score as metrics of `Progress`."""
        share = {} if self.greedy_tool_share is None else {"greedy_tool_share": self.greedy_tool_share}
        return {measure.metric: self.reached, **share}


def gate_measure(demonstrations: Sequence[Episode], config: ColdStartConfig) -> GateMeasure:
    """Return the measure of the gate. Raise `TrainingHalted` if the demonstrator itself does not pass the gate."""
    used: dict[str, bool] = {}
    for episode in demonstrations:
        used[episode.start.env] = used.get(episode.start.env, False) or used_tool(episode)
    reached = {
        env: GateMeasure({env: False}).of([episode for episode in demonstrations if episode.start.env == env])
        for env, tool in used.items()
        if not tool
    }
    measure = GateMeasure(used, {env: success for env, success in reached.items() if success})
    score = measure.of(demonstrations)
    if score < config.imitation_gate:
        habit = "" if any(measure.with_tool.values()) else f", played with tool_rate={config.tool_rate:g},"
        raise TrainingHalted(
            f"the demonstrator{habit} reaches {score:.2f} {measure.name} in {len(demonstrations)} demonstrations, and "
            f"the agent, which imitates it, is to reach {config.imitation_gate}: let it play better, or lower the "
            "gate with --cold-start.imitation-gate"
        )
    return measure


def why_halted(best: GateScore, measure: GateMeasure, config: ColdStartConfig, attempts: int, task_count: int) -> str:
    """Return the error message of imitation that did not pass the gate."""
    if best.habit:
        return (
            f"at the end of imitation the agent has {best.reached:.2f} {measure.name}{best.habit}, and the limit is "
            f"{config.max_greedy_tool_share:.0%}: let the demonstrations use the tool less often than in "
            f"{config.tool_rate:.0%} of the episodes (--cold-start.tool-rate), allow more steps "
            "(--cold-start.imitation-steps), or raise the limit (--cold-start.max-greedy-tool-share; 1 is none)"
        )
    reached = (
        f"imitation reached {best.reached:.2f}"
        if attempts == 1
        else f"none of {attempts} initial weights passed the gate; the best reached {best.reached:.2f}"
    )
    return (
        f"{reached} {measure.name} on tasks that were not among the {task_count} demonstrated, and "
        f"{config.imitation_gate} is needed. It stops where success no longer rises, and after "
        f"{config.imitation_steps} steps: lower the gate (--cold-start.imitation-gate), give more tasks, or allow more "
        "steps (--cold-start.imitation-steps)"
    )


def halve_tool_use(demonstrations: Sequence[tuple[Episode, Rows]]) -> list[tuple[Episode, Rows]]:
    """Leave out every second demonstration that uses a tool, in each environment. One of them remains."""
    numbers: Counter[str] = Counter()
    remaining = []
    for episode, rows in demonstrations:
        numbers[episode.start.env] += used_tool(episode)
        if not used_tool(episode) or numbers[episode.start.env] % 2:
            remaining.append((episode, rows))
    return remaining


def used_tool(episode: Episode) -> bool:
    """Return whether at least one call in the episode succeeded."""
    return any(call.status is Status.OK for call in episode.attempt.calls)
