"""Environment ids as people type them: an id, a short name of the suite, or `module:id` for one of their own."""

import sys
from importlib import import_module

import gymnasium

from palaestra.errors import UnknownId, UsageError
from palaestra.registry import registered


def resolve(text: str) -> str:
    """The id that `text` means, with its module where one is named: other processes then find it too.

    The module is imported here, looked for in the current folder first.
    """
    module, _, env_id = text.rpartition(":")
    if module:
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"{text!r}: the module {error.name!r} cannot be imported from here") from error
    short = {
        known.split("/")[-1].split("-v")[0].lower(): known for known in registered() if known.startswith("palaestra/")
    }
    env_id = short.get(env_id.lower().replace("-", "").replace("_", ""), env_id)
    if env_id not in gymnasium.registry:
        raise UnknownId(env_id, registered())
    return f"{module}:{env_id}" if module else env_id
