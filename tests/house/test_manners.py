"""The house rules that a reader would notice: short files, short functions, a first sentence, no odds and ends."""

import ast
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("palaestra", "envs", "agents", "trainers")
MOST_LINES_A_FILE = 350
MOST_LINES_A_FUNCTION = 80
DRAWERS = {"utils", "util", "helpers", "misc"}


def sources() -> list[Path]:
    """The Python files of the rooms, each once: links are not followed."""
    found = []
    for room in ROOMS:
        for directory, folders, files in os.walk(ROOT / room, followlinks=False):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [Path(directory) / name for name in files if name.endswith(".py")]
    return sorted(found)


every_source = pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))


def test_all_rooms_are_looked_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in sources()} == set(ROOMS)


def long_functions(tree: ast.AST, most: int) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    return [f"{name}: {length} lines" for name, length in lengths.items() if length > most]


def prints(tree: ast.AST) -> list[int]:
    """Lines that print to standard output, but for those under `if ... == "human"`: Gymnasium's way to ask for it."""
    if isinstance(tree, ast.If) and "'human'" in ast.unparse(tree.test):
        return [line for node in tree.orelse for line in prints(node)]
    found = [line for node in ast.iter_child_nodes(tree) for line in prints(node)]
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "print":
        found += [tree.lineno] * all(keyword.arg != "file" for keyword in tree.keywords)
    return found


@every_source
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES_A_FILE
    assert long_functions(ast.parse(text), MOST_LINES_A_FUNCTION) == []


@every_source
def test_a_module_starts_with_what_it_does(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@every_source
def test_only_the_command_line_prints(path: Path) -> None:
    if path.is_relative_to(ROOT / "palaestra" / "cli"):
        return
    assert prints(ast.parse(path.read_text(encoding="utf-8"))) == []


@every_source
def test_nothing_is_kept_in_a_drawer_for_odds_and_ends(path: Path) -> None:
    relative = path.relative_to(ROOT).with_suffix("")
    assert DRAWERS.isdisjoint(relative.parts)


@every_source
def test_every_folder_of_modules_is_a_package(path: Path) -> None:
    assert (path.parent / "__init__.py").is_file()


@pytest.mark.parametrize("room", ["envs", "agents", "trainers"])
def test_the_import_name_leads_to_the_room(room: str) -> None:
    """Type checkers and editors find `palaestra.envs` through these links."""
    link = ROOT / "palaestra" / room
    assert link.is_symlink(), "the checkout has lost its links: git config core.symlinks true; git checkout palaestra"
    assert link.readlink() == Path("..") / room
    assert link.resolve() == ROOT / room


def test_the_measures_measure() -> None:
    long = ast.parse("class A:\n    async def f(self):\n" + "        pass\n" * 80)
    assert long_functions(long, MOST_LINES_A_FUNCTION) == ["f: 81 lines"]
    assert prints(ast.parse("def f():\n    print(1)\nx.print(2)\nprint(3, file=log)")) == [2]
    assert prints(ast.parse("if mode == 'human':\n    print(1)\nelse:\n    print(2)")) == [4]
