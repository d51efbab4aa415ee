"""No circle of imports, between files or between folders; those under TYPE_CHECKING and inside functions count.

A name that a package only hands on is followed to the file that defines it.
"""

import ast
from collections.abc import Iterable, Mapping

from sources import ROOMS, Import, imports, imports_of, modules


def test_there_is_no_circle_of_imports() -> None:
    graph = {module: {origin(one) for one in imports(module)} & files() - {module} for module in files()}
    between: dict[str, set[str]] = {}
    for module, others in graph.items():
        between.setdefault(folder(module), set()).update(map(folder, others))
    folders = {here: others - {here} for here, others in between.items()}
    found = {" ".join(circle) for circle in (*circles(graph), *circles(folders))}
    assert found == set(), "these files or folders import each other: move what both need below both"


def files() -> set[str]:
    """Modules that define something: a package's face belongs to everything below it."""
    return {module for module, path in modules().items() if path.name != "__init__.py"}


def folder(module: str) -> str:
    """`palaestra.envs.core` for `palaestra.envs.core.tool`; a file directly in a room stands for itself."""
    return ".".join(module.split(".")[: 3 if module.startswith(ROOMS) else 2])


def origin(one: Import) -> str:
    """The module that defines what is imported."""
    if one.name and one.module in modules() and one.module not in files():
        for handed_on in imports(one.module):
            if handed_on.name == one.name:
                return origin(handed_on)
    return one.module


def circles(graph: Mapping[str, Iterable[str]]) -> set[tuple[str, ...]]:
    """The groups of nodes that can each reach all others of their group."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        reached[start], waiting = set(), list(graph[start])
        while waiting:
            node = waiting.pop()
            if node not in reached[start]:
                reached[start].add(node)
                waiting += graph.get(node, ())
    return {tuple(sorted(n for n in reached[node] if node in reached[n])) for node in graph if node in reached[node]}


def test_a_circle_is_seen_however_it_is_imported() -> None:
    assert circles({"a": "b", "b": "c", "c": "ad", "d": "e", "e": "d", "f": "a"}) == {("a", "b", "c"), ("d", "e")}
    for source in (
        "from palaestra.envs import ToolEnv",
        "def f():\n    from palaestra.envs.core.author import ToolEnv",
        "if TYPE_CHECKING:\n    from ..core.author import ToolEnv",
    ):
        (one,) = imports_of(ast.parse(source), "palaestra.envs.data.rows")
        assert origin(one) == "palaestra.envs.core.author"
