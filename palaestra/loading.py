"""Import large modules, such as those that load torch, without the garbage collector.

Python's collector visits all that an import makes, again and again, although it stays as long as the process: a third
of the time that importing torch and transformers takes.
"""

import gc
import sys
from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """Import a module that this process needs to its end. All that exists then is excluded from garbage collection."""
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        module = import_module(name)
        gc.freeze()
    finally:
        gc.enable()
    return module


def load_and_call(name: str, function: str) -> None:
    """Call a function of a module that is imported by `load`: the initializer of a process that is spawned."""
    getattr(load(name), function)()
