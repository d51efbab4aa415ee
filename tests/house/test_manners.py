"""The house rules that a reader would notice: short files, short functions, a first sentence, no odds and ends."""

import ast
from pathlib import Path

from sources import ROOMS, ROOT, modules, tree_of

MAX_LINES_PER_FILE = 300
MAX_LINES_PER_FUNCTION = 60
THE_LOOP = "palaestra.trainers.grpo", 72
"""The module whose longest function, GRPO's loop, is longer, because it shows a whole step in order."""
DRAWERS = {"utils", "util", "helpers", "misc"}


def test_every_module_keeps_the_manners() -> None:
    assert len(modules()) > 200, "not all rooms are looked at"
    faults = [f"{path.relative_to(ROOT)}: {fault}" for name, path in modules().items() for fault in bad(name, path)]
    assert faults == []


def bad(module: str, path: Path) -> list[str]:
    """What a reader would complain of."""
    tree, lines = tree_of(module), len(path.read_text(encoding="utf-8").splitlines())
    faults = [f"{lines} lines, at most {MAX_LINES_PER_FILE}"] * (lines > MAX_LINES_PER_FILE)
    faults += long_functions(tree, THE_LOOP[1] if module == THE_LOOP[0] else MAX_LINES_PER_FUNCTION)
    faults += ["has no docstring"] * (not ast.get_docstring(tree))
    if not module.startswith("palaestra.cli"):
        faults += [f"line {line} prints, which only the command line does" for line in prints(tree)]
    faults += ["is a drawer for odds and ends"] * (not DRAWERS.isdisjoint(module.split(".")))
    faults += ["lies in a folder that is no package"] * (not (path.parent / "__init__.py").is_file())
    return faults


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


def test_the_import_names_lead_to_the_rooms() -> None:
    """Type checkers and editors find `palaestra.envs` through these links."""
    for room in (name.partition(".")[2] for name in ROOMS):
        link = ROOT / "palaestra" / room
        assert link.is_symlink(), "the checkout lost its links: git config core.symlinks true; git checkout palaestra"
        assert link.readlink() == Path("..") / room
        assert link.resolve() == ROOT / room


def test_the_measures_measure() -> None:
    long = ast.parse("class A:\n    async def f(self):\n" + "        pass\n" * 60)
    assert long_functions(long, MAX_LINES_PER_FUNCTION) == ["f: 61 lines"]
    assert prints(ast.parse("def f():\n    print(1)\nx.print(2)\nprint(3, file=log)")) == [2]
    assert prints(ast.parse("if mode == 'human':\n    print(1)\nelse:\n    print(2)")) == [4]
