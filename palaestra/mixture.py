"""A mixture: several environments in one run, each with its share of the groups. It is written as one id.

    palaestra/TwoHop-v0=3,palaestra/Calculator-v0=1         three groups of four are of TwoHop
    palaestra/CodeMath-v0#dapo=17,palaestra/CodeMath-v0#skywork=5    one id twice, each with a name of its own

The text before a weight is the name of an environment, and `Start.env` holds it. An option that begins with that name,
such as `calculator.digits=2`, is for that environment; an option without a name is for all. Left out: which group has
which environment (`trainers.samplers.task_of_group`), and playing several at once (`envs.arena.mixed`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

from palaestra.errors import UsageError, plain_name

_WEIGHT = re.compile(r"\d{1,12}(\.\d{1,12}|/[1-9]\d{0,11})?")
_RAREST = Fraction(1, 10_000)
_BLOCK = 100
_LABEL = "#"


@dataclass(frozen=True, slots=True)
class Mixture:
    """The environments of a mixture: the weight of each, by name, in the order of the id."""

    weights: Mapping[str, Fraction]

    @property
    def shares(self) -> dict[str, Fraction]:
        """The weights, divided by their sum."""
        whole = sum(self.weights.values())
        return {name: weight / whole for name, weight in self.weights.items()}

    @property
    def block(self) -> int:
        """Number of groups in which every environment is played at least once."""
        return max(_BLOCK, ceil(1 / min(self.shares.values())))

    def counts(self, total: int) -> dict[str, int]:
        """Return how many of `total` groups each environment gets: its share, rounded up or down.

        No count decreases from one multiple of `block` to the next.
        """
        counts_by_name, share, end = dict[str, int](), Fraction(0), 0
        for name, own_share in self.shares.items():
            share, begin = share + own_share, end
            end = floor(total * share + Fraction(1, 2))
            counts_by_name[name] = end - begin
        return counts_by_name

    def options_for(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of one environment: those for all, overridden by its own."""
        split_keys = {key: key.rpartition(".") for key in options}
        shared_options = {key: options[key] for key, (owner, _, _) in split_keys.items() if not owner}
        return shared_options | {
            key: options[whole] for whole, (owner, _, key) in split_keys.items() if owner and self._is(owner, name)
        }

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise a UsageError for an option of no environment, and for two environments that are the same."""
        for key in options:
            of = key.rpartition(".")[0]
            if of and sum(self._is(of, name) for name in self.weights) != 1:
                raise UsageError(f"option {key!r} names {of!r}; expected one of {', '.join(self.weights)}")
        environments_so_far: list[tuple[str, dict[str, Any]]] = []
        for name in self.weights:
            environment = plain_id(name), self.options_for(name, options)
            if environment in environments_so_far:
                raise UsageError(
                    f"{environment[0]} is in the mixture twice with the same options; add its weights up, or give each "
                    f"options of its own, as in --env-options {name}.tasks=FILE"
                )
            environments_so_far.append(environment)

    def _is(self, text: str, name: str) -> bool:
        """Return whether `text` means the environment `name`: it is that name, or both have the same short form."""
        return text == name or (text not in self.weights and _short(text) == _short(name))


def read_mixture(env_id: str) -> Mixture | None:
    """Return the mixture that an id names; None if it names one environment."""
    if not set(env_id) & {"=", ",", _LABEL}:
        return None
    weights: dict[str, Fraction] = {}
    for text in env_id.split(","):
        name, equals, weight = text.strip().partition("=")
        if not plain_id(name):
            raise UsageError(f"{env_id!r} is no mixture; expected ID=WEIGHT,ID=WEIGHT, such as two-hop=3,calculator=1")
        if name in weights:
            raise UsageError(
                f"{name} is twice in {env_id!r}; add its weights up, or, with other options, give each a name of its "
                f"own: {name}#easy=1,{name}#hard=1"
            )
        if equals and not (_WEIGHT.fullmatch(weight) and Fraction(weight)):
            raise UsageError(f"{name} has the weight {weight!r}; expected a number above 0, such as 3, 0.5 or 1/3")
        weights[name] = Fraction(weight) if equals else Fraction(1)
    mixture = Mixture(weights)
    name, least = min(mixture.shares.items(), key=lambda pair: pair[1])
    if least < _RAREST:
        raise UsageError(
            f"{name} has a share of {float(least):.2g}; expected at least {float(_RAREST):g}: leave it out"
        )
    return mixture


def plain_id(name: str) -> str:
    """Return the id of an environment of a mixture, without the label that distinguishes it from others of that id."""
    return name.partition(_LABEL)[0]


def environment_of(env_id: str, options: Mapping[str, Any], env: str) -> tuple[str, dict[str, Any]]:
    """Return id and options of the environment `env` (of a `Start`), in a run of this id with these options."""
    mixture = read_mixture(env_id)
    return (env or env_id, dict(options)) if mixture is None else (plain_id(env), mixture.options_for(env, options))


def environments(env_id: str, options: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return id and options of each environment of an id, by `Start.env`; without a mixture the only key is the id."""
    mixture = read_mixture(env_id)
    names: Iterable[str] = [env_id] if mixture is None else mixture.weights
    return {name: environment_of(env_id, options, name) for name in names}


def _short(name: str) -> tuple[str, str]:
    """Return the short form of a name on the command line, and its label."""
    env_id, _, label = name.partition(_LABEL)
    return plain_name(env_id.rpartition(":")[2]), label
