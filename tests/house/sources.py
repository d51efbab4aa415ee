"""The source of palaestra as its house tests read it: modules by import name, what each imports, where and when.

Read without importing anything, so an import inside a function or under TYPE_CHECKING is seen too. Left out: a module
that is reached through a string put together at run time.
"""

import ast
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("palaestra.envs", "palaestra.agents", "palaestra.trainers")


@cache
def modules() -> dict[str, Path]:
    """Every module of palaestra by its import name, each once: rooms through their own folders, links not followed."""
    found = {}
    for folder in ("palaestra", "envs", "agents", "trainers"):
        prefix = folder if folder == "palaestra" else f"palaestra.{folder}"
        for directory, _, files in os.walk(ROOT / folder, followlinks=False):
            for path in (Path(directory) / name for name in files if name.endswith(".py")):
                parts = [prefix, *path.relative_to(ROOT / folder).with_suffix("").parts]
                found[".".join(part for part in parts if part != "__init__")] = path
    return dict(sorted(found.items()))


@cache
def tree_of(module: str) -> ast.Module:
    """A module's source, parsed."""
    text = modules()[module].read_text(encoding="utf-8")
    gc.disable()  # Python 3.11 loses count of its own depth when a collection runs code in the middle of this.
    try:
        return ast.parse(text)
    finally:
        gc.enable()


@dataclass(frozen=True)
class Import:
    """One module that a source file names, where, and whether that happens when the file itself is imported."""

    module: str
    name: str
    """What is taken out of it; empty where the module itself is."""
    line: int
    eager: bool


def imports_of(tree: ast.AST, module: str, is_package: bool = False) -> Iterator[Import]:
    """Every import in a source file: statements anywhere, and `import_module("...")` with a constant."""
    package = module if is_package else module.rpartition(".")[0]
    stack: list[tuple[ast.AST, bool]] = [(tree, True)]
    while stack:
        node, eager = stack.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "", node.lineno, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from palaestra import envs` names a module, `from palaestra import Task` does not.
                whole = f"{base}.{alias.name}"
                is_module = whole in modules()
                yield Import(whole if is_module else base, "" if is_module else alias.name, node.lineno, eager)
        elif isinstance(node, ast.Call) and called_name(node.func) in ("import_module", "__import__"):
            named = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if isinstance(named, str):
                yield Import(named, "", node.lineno, eager)
        inside = eager and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            typing_only = isinstance(node, ast.If) and called_name(node.test) == "TYPE_CHECKING" and child in node.body
            stack.append((child, inside and not typing_only))


def imports(module: str) -> list[Import]:
    """Every import in a module of ours."""
    return list(imports_of(tree_of(module), module, modules()[module].name == "__init__.py"))


def called_name(node: ast.expr) -> str:
    """`f` for `f` and for `anything.f`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
