"""Resolve environment ids as people type them: an id, a short name of the suite, or `module:id` for their own.

An id in a file was not typed by the user, so its module is imported only if `--allow-code` names it.
"""

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import gymnasium

from palaestra.cli.output import Reported
from palaestra.errors import UnknownId, UsageError
from palaestra.mixture import read_mixture
from palaestra.registry import games, import_author, is_game, registered


@dataclass(frozen=True, kw_only=True)
class AllowsCode(Reported):
    """The options of every command that takes an environment's id from a file."""

    allow_code: tuple[str, ...] = ()
    """Modules to import first, which register environments of your own; no module that a file names is imported
    unless it is named here."""


def search_current_folder() -> None:
    """Make Python look for modules in the current folder first, where users have modules that they name."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def import_allowed(modules: Iterable[str]) -> None:
    """Import the modules that a command line names. The current folder is searched first."""
    if modules:
        search_current_folder()
    for module in modules:
        import_author(module)


def short_names() -> dict[str, str]:
    """Return the ids of the suite by their short names on the command line: `two-hop` for `palaestra/TwoHop-v0`."""
    suite = [env_id for env_id in (*registered(), *games()) if env_id.startswith("palaestra/")]
    names = {env_id: re.sub(r"[-_]v\d+$", "", env_id.split("/")[-1]).replace("_", "-") for env_id in suite}
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower(): env_id for env_id, name in names.items()}


def resolve_all(text: str) -> str:
    """Return the id that `text` means, as `resolve` does; `text` may also be a mixture."""
    if not text:
        raise UsageError("name an environment, such as two-hop, or several by weight: two-hop=3 calculator=1")
    if (mixture := read_mixture(text)) is None:
        return resolve(text)
    parts = {name: name.partition("#") for name in mixture.weights}
    return ",".join(
        f"{resolve(env_id)}{mark}{label}={mixture.weights[name]}" for name, (env_id, mark, label) in parts.items()
    )


def resolve(text: str) -> str:
    """Return the id that `text` means, with the module that it names, so that other processes can find it too.

    The module is imported; the current folder is searched first.
    """
    if not text:
        raise UsageError("name an environment, such as two-hop; `palaestra list` has them")
    if (mixture := read_mixture(text)) is not None:
        raise UsageError(
            f"{text!r} is a mixture, which train, demo and eval take; name one environment here, and give the command "
            f"once for each: {', '.join(mixture.weights)}"
        )
    module, _, env_id = text.rpartition(":")
    if not module and env_id.endswith(".py"):
        module, env_id = env_id, "ID"
    if module:
        if module.endswith(".py") or "/" in module:
            name = module.rpartition("/")[2].removesuffix(".py")
            form = f"{name}:{env_id}" + (", with the id that it registers for ID" if env_id == "ID" else "")
            raise UsageError(f"{text!r}: {module!r} is a file; go to its folder and write {form}")
        import_allowed([module])
    short = short_names()
    short |= {full_id.removeprefix("palaestra/"): full_id for full_id in short.values()}  # README's spelling.
    plain = {re.sub("[-_]", "", name).lower(): full_id for name, full_id in short.items()}
    if env_id not in gymnasium.registry:
        env_id = plain.get(re.sub("[-_]", "", env_id).lower(), env_id)
    typed_id = env_id
    env_id = re.sub(r"_v(?=\d+$)", "-v", env_id) if env_id not in gymnasium.registry else env_id
    from palaestra.envs.arena.openers import in_pettingzoo

    if env_id not in gymnasium.registry and not is_game(env_id) and not in_pettingzoo(env_id):
        if not module and env_id.isidentifier() and os.path.exists(f"{env_id}.py"):
            raise UsageError(f"{env_id!r} is a module here, not an id; write {env_id}:ID with the id that it registers")
        raise UnknownId(typed_id, [*registered(), *games()])
    return f"{module}:{env_id}" if module else env_id
