"""Every name that a package exports exists and says what it is."""

import ast
import importlib
import inspect
import itertools
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ["palaestra", "palaestra.formats", "palaestra.envs", "palaestra.agents", "palaestra.trainers"]


def documented_values() -> set[str]:
    """Names assigned at the top of some module and followed by a string: how this project documents a value."""
    found = set()
    for folder in ("palaestra", "envs", "agents", "trainers"):
        for directory, _, files in os.walk(ROOT / folder, followlinks=False):
            for path in (Path(directory) / name for name in files if name.endswith(".py")):
                body = ast.parse(path.read_text(encoding="utf-8")).body
                for first, second in itertools.pairwise(body):
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


@pytest.mark.parametrize("package", PUBLIC)
def test_every_exported_name_exists_and_has_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    names = exported(module)
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(module, name)] == []
    values = documented_values()
    silent = []
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            said = own_docstring(value)
        else:
            said = name in values
        if not said:
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize("package", ["palaestra", "palaestra.envs", "palaestra.agents"])
def test_what_people_import_from_is_listed(package: str) -> None:
    assert importlib.import_module(package).__all__


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
