"""The episodes of an evaluation (`eval --save FILE.jsonl`), and the settings that they are played with.

Left out: the file itself (`episode_file`), and playing (`measuring`).
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from palaestra.cli.agents import AgentOptions, loads_here
from palaestra.cli.episode_file import EpisodeFile
from palaestra.cli.eval_options import EvalOptions
from palaestra.cli.shared_options import weights_id
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.record import Record, write


def settings_of(options: EvalOptions, env_id: str, greedy_too: bool) -> dict[str, Any]:
    """Return the settings that decide the episodes of an evaluation. Addresses and prices are not among them."""
    settings = {"env_id": env_id, "agent": options.agent.model, **options.settings(options.environment)}
    turn, episode = options.limits
    settings |= {"temperature": options.temperature, "max_turn_tokens": turn, "max_episode_tokens": episode}
    settings |= {name: getattr(options, name) for name in ("seed", "tasks", "samples", "greedy", "others", "against")}
    settings |= {
        "greedy where cheap": greedy_too,
        "seats": list(options.seats),
        "native_tools": options.agent.native_tools,
    }
    for role, name in (("others", options.others), ("against", options.against)):
        served = options.agent.base_url is not None and not Path(name or "").is_dir()
        if name is not None and not served and loads_here(AgentOptions(name)):
            settings[f"weights of {role}"] = weights_id(name)
    return settings | ({"critic": options.critic_model} if options.critic else {})


class EvalFile(EpisodeFile):
    """The episodes of one evaluation, of all its agents."""

    OPTION: ClassVar[str] = "--save"

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open the file. Raise a UsageError if it holds other episodes than those of an evaluation that can go on."""
        about = path.with_suffix(".eval.json")
        self._earlier: dict[str, list[Episode]] = {}
        filled = path.exists() and (not path.is_file() or path.stat().st_size > 0)
        if filled and not about.exists():
            raise UsageError(f"{path} exists, and {about.name} is not beside it; remove it, or name another --save")
        if filled and settings["seats"] and settings["against"]:  # Whose game it was is not recorded of other seats.
            raise UsageError(f"{path} exists, and --against with --seats begins anew only; remove it")
        super().__init__(path, about, settings)
        if count := sum(map(len, self._earlier.values())):
            self.notes.append(f"{count} episodes are played already: {path}")

    def earlier(self, players: Collection[str], *, greedy: bool) -> list[Episode]:
        """Return the scored episodes of these players that were in the file when it was opened."""
        return [
            episode for name in players for episode in self._earlier.get(name, []) if episode.start.greedy == greedy
        ]

    def add(self, record: Record) -> None:
        """Append an episode to the file."""
        self._recorder.add(record)

    def finish(self, records: Iterable[Record]) -> None:
        """Write the records of the whole evaluation in their order: without earlier tries of BROKEN episodes."""
        write(self.path, records)

    def _note_played(self, record: Record) -> None:
        if record.episode.reward is not None:
            self._earlier.setdefault(record.agent, []).append(record.episode)
