"""`palaestra index build | show | search`: make an index of a corpus on disk, show its contents, or search it by hand.

Left out: how it is made (`palaestra.envs.search.building`), and answering other machines (`palaestra serve search`).
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from palaestra.envs.search.building import Stand, build
from palaestra.envs.search.corpus import Columns
from palaestra.envs.search.dense import add_vectors
from palaestra.envs.search.embedding import Embedder
from palaestra.envs.search.folder import MANIFEST, IndexFolder, open_folder
from palaestra.envs.search.opening import open_index
from palaestra.envs.search.words import content_words, passage
from palaestra.errors import UsageError

_SHOWN_FAULTS = 5


@dataclass(frozen=True)
class IndexBuildOptions:
    """Make an index of a corpus. The same command again continues an interrupted build."""

    corpus: Annotated[Path, tyro.conf.Positional]
    """A .jsonl, .json, .csv or .parquet file, or a folder of those or of HTML and text files."""
    to: Path
    """The folder of the index, which must not exist yet."""
    columns: tyro.conf.OmitArgPrefixes[Columns] = field(default_factory=Columns)
    dense: str | None = None
    """Folder or hub name of an embedding model: search by meaning, in addition to words."""
    query_prefix: str = ""
    """Text that the model needs before a query: "query: " for e5."""
    passage_prefix: str = ""
    """Text that the model needs before a passage: "passage: " for e5."""
    device: str = "cpu"
    """Device of the model."""


@dataclass(frozen=True)
class IndexShowOptions:
    """Show the contents of an index."""

    path: Annotated[Path, tyro.conf.Positional]
    """Folder of the index."""


@dataclass(frozen=True)
class IndexSearchOptions:
    """Search an index by hand."""

    path: Annotated[str, tyro.conf.Positional]
    """Folder of the index, or the address of a server."""
    query: Annotated[str, tyro.conf.Positional]
    topn: int = 5
    """Number of results."""
    engine: Literal["embedded", "dense", "hybrid"] = "embedded"
    """Search by words, by meaning, or by both."""


def run(arguments: Sequence[str]) -> int:
    """Build, show or search an index."""
    kinds: dict[str, Callable[..., Any]] = {
        "build": IndexBuildOptions,
        "show": IndexShowOptions,
        "search": IndexSearchOptions,
    }
    options: Any = tyro.extras.subcommand_cli_from_dict(kinds, args=list(arguments), prog="palaestra index")
    if isinstance(options, IndexBuildOptions):
        _build(options)
    elif isinstance(options, IndexShowOptions):
        _show(open_folder(options.path, "embedded"))
    else:
        _search(options)
    return 0


def _build(options: IndexBuildOptions) -> None:
    faults = 0

    def fault(reason: str) -> None:
        nonlocal faults
        faults += 1
        if faults <= _SHOWN_FAULTS:
            print(f"left out: {reason}", file=sys.stderr)

    def report(stand: Stand, seconds: float) -> None:
        rate = f", {stand.rows / seconds:,.0f} rows/s" if seconds > 1 else ""
        print(f"{stand.documents:,} documents, {stand.skipped:,} left out, {seconds:.0f} s{rate}", file=sys.stderr)

    def embedded(done: int, of: int) -> None:
        print(f"{done:,} of {of:,} documents embedded", file=sys.stderr)

    if options.dense and (options.to / MANIFEST).exists():  # An earlier build ended while it embedded.
        folder = open_folder(options.to, "embedded")
    else:
        folder = build(options.corpus, options.to, columns=options.columns, report=report, report_fault=fault)
    if options.dense:
        embedder = Embedder(
            options.dense,
            query_prefix=options.query_prefix,
            passage_prefix=options.passage_prefix,
            device=options.device,
        )
        folder = add_vectors(options.to, embedder, embedded)
    if faults > _SHOWN_FAULTS:
        print(f"and {faults - _SHOWN_FAULTS:,} more rows were left out", file=sys.stderr)
    _show(folder)


def _show(folder: IndexFolder) -> None:
    size = sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file())
    print(f"{folder.path}: {folder.documents:,} documents, {size / 1e6:,.1f} MB")
    print(f"corpus: {folder.corpus}, {folder.skipped:,} rows left out")
    if folder.dense is not None:
        print(f"vectors: {folder.dense['dimensions']} dimensions, by {folder.dense['model']}")
    print(f"version: {folder.version}")


def _search(options: IndexSearchOptions) -> None:
    if options.topn < 1:
        raise UsageError(f"--topn is {options.topn}; expected at least 1")
    where = {"backend": options.engine, "path": options.path}
    index = open_index(options.path if options.path.startswith("http") else where)
    words = content_words(options.query)
    try:
        getattr(index, "check", lambda: None)()
        hits = asyncio.run(index.search_many([options.query], options.topn))[0]
        if not hits:
            raise UsageError("nothing was found; try other words")
        for hit in hits:
            snippet = " ".join(passage(hit.text, words, 300).split())
            print(f"{hit.id}  {hit.title}  ({hit.score:.2f})\n    {snippet}")
    finally:
        index.close()
