#!/usr/bin/env python3
"""Lines by room, circles of imports and the longest files of a checkout of palaestra: house.py [--strict] [FOLDER]

Imports under TYPE_CHECKING and inside functions count too, of files and of sub-packages (two levels below the room).
An import of a package's face (`from palaestra.envs import tool`) is followed to the file that defines the name, where
the face only hands it on. With --strict the exit status is 1 where there is a circle.
"""

import ast
import sys
from pathlib import Path

ROOMS = {
    "palaestra": "palaestra",
    "palaestra.envs": "envs",
    "palaestra.agents": "agents",
    "palaestra.trainers": "trainers",
}


def modules(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package, folder in ROOMS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).parts
            if package == "palaestra" and parts[0] in ("envs", "agents", "trainers", "sandbox_images"):
                continue
            names = [*parts[:-1], *([] if parts[-1] == "__init__.py" else [parts[-1][:-3]])]
            found[".".join([package, *names])] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[tuple[str, str]]:
    """Return (module, name) of everything that a file takes from `known`; the name is "" for a module itself."""
    tree, taken = ast.parse(path.read_text(encoding="utf-8")), set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            taken |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                taken.add((whole, "") if whole in known else (base, alias.name))
    return {(module, alias) for module, alias in taken if module in known}


def origin(module: str, name: str, faces: dict[str, set[tuple[str, str]]]) -> str:
    """Return the module that defines a name: where a package's face only hands it on, the one it comes from."""
    for other, handed_on in faces.get(module, ()):
        if handed_on == name != "":
            return origin(other, name, faces)
    return module


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected parts of more than one node (Tarjan, without recursion)."""
    index, low, on, stack, out = {}, {}, set(), [], []
    for start in graph:
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on.add(start)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in graph:
                    continue
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on.add(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in on:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part = []
                    while True:
                        top = stack.pop()
                        on.discard(top)
                        part.append(top)
                        if top == node:
                            break
                    if len(part) > 1:
                        out.append(sorted(part))
    return out


def room(name: str) -> str:
    """`palaestra.envs.core.tool` -> `palaestra.envs.core`; files directly in a room stand for themselves."""
    parts = name.split(".")
    depth = 3 if name.startswith(("palaestra.envs", "palaestra.agents", "palaestra.trainers")) else 2
    return ".".join(parts[:depth])


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--strict"]
    root = Path(words[0] if words else ".")
    known = modules(root)
    taken = {name: imports(name, path, known) for name, path in known.items()}
    faces = {name: taken[name] for name, path in known.items() if path.name == "__init__.py"}
    graph = {
        name: {origin(module, alias, faces) for module, alias in pairs} - {*faces, name}
        for name, pairs in taken.items()
        if name not in faces
    }
    files = circles(graph)
    between: dict[str, set[str]] = {}
    for name, others in graph.items():
        between.setdefault(room(name), set()).update({room(other) for other in others} - {room(name)})
    rooms = circles(between)
    total = 0
    for _package, folder in ROOMS.items():
        paths = [path for name, path in known.items() if (root / folder) in path.parents]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
        total += lines
        print(f"{folder:<10} {len(paths):4d} files {lines:6,d} lines")
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "tests").rglob("*.py"))
    print(f"{'product':<10} {total:17,d} lines   tests {tests:,d} lines")
    longest = sorted(
        ((len(path.read_text(encoding="utf-8").splitlines()), path) for path in known.values()), reverse=True
    )[:6]
    print("longest    " + ", ".join(f"{path.relative_to(root)} {count}" for count, path in longest))
    print(f"circles    {len(files)} of files, {len(rooms)} of rooms")
    for part in files + rooms:
        print("  " + " <-> ".join(part))
    return int("--strict" in sys.argv and bool(files or rooms))


if __name__ == "__main__":
    sys.exit(main())
