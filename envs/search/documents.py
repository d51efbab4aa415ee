"""The documents of an index on disk: written one after another, read by number or id from memory-mapped files.

The file `documents` holds the texts, `offsets` the position of each, `ids` a hash of each id, and `order` the numbers
of the documents, sorted by hash. Each document takes 24 bytes in addition to its text. All processes share the same
memory. Left out: finding documents (`embedded`, `dense`), and choosing one of several with one id (`building`).
"""

import mmap
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from palaestra.envs.search.index import Document, Hit
from palaestra.envs.search.words import passage
from palaestra.errors import Broken, ToolError, UsageError

Hashes = NDArray[np.uint64]
PASSAGE_CHARS = 1000
"""Maximum characters of a document in a hit."""
_BREAK = "\x1f"
"""Separator between the parts of a document. Ids, titles and addresses cannot contain it; a text may."""


def id_hash(id: str) -> int:
    """Return the 64-bit hash by which an id is looked up."""
    return int.from_bytes(blake2b(id.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def no_document(id: str) -> ToolError:
    """Return the error for an id that does not exist."""
    return ToolError(f"there is no document {id[:80]!r}; expected one that search has found")


def hit_of(document: Document, words: list[str], score: float) -> Hit:
    """Return a document as a hit, with the passage that contains most of the words."""
    text = passage(document.text, words, PASSAGE_CHARS)
    return Hit(document.id, document.title, text, score, document.url)


class Listed:
    """Documents in memory, read by number or id."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._numbers = {document.id: number for number, document in enumerate(documents)}
        if len(self._numbers) < len(documents):
            raise UsageError(f"{len(documents) - len(self._numbers)} documents have the id of another one")

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, number: int) -> Document:
        return self._documents[number]

    def of_id(self, id: str) -> Document:
        """Return the document with this id, or raise ToolError."""
        if id not in self._numbers:
            raise no_document(id)
        return self._documents[self._numbers[id]]


class Stored:
    """Documents of a finished index on disk, read by number or id."""

    def __init__(self, folder: Path) -> None:
        self._data = _mapped(folder / "documents")
        self._offsets = memoryview(_mapped(folder / "offsets")).cast("Q")  # Faster than an array, one at a time.
        self._ids = np.frombuffer(_mapped(folder / "ids"), np.uint64)
        self._order = np.frombuffer(_mapped(folder / "order"), np.int64)
        sound = len(self._offsets) == len(self._ids) + 1 == len(self._order) + 1
        if not sound or int(self._offsets[-1]) != len(self._data):
            raise UsageError(f"the index {folder} is damaged: its files do not fit one another; build it again")

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, number: int) -> Document:
        try:
            id, title, url, text = (
                self._data[self._offsets[number] : self._offsets[number + 1]].decode().split(_BREAK, 3)
            )
        except ValueError as error:
            raise Broken(f"document {number} of the index cannot be read ({error}); build it again") from None
        return Document(id, title, text, url)

    def of_id(self, id: str) -> Document:
        """Return the document with this id, or raise ToolError."""
        key = np.uint64(id_hash(id))
        at = int(np.searchsorted(self._ids, key, sorter=self._order))
        if at < len(self._ids) and self._ids[number := int(self._order[at])] == key:
            document = self[number]
            if document.id == id:
                return document
        raise no_document(id)


class Writing:
    """Writes documents to disk. It first removes all documents after the first `count`."""

    def __init__(self, folder: Path, count: int) -> None:
        self._files = {name: (folder / name).open("ab") for name in ("documents", "offsets", "ids")}
        self._folder = folder
        offsets = np.fromfile(folder / "offsets", np.uint64)
        self._end = int(offsets[count]) if len(offsets) else 0
        self._files["documents"].truncate(self._end)
        self._files["ids"].truncate(8 * count)
        if len(offsets):
            self._files["offsets"].truncate(8 * (count + 1))
        else:
            self._files["offsets"].write(bytes(8))
        self.hashes: Hashes = np.fromfile(folder / "ids", np.uint64)

    def add(self, document: Document, hashed: int) -> None:
        """Write a document. Its id, title and address must contain no control characters."""
        text = _BREAK.join((document.id, document.title, document.url, document.text)).encode()
        self._end += len(text)
        self._files["documents"].write(text)
        self._files["offsets"].write(self._end.to_bytes(8, "little"))
        self._files["ids"].write(hashed.to_bytes(8, "little"))

    def flush(self) -> None:
        """Flush the files."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def finish(self) -> None:
        """Close the files and write the file `order`."""
        self.close()
        hashes = np.fromfile(self._folder / "ids", np.uint64)
        np.argsort(hashes, kind="stable").astype(np.int64).tofile(self._folder / "order")


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
