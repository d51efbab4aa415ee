"""Make an index on disk from a corpus. A build that was killed resumes from the last progress that it saved.

Documents are written in batches: first their texts, then tantivy's entries, whose count shows which batches are
complete. Memory is limited to one batch, tantivy's heap, and 8 bytes for each id. Of several documents with one id,
only the first is kept. Left out: changing a complete index; build another one instead.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from palaestra.envs.search.corpus import Columns, InvalidDocument, read_corpus
from palaestra.envs.search.documents import Writing, id_hash
from palaestra.envs.search.embedded import add, library, schema, writer_of
from palaestra.envs.search.folder import FORMAT, MANIFEST, PROGRESS, IndexFolder, close_folder, refuse_links, write_file
from palaestra.envs.search.index import Document
from palaestra.errors import UsageError

BATCH_DOCUMENTS = 100_000
BATCH_CHARS = 100_000_000
HEAP_BYTES = 256 * 2**20
"""Heap of tantivy's writer, in bytes."""
_MAX_BAD_ROWS = 1000
"""Rows without any document after which the corpus is not read further."""
_REPORT_SECONDS = 2.0


@dataclass(frozen=True)
class Stand:
    """The progress of a build."""

    documents: int = 0
    rows: int = 0
    """Rows of the corpus read so far, including the skipped ones."""
    skipped: int = 0


def build(
    corpus: str | Path,
    to: str | Path,
    *,
    columns: Columns = Columns(),  # noqa: B008  (frozen)
    report: Callable[[Stand, float], None] = lambda stand, seconds: None,
    report_fault: Callable[[str], None] = lambda text: None,
) -> IndexFolder:
    """Index a corpus in the folder `to`, and return the finished index.

    `report` is called with the progress and the elapsed seconds every few seconds, `report_fault` with the reason for
    each row that is left out.
    """
    folder, source = Path(to).expanduser(), Path(corpus).expanduser()
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{to} is in the corpus, which the index would be a part of; take a folder outside {corpus}")
    settings = {"format": FORMAT, "corpus": str(source.absolute()), "columns": asdict(columns)}
    rows = read_corpus(source, columns)
    if not source.exists():
        next(rows)  # It raises what is wrong.
    stands = _begun(folder, settings)
    tantivy = library()
    (folder / "tantivy").mkdir(parents=True, exist_ok=True)
    try:
        index = tantivy.Index(schema(), str(folder / "tantivy"))
        writer = writer_of(index, HEAP_BYTES)
        document_count = index.searcher().num_docs
    except (ValueError, OSError) as error:
        raise UsageError(f"{to} cannot be written ({error}); is another build at work on it?") from None
    stand = next((other for other in reversed(stands) if other.documents == document_count), None)
    if stand is None:
        raise UsageError(f"the half-written index {to} is damaged; delete it and build it again")
    _Building(folder, settings, index, writer, stand, report, report_fault).run(rows)
    done = _stands(folder)[-1]
    result = IndexFolder(folder, uuid4().hex, done.documents, {}, settings["corpus"], done.skipped)  # type: ignore[arg-type]
    close_folder(result)
    (folder / PROGRESS).unlink()
    return result


def _begun(folder: Path, settings: dict[str, Any]) -> list[Stand]:
    """Return the saved progress of an earlier build with the same settings, or no progress if the folder is empty."""
    if (folder / MANIFEST).exists():
        raise UsageError(f"{folder} has an index already; delete it to build it again, or take another folder")
    if (folder / PROGRESS).exists():
        refuse_links(folder)
        try:
            earlier = json.loads((folder / PROGRESS).read_text("utf-8"))
            same = {name: earlier[name] for name in settings} == settings
            stands = _stands(folder)
        except (OSError, ValueError, TypeError, KeyError):
            raise UsageError(f"{folder / PROGRESS} cannot be read; delete {folder} and build it again") from None
        if not same:
            other = f"from {earlier['corpus']} with other settings"
            raise UsageError(f"{folder} is half written, {other}; delete it, or take another folder")
        return stands
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and is no index; take a new folder")
    return [Stand()]


def _stands(folder: Path) -> list[Stand]:
    return [Stand(**entry) for entry in json.loads((folder / PROGRESS).read_text("utf-8"))["stands"]]


class _Building:
    """One build, from its saved progress to its end."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], index: Any, writer: Any, stand: Stand,
        report: Callable[[Stand, float], None], report_fault: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.settings, self.index, self.writer = folder, settings, index, writer
        self.report, self.report_fault = report, report_fault
        self.saved = stand
        self.documents, self.rows, self.skipped, self.chars = stand.documents, stand.rows, stand.skipped, 0
        self.texts = Writing(folder, stand.documents)
        self.earlier = np.sort(self.texts.hashes)
        """Hashes of the ids of earlier batches, sorted."""
        self.new: set[int] = set()
        """Hashes of the ids of the current batch."""
        self._note([stand])

    def run(self, rows: Iterator[Document | InvalidDocument]) -> None:
        """Index all remaining rows."""
        try:
            self._run(rows)
        finally:
            self.texts.close()
            self.writer = None  # It holds a lock until it goes.

    def _run(self, rows: Iterator[Document | InvalidDocument]) -> None:
        began = reported_at = time.monotonic()
        first = ""
        for row in islice(rows, self.saved.rows, None):
            self.rows += 1
            reason = str(row) if isinstance(row, InvalidDocument) else self._add(row)
            if reason:
                first = first or reason
                self.skipped += 1
                self.report_fault(reason)
                if not self.documents and self.rows >= _MAX_BAD_ROWS:
                    break
            if len(self.new) >= BATCH_DOCUMENTS or self.chars >= BATCH_CHARS:
                self._save()
            if (now := time.monotonic()) - reported_at > _REPORT_SECONDS:
                reported_at = now
                self.report(self._stand(), now - began)
        if not self.documents:
            shutil.rmtree(self.folder)
            raise UsageError(f"no document could be read from {self.settings['corpus']}: {first or 'it is empty'}")
        self._save()
        self.writer.wait_merging_threads()
        self.texts.finish()
        self.report(self._stand(), time.monotonic() - began)

    def _add(self, document: Document) -> str:
        """Write a document, unless its id was used before. Return the reason for leaving it out, or ""."""
        hashed = id_hash(document.id)
        key = np.uint64(hashed)
        at = int(np.searchsorted(self.earlier, key))
        if hashed in self.new or (at < len(self.earlier) and self.earlier[at] == key):
            return f"row {self.rows} has the id {document.id[:80]!r} of an earlier one"
        self.new.add(hashed)
        self.texts.add(document, hashed)
        add(self.writer, self.documents, document)
        self.documents += 1
        self.chars += len(document.text)
        return ""

    def _stand(self) -> Stand:
        return Stand(self.documents, self.rows, self.skipped)

    def _save(self) -> None:
        """Save the progress, then commit. After a crash, tantivy's count of documents shows which progress is true."""
        self.texts.flush()
        stand = self._stand()
        self._note([self.saved, stand])
        try:
            self.writer.commit()
        except (ValueError, OSError) as error:
            raise UsageError(f"the index could not be written ({error}); the same command resumes it") from None
        self.saved, self.chars = stand, 0
        self.earlier = np.sort(np.concatenate([self.earlier, np.fromiter(self.new, np.uint64, len(self.new))]))
        self.new = set()

    def _note(self, stands: list[Stand]) -> None:
        progress = self.settings | {"stands": [asdict(stand) for stand in stands]}
        write_file(self.folder / PROGRESS, json.dumps(progress))
