"""The gate of a cold start: what is measured, and whether the demonstrator itself passes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from palaestra.episode import Episode, Status
from palaestra.errors import TrainingHalted
from palaestra.trainers.config.sections_config import ColdStartConfig


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


def gate_measure(demonstrations: Sequence[Episode], config: ColdStartConfig) -> GateMeasure:
    """Return the measure of the gate. Raise `TrainingHalted` if the demonstrator itself does not pass the gate."""
    if not demonstrations:
        raise TrainingHalted("every demonstration is BROKEN; `palaestra check` says what is wrong with the environment")
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


def used_tool(episode: Episode) -> bool:
    """Return whether at least one call in the episode succeeded."""
    return any(call.status is Status.OK for call in episode.attempt.calls)
