"""Write files and folders atomically: complete or not at all, also after a kill, a power cut, or on a full disk.

Unfinished files and folders end in `.part`. A failed write raises a TrainingHalted with the path and the reason.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from palaestra.errors import PalaestraError, TrainingHalted, UsageError

PART = ".part"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write. It becomes `path` when the block ends; if the block fails, `path` stays as it was."""
    unfinished = path.with_name(path.name + PART)
    try:
        unfinished.unlink(missing_ok=True)  # In a shared folder this could be a symbolic link to another file.
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_folder(path.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text to a file, which is replaced if it exists. If writing fails, the old file stays as it was."""
    with written(path), whole_file(path) as file:
        file.write(text.encode("utf-8"))


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, and wait until it is on disk."""
    with written(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill. It becomes `path` when the block ends, and is removed if the block fails."""
    unfinished = path.with_name(path.name + PART)
    with written(path):
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            yield unfinished
            _sync_tree(unfinished)
            remove_folder(path)
            os.replace(unfinished, path)
            sync_folder(path.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def remove_folder(path: Path) -> None:
    """Rename a folder, then remove it: if the process is killed meanwhile, no incomplete folder has the old name."""
    if path.is_dir():
        doomed = path.with_name(path.name + ".old" + PART)
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path, names: Iterable[str] = ("*",)) -> None:
    """Remove the unfinished files and folders of these names that a killed process left."""
    for name in names:
        for path in (*folder.glob(name + PART), *folder.glob(name + ".old" + PART)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn an error of the block into a `TrainingHalted` that names the path; a `PalaestraError` stays as it is."""
    try:
        yield
    except PalaestraError:
        raise
    except Exception as error:  # Libraries that write models report a full disk by their own error classes.
        reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
        raise TrainingHalted(f"{path} could not be written: {reason}") from error


def require_no_links(folder: Path, below: Iterable[str] = ()) -> None:
    """Raise `UsageError` for a symbolic link in a folder or in these subfolders, because writing through it could
    change files outside the folder.
    """
    for place in (folder, *(folder / name for name in below)):
        if link := next((path for path in place.glob("*") if path.is_symlink()), None):
            raise UsageError(
                f"{link} is a link to {os.readlink(link)!r}, and a run is written inside its own folder alone; put "
                "what it leads to in its place, or choose another folder with --run"
            )


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk, as `os.fsync` does for a file's content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(folder: Path) -> None:
    for directory, _, names in os.walk(folder):
        for name in names:
            with (Path(directory) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(directory))
