"""The folder of an index on disk: its manifest, and whether the index can be used.

Left out: the documents in it (`documents`), the engines' own files, and how an index is made (`building`).
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palaestra.errors import UsageError

FORMAT = 1
"""Version of the folder format; an index of another version is refused and must be built again."""
MANIFEST = "palaestra-index.json"
PROGRESS = "progress.json"
"""File that exists only while an index is being built."""


@dataclass(frozen=True, slots=True)
class IndexFolder:
    """The manifest of a finished index."""

    path: Path
    version: str
    """Unique name of the build."""
    documents: int
    sizes: dict[str, int]
    """Sizes of its files in bytes, by relative path."""
    corpus: str
    skipped: int
    """Rows that could not be read."""
    dense: dict[str, Any] | None = None
    """Settings with which its vectors were made; None if it has none."""
    format: int = FORMAT


def open_folder(path: str | Path, engine: str) -> IndexFolder:
    """Return the manifest of an index. If the index cannot be used, raise a UsageError that says what to do."""
    folder = Path(path).expanduser()
    build = f"palaestra index build CORPUS --to {path}"
    if not (folder / MANIFEST).is_file():
        if (folder / PROGRESS).is_file():
            raise UsageError(f"the index {path} is half written; the same `{build}` again goes on where it ended")
        if not folder.exists():
            raise UsageError(f"{path} does not exist; make one with `{build}`")
        beside = f"{str(path).rstrip('/')}-index"
        raise UsageError(
            f"{path} has no index; if it is a corpus, make one in a folder of its own with "
            f"`palaestra index build {path} --to {beside}`"
        )
    try:
        meta = json.loads((folder / MANIFEST).read_text("utf-8"))
        if meta["format"] != FORMAT:
            raise UsageError(
                f"the index {path} has the format {meta['format']!r}, and this palaestra reads {FORMAT}; delete it and "
                f"build it again: `{build}`"
            )
        index = IndexFolder(folder, **meta)
        wrong = [name for name, size in index.sizes.items() if _size(folder / name) != size]
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the index {path} is damaged ({MANIFEST}: {error}); delete it and build it again") from None
    if wrong:
        how = "has another size" if (folder / wrong[0]).is_file() else "is missing"
        raise UsageError(f"the index {path} is damaged: {wrong[0]} {how}; delete it and build it again")
    if engine == "dense" and index.dense is None:
        raise UsageError(f"the index {path} has no vectors; build it with a model: `{build} --dense MODEL`")
    return index


def refuse_links(folder: Path) -> None:
    """Raise UsageError if a folder contains a link, because files written through it would be outside the folder."""
    if link := next((path for path in folder.rglob("*") if path.is_symlink()), None):
        raise UsageError(f"{link} is a link, and an index is written inside its own folder; build it in a new one")


def close_folder(folder: IndexFolder) -> None:
    """Write the manifest of a finished index, with the sizes of its files."""
    files = files_of(folder.path)
    mode = (folder.path / "documents").stat().st_mode
    for file in files:  # tantivy makes some for its user alone, and others are to read the index too.
        file.chmod(mode)
    sizes = {str(file.relative_to(folder.path)): _size(file) for file in files}
    manifest = {name: value for name, value in asdict(folder).items() if name != "path"} | {"sizes": sizes}
    write_file(folder.path / MANIFEST, json.dumps(manifest, indent=1))


def write_file(path: Path, text: str) -> None:
    """Write a text file completely; if writing fails, the old file stays as it was."""
    unfinished = path.with_name(f"{path.name}.half")
    unfinished.write_text(text, "utf-8")
    os.replace(unfinished, path)


def files_of(path: Path) -> list[Path]:
    """Return the files of an index, without its manifest, its build progress and locks."""
    ignored = (MANIFEST, f"{MANIFEST}.half", PROGRESS, f"{PROGRESS}.half")
    return sorted(
        file for file in path.rglob("*") if file.is_file() and file.name not in ignored and file.suffix != ".lock"
    )


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else -1
