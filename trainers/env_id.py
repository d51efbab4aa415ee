"""How an environment or a mixture is named on the command line. Left out: what the words mean (`palaestra.mixture`)."""

from typing import Annotated

import tyro
from tyro.constructors import PrimitiveConstructorSpec


def _named(words: list[str]) -> str:
    if not words:
        raise ValueError("name an environment, such as two-hop, or several by weight: two-hop=3 calculator=1")
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
"""Several words on the command line are a mixture."""
