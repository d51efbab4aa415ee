"""Search by meaning: texts become vectors of a local model, and faiss compares them.

Up to FLAT_VECTORS, a query is compared with every vector. More vectors are sorted into lists of similar vectors, with
one byte for each number, and only the nearest lists are searched. Queries of one call are embedded together, in a
thread. Left out: training models, and other measures of similarity.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.envs.search.documents import Stored, hit_of
from palaestra.envs.search.embedding import Embedder, Vectors
from palaestra.envs.search.folder import IndexFolder, close_folder, open_folder, refuse_links
from palaestra.envs.search.index import Document, Hit
from palaestra.envs.search.words import content_words
from palaestra.errors import MissingExtra, UsageError

FLAT_VECTORS = 100_000
_SAMPLE = 64
"""Number of sample vectors per list, from which the lists are learned."""
_ROWS = 1024
"""Number of documents that are embedded before their vectors are saved."""


class DenseIndex:
    """An index that `palaestra index build --dense MODEL` made, searched by its vectors."""

    waits = True
    batch = 64

    def __init__(self, path: str | Path, *, model: str = "", device: str = "cpu", probes: int = 32) -> None:
        """`model` is the path or name of the model, if it differs from the name in the index.

        `probes` is the number of lists to search, if the index has lists: more lists find better hits and take longer.
        """
        folder = open_folder(path, "dense")
        model_settings = dict(folder.dense or {})
        self.version = f"{folder.version} {probes}"
        self.dimensions = model_settings.pop("dimensions")
        self.embedder = Embedder(**(model_settings | {"device": device} | ({"model": model} if model else {})))
        self.documents = Stored(folder.path)
        faiss = library()
        try:
            self._vectors = faiss.read_index(str(folder.path / "vectors.faiss"), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise UsageError(f"the index {path} is damaged ({str(error)[:200]}); build it again") from None
        if self._vectors.ntotal != len(self.documents) or self._vectors.d != self.dimensions:
            raise UsageError(f"the index {path} is damaged: its vectors do not fit its documents; build it again")
        if hasattr(self._vectors, "nprobe"):
            self._vectors.nprobe = probes

    def check(self) -> None:
        """Load the model, and check that its vectors have as many numbers as those in the index."""
        self._search(["test"], 1)

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the nearest documents of each query."""
        return await asyncio.to_thread(self._search, list(queries), k)

    def _search(self, queries: list[str], k: int) -> list[list[Hit]]:
        if not queries or k < 1:
            return [[] for _ in queries]
        vectors = self.embedder.queries(queries)
        if vectors.shape[1] != self.dimensions:
            raise UsageError(
                f"the model {self.embedder.model!r} makes vectors of {vectors.shape[1]} numbers, and the index has "
                f"{self.dimensions}; it was built with another one"
            )
        scores, numbers = self._vectors.search(vectors, min(k, len(self.documents)))
        hits_by_query = []
        for query, ranked, row in zip(queries, numbers.tolist(), scores.tolist(), strict=True):
            words = content_words(query)
            pairs = [(number, score) for number, score in zip(ranked, row, strict=True) if number >= 0]
            hits_by_query.append([hit_of(self.documents[number], words, score) for number, score in pairs])
        return hits_by_query

    async def get(self, id: str) -> Document:
        """Return a document by its id."""
        return self.documents.of_id(id)

    def close(self) -> None:
        """Do nothing: the files are closed when no object uses them any more."""


def library() -> Any:
    """Return the module faiss, or raise MissingExtra."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("faiss-cpu", "dense", "dense retrieval") from error
    return faiss


def add_vectors(
    path: Path,
    embedder: Embedder,
    report: Callable[[int, int], None] = lambda done, count: None,
    flat: int = FLAT_VECTORS,
) -> IndexFolder:
    """Add vectors to an index of words; resume if an earlier call was interrupted.

    `report` is called with the number of embedded documents and the number of all. More than `flat` vectors are put
    into lists.
    """
    folder = open_folder(path, "embedded")
    if folder.dense is not None:
        raise UsageError(
            f"the index {path} has vectors already, by {folder.dense['model']}; delete it to build it again"
        )
    library()
    refuse_links(folder.path)
    documents, raw = Stored(folder.path), path / "vectors.raw"
    dimensions = embedder.passages(["size"]).shape[1]
    model_settings = {
        "model": embedder.model,
        "query_prefix": embedder.query_prefix,
        "passage_prefix": embedder.passage_prefix,
    }
    by = path / "vectors.by"
    settings = repr([*sorted(model_settings.items()), embedder.tokens])
    if not by.exists() or by.read_text() != settings:  # Vectors of another model are of no use.
        raw.unlink(missing_ok=True)
        by.write_text(settings)
    with raw.open("ab") as file:
        done = raw.stat().st_size // (4 * dimensions)
        file.truncate(done * 4 * dimensions)
        while done < len(documents):
            texts = [_text(documents[number], embedder) for number in range(done, min(done + _ROWS, len(documents)))]
            file.write(embedder.passages(texts).tobytes())
            file.flush()
            done += len(texts)
            report(done, len(documents))
    vectors = np.memmap(raw, np.float32, "r").reshape(-1, dimensions)
    _write(vectors, path / "vectors.faiss", flat)
    raw.unlink()
    by.unlink()
    folder = replace(folder, dense=model_settings | {"tokens": embedder.tokens, "dimensions": dimensions})
    close_folder(folder)
    return folder


def _text(document: Document, embedder: Embedder) -> str:
    """Return the part of a document that the model can read, so that the rest is never tokenized."""
    return f"{document.title}\n{document.text[: 20 * embedder.tokens]}"


def _write(vectors: Vectors, path: Path, flat: int) -> None:
    """Write the vectors as an index of faiss. Memory stays limited."""
    faiss, (count, dimensions) = library(), vectors.shape
    if count <= flat:
        index = faiss.IndexFlatIP(dimensions)
    else:
        lists = max(1, int(4 * sqrt(count)))
        sample = np.sort(np.random.default_rng(0).choice(count, min(count, _SAMPLE * lists), replace=False))
        coarse = faiss.IndexFlatIP(dimensions)
        index = faiss.IndexIVFScalarQuantizer(
            coarse, dimensions, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        index.train(np.ascontiguousarray(vectors[sample]))
    for first in range(0, count, 65_536):
        index.add(np.ascontiguousarray(vectors[first : first + 65_536]))
    unfinished = path.with_suffix(".half")
    faiss.write_index(index, str(unfinished))
    os.replace(unfinished, path)
