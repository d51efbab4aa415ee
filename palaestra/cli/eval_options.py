"""The options of `palaestra eval`, and which of them must agree."""

from dataclasses import dataclass
from pathlib import Path

from palaestra.cli.agents import DEMONSTRATOR
from palaestra.cli.output import require_writable
from palaestra.cli.shared_options import EpisodeOptions, Split
from palaestra.endpoint.config import address_of
from palaestra.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class EvalOptions(EpisodeOptions):
    """Measure an agent on held-out tasks, or two agents against each other."""

    against: str | None = None
    """Another agent, named as for --model, that plays the same tasks; the difference is tested, paired by task. With
    --base-url it is another model of that server, unless it is `demonstrator` or a folder. --system and
    --chat-template are for --model alone."""
    critic: tuple[str, ...] = ()
    """Base URLs of the servers of a reward model, without `/chat/completions`. It writes a critique of each attempt,
    the agent reads it and tries again, and both attempts are measured (Reagent-C)."""
    critic_model: str = "rrm"
    """Name of the reward model on its servers: `--served-as` of `palaestra serve rrm`."""
    greedy: bool = False
    """Play each task once more with greedy decoding, and show the results beside the sampled ones. This is the default
    where all agents are models loaded here, of at most 1,000,000,000 weights; --no-greedy leaves it out there."""
    split: Split = "eval"
    """Split of the tasks to play; `all` is the whole file, for a test that is published as one file."""
    slots: int = 96
    """Number of episodes played at once."""
    seats: tuple[str, ...] = ()
    """In a game, the seats that the agent plays and that are measured; all by default."""
    others: str = DEMONSTRATOR
    """Who plays the other seats: `demonstrator` for the game's own script, or a model's folder or hub name."""
    save: Path | None = None
    """Write each episode here as it ends, for view, replay, rescore and sft, with the settings beside it. The same
    command again plays those that are missing or BROKEN; other settings are refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.greedy and self.temperature == 0:
            raise UsageError("--temperature 0 plays greedily already; leave out --greedy, or sample at a temperature")
        if self.others != DEMONSTRATOR and not self.seats:
            raise UsageError("--others play the seats that the agent does not: name its own with --seats")
        if self.against == self.agent.model:
            raise UsageError(f"--against names {self.against!r} as --model does; name another agent to compare with")
        for url in self.critic:
            address_of(url, "--critic")
        if self.save is not None:
            require_writable("--save", self.save)
