"""The settings of a run's environment, with command-line options. Not here: mixtures (`palaestra.mixture`)."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from palaestra.errors import ConfigError
from palaestra.mixture import environments, read_mixture
from palaestra.options import SERVICE
from palaestra.plain import from_pairs
from palaestra.trainers.validation import NOT_NEGATIVE, check_fields


def _named(words: list[str]) -> str:
    if len(words) > 1 and (bare := next((word for word in words if "=" not in word), None)):
        raise ValueError(f"{bare!r} has no weight; several environments are mixed by weight: two-hop=3 calculator=1")
    return ",".join(words)


EnvId = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="ENV-ID"),
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="ENV-ID",
        instance_from_str=_named,
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: value.split(","),
    ),
]
"""Environment id; several words on the command line are a mixture."""


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """The environment and its options."""

    env_id: EnvId
    """Environment to train in; or a mixture of several by weight, as in two-hop=3 calculator=1."""
    env_options: Annotated[tuple[str, ...], tyro.conf.arg(name="options", aliases=["--env-options"])] = ()
    """KEY=VALUE options for the environment: tasks=problems.jsonl, or any option of its class. For one environment of a
    mixture: calculator.KEY=VALUE."""
    curated: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--curated"])] = ()
    """File of `palaestra curate`: only the training tasks that it names are played."""
    train_seats: tuple[str, ...] = ()
    """Seats of a game whose episodes are trained on; all by default."""
    workers: Annotated[int, NOT_NEGATIVE] = 0
    """Number of Ray workers that play the episodes, also on other machines; 0 plays them in this process."""
    ray_address: Annotated[str, SERVICE] = ""
    """Address of a running Ray cluster, or `auto` for the one on this machine. If empty, the workers are on this
    machine."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.ray_address and not self.workers:
            raise ConfigError(
                f"ray_address is {self.ray_address!r} and workers is 0; expected how many workers to start"
            )
        if any(key.rpartition(".")[2] == "split" for key in self.options):
            raise ConfigError("env_options has 'split'; training plays train and is measured on eval")
        if self.env_id is not tyro.MISSING and (mixture := read_mixture(self.env_id)) is not None:
            mixture.check(self.options)

    @property
    def options(self) -> dict[str, Any]:
        """Return `env_options` as keyword arguments of the environment."""
        return from_pairs(self.env_options, "env_options")

    @property
    def title(self) -> str:
        """Return the environment's name for folder names: in lower case, without a part before a `/`."""
        return "-".join(name.rpartition("/")[2].lower() for name in environments(self.env_id, self.options))
