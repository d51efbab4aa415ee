"""Every name that a package exports exists and says what it is."""

import ast
import importlib
import inspect
import itertools
from types import ModuleType

from sources import modules, tree_of

PUBLIC = ["palaestra", "palaestra.formats", "palaestra.envs", "palaestra.agents", "palaestra.trainers"]


def documented_values() -> set[str]:
    """Names assigned at the top of some module and followed by a string: how this project documents a value."""
    found = set()
    for module in modules():
        for first, second in itertools.pairwise(tree_of(module).body):
            if isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant):
                targets = first.targets if isinstance(first, ast.Assign) else [getattr(first, "target", None)]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def own_docstring(value: object) -> str:
    """What was written about a class or function; not what it inherits, nor the signature that `dataclass` fills in."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    text = (text or "").strip()
    return "" if inspect.isclass(value) and text.startswith(f"{value.__name__}(") else text


def exported(module: ModuleType) -> list[str]:
    """What `__all__` says; without one, the public classes and functions that the package itself defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def test_every_exported_name_exists_has_a_docstring_and_is_listed() -> None:
    values, silent = documented_values(), []
    for package in PUBLIC:
        module = importlib.import_module(package)
        names = exported(module)
        assert len(set(names)) == len(names)
        assert package in ("palaestra.formats", "palaestra.trainers") or hasattr(module, "__all__")
        for name in names:
            value = getattr(module, name)
            is_code = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
            if not (own_docstring(value) if is_code else name in values):
                silent.append(f"{package}.{name}")
    assert silent == []


def test_the_front_door_lists_its_names_in_order() -> None:
    import palaestra

    assert palaestra.__all__ == sorted(palaestra.__all__)


def test_a_dataclass_that_says_nothing_is_noticed() -> None:
    """`dataclass` writes a docstring of its own where there is none; it must not count."""
    from dataclasses import dataclass

    @dataclass
    class Silent:
        x: int = 0

    class Heir(Silent):
        pass

    assert own_docstring(Silent) == ""
    assert own_docstring(Heir) == ""


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    import palaestra

    assert version("palaestra") == palaestra.__version__
