#!/usr/bin/env python3
"""Count what makes code hard to read: ambiguous names, fragments as docstrings, words that name nothing.

    python plain.py [ROOT] [--list] [--strict] [--max-words 12] [--allow NAME ...]

Prints a table with one column for each room (a top-level package), then the class and module names that several files
define. `--list` prints every finding as file:line. `--strict` exits 1 when a class name clashes or a word of EMPTY is
a public name. Symbolic links are skipped.
"""

# ruff: noqa: SIM905
import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("palaestra", "envs", "agents", "trainers")
EMPTY = frozenset(  # words that say what happened to a value, or whose it is, but not what it is
    """found one said told asked heard taught own kept wanted given made drawn known shown named held listed taken
    begun seen judged played spent mine ours theirs rest most""".split()
)
FRAGMENT_STARTS = frozenset(  # a short docstring that begins with one of these only completes the name above it
    """Of For Whose Where Which Who Whom When If By In On To From With Without Until After Before As At So That Those
    What Whether Not""".split()
)
KINDS = ("class clashes", "alias clashes", "module repeats", "fragments", "empty locals", "empty public names")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (room, path) for every Python file below the rooms, without following links."""
    for room in ROOMS:
        folders = [root / room]
        while folders:
            folder = folders.pop()
            if folder.is_dir() and not folder.is_symlink() and folder.name != "__pycache__":
                entries = sorted(folder.iterdir())
                folders += [entry for entry in entries if entry.is_dir()]
                yield from ((room, entry) for entry in entries if entry.suffix == ".py" and not entry.is_symlink())


def scope_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of one function without those of functions and classes inside it."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


def local_names(function: ast.AST) -> dict[str, int]:
    """Map each parameter and each assigned local of a function to its first line."""
    signature = function.args
    parameters = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, signature.vararg, signature.kwarg]
    lines = {parameter.arg: parameter.lineno for parameter in parameters if parameter is not None}
    for node in scope_nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return lines


def docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (text, line) of each docstring, and of each text that stands below an assignment."""
    for owner in ast.walk(tree):
        body = owner.body if isinstance(owner, (ast.Module, ast.ClassDef, *FUNCTIONS)) else []
        for before, statement in zip([None, *body], body, strict=False):
            value = statement.value if isinstance(statement, ast.Expr) else None
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
            if is_text and (before is None or isinstance(before, (ast.Assign, ast.AnnAssign))):
                yield " ".join(value.value.split()), statement.lineno


def is_fragment(text: str, max_words: int) -> bool:
    """Tell whether the first sentence is short and begins with a word that only completes a name."""
    words = text.partition(". ")[0].split()
    return 0 < len(words) <= max_words and words[0].rstrip(".,:;") in FRAGMENT_STARTS


def public_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of module-level names, methods, class attributes and attributes set on self."""
    for owner in ast.walk(tree):
        for statement in owner.body if isinstance(owner, (ast.Module, ast.ClassDef)) else ():
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                yield statement.name, statement.lineno
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            yield from ((target.id, target.lineno) for target in targets if isinstance(target, ast.Name))
        if isinstance(owner, ast.Attribute) and isinstance(owner.ctx, ast.Store) and ast.unparse(owner.value) == "self":
            yield owner.attr, owner.lineno


def main() -> int:
    """Print the report and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", default=".", type=Path)
    parser.add_argument("--list", action="store_true", help="print every finding as file:line")
    parser.add_argument("--strict", action="store_true", help="exit 1 on class clashes and empty public names")
    parser.add_argument("--max-words", default=12, type=int, help="longest first sentence that counts as a fragment")
    parser.add_argument("--allow", action="append", default=[], help="class name that several files may define")
    options = parser.parse_args()

    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    words, findings = Counter(), []
    definitions = {kind: defaultdict(dict) for kind in KINDS[:3]}  # kind -> name -> {place: room}
    for room, path in source_files(options.root):
        place = path.relative_to(options.root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=place)
        texts = [(text, line) for text, line in docstrings(tree) if is_fragment(text, options.max_words)]
        report = [("fragments", line, text[:90]) for text, line in texts]
        names = dict.fromkeys([(path.stem, 1), *public_names(tree)])
        report += [("empty public names", line, name) for name, line in names if name in EMPTY]
        if not path.stem.startswith("__"):
            definitions["module repeats"][path.stem][place] = room
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                definitions["class clashes"][node.name].setdefault(place, room)
            elif isinstance(node, FUNCTIONS):
                empty = [(line, name) for name, line in local_names(node).items() if name in EMPTY]
                report += [("empty locals", line, name) for line, name in empty]
                words.update(name for _, name in empty)
        for name in (ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)):
            if name[:1].isupper() and not name.isupper():  # `Scores = tuple[...]` is an alias, `LIMIT = 3` is not
                definitions["alias clashes"][name].setdefault(place, room)
        for kind, line, text in sorted(report, key=lambda entry: entry[1]):
            counts[kind][room] += 1
            findings.append(f"{place}:{line}: {kind}: {text}")

    for name, places in definitions["alias clashes"].items():
        places |= definitions["class clashes"].get(name, {})
    repeats = {
        kind: {name: places for name, places in by_name.items() if len(places) > 1 and name not in options.allow}
        for kind, by_name in definitions.items()
    }
    for kind, by_name in repeats.items():
        counts[kind].update(room for places in by_name.values() for room in set(places.values()))
    totals = {kind: len(repeats[kind]) if kind in repeats else sum(counts[kind].values()) for kind in KINDS}
    print(f"{'':20}" + "".join(f"{room:>11}" for room in ROOMS) + f"{'all':>11}")
    for kind in KINDS:
        print(f"{kind:20}" + "".join(f"{counts[kind][room]:11}" for room in ROOMS) + f"{totals[kind]:11}")
    print("\nempty locals by word: " + ", ".join(f"{word} {amount}" for word, amount in words.most_common(12)))
    for kind, by_name in repeats.items():
        print(f"\n{kind}: {len(by_name)}")
        for name, places in sorted(by_name.items(), key=lambda entry: (-len(entry[1]), entry[0])):
            print(f"  {name:16}{len(places):3}  {' '.join([*places][:6])}{' ...' if len(places) > 6 else ''}")
    if options.list:
        print("\n" + "\n".join(findings))
    return int(options.strict and bool(repeats["class clashes"] or totals["empty public names"]))


if __name__ == "__main__":
    sys.exit(main())
