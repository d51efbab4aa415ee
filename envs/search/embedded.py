"""The embedded engine: BM25 by tantivy, in this process, on memory-mapped files. It needs no server and no model.

`palaestra index build` makes the files; `EmbeddedIndex.of` makes an index in memory. A query is only a list of words:
quotes, colons, brackets, AND and NOT have no meaning, so no query is invalid. Stop words are left out of queries, and
words are stemmed as English ones. A word in the title or in a heading (a line that begins with #) counts more. Left
out: building on disk (`building`), search by meaning (`dense`).
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from palaestra.envs.search.documents import Listed, Stored, hit_of
from palaestra.envs.search.folder import open_folder
from palaestra.envs.search.index import Document, Hit
from palaestra.envs.search.words import content_words, spaced
from palaestra.errors import Broken, MissingExtra, UsageError

_ANALYZER = "palaestra"
_MIN_HEAP_BYTES = 15_000_000
"""Smallest heap of tantivy's writer."""
_HEADING = re.compile(r"^#{1,6} +(\S.*)", re.MULTILINE)
_FIELDS = ("words", "headings")
_numbers = itertools.count(1)


class EmbeddedIndex:
    """An index that `palaestra index build` made. Any number of processes may read it."""

    waits = False
    version: str

    def __init__(self, path: str | Path) -> None:
        folder = open_folder(path, "embedded")
        tantivy = library()
        try:
            index = tantivy.Index.open(str(folder.path / "tantivy"))
            documents = Stored(folder.path)
            self._begin(index, documents, folder.version, (type(self), (str(path),)))
        except (OSError, ValueError) as error:
            raise UsageError(f"the index {path} is damaged ({error}); build it again") from None
        if self._searcher.num_docs != len(documents):
            raise UsageError(f"the index {path} is damaged: some of its documents are missing; build it again")

    @classmethod
    def of(cls, documents: Sequence[Document]) -> Self:
        """Return an index of these documents, in memory."""
        listing = Listed(documents)
        index = library().Index(schema())
        writer = writer_of(index, _MIN_HEAP_BYTES)
        for number, document in enumerate(documents):
            add(writer, number, document)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        new_index = cls.__new__(cls)
        new_index._begin(index, listing, f"memory-{next(_numbers)}", (cls.of, (documents,)))
        return new_index

    def _begin(self, index: Any, documents: Listed | Stored, version: str, source: tuple[Any, ...]) -> None:
        self.version, self.documents, self._source = version, documents, source
        self._tantivy, self._analyzer = library(), analyzer()
        self._searcher, self._schema = index.searcher(), index.schema

    def __len__(self) -> int:
        return len(self.documents)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments for pickle: another process opens the same files, or makes its own index in memory."""
        return self._source

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best hits of each query."""
        return [self.search(query, k) for query in queries]

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the best hits of one query, without awaiting anything."""
        words, documents = content_words(query), self.documents
        return [hit_of(documents[number], words, score) for number, score in self.ranked(words, k)]

    def ranked(self, words: Sequence[str], k: int) -> list[tuple[int, float]]:
        """Return the numbers of the best `k` documents for some words, each with its score."""
        query, should = self._tantivy.Query, self._tantivy.Occur.Should
        if not words or k < 1:
            return []
        try:
            terms = dict.fromkeys(self._analyzer.analyze(" ".join(words)))
            parts = [(should, query.term_query(self._schema, at, term, "freq")) for at in _FIELDS for term in terms]
            hits = self._searcher.search(query.boolean_query(parts), k, count=False).hits
            numbers: Any = self._searcher.fast_field_values("number", [place for _, place in hits])
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":  # Of tantivy's own.
                raise Broken(f"the index failed ({error}); build it again") from None
            raise
        return [(number, score) for number, (score, _) in zip(numbers, hits, strict=True)]

    async def get(self, id: str) -> Document:
        """Return a document by its id."""
        return self.documents.of_id(id)

    def close(self) -> None:
        """Do nothing: the files are closed when no object uses them any more."""


def library() -> Any:
    """Return the module tantivy, or raise MissingExtra."""
    try:
        import tantivy
    except ImportError as error:
        raise MissingExtra("tantivy", "search", "the embedded search engine") from error
    return tantivy


def schema() -> Any:
    """Return tantivy's schema: the fields with words, and the number of the document."""
    builder = library().SchemaBuilder()
    for field in _FIELDS:
        builder.add_text_field(field, tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_unsigned_field("number", fast=True)
    return builder.build()


def analyzer() -> Any:
    """Return the analyzer that turns a text into terms."""
    tantivy = library()
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for each_filter in (tantivy.Filter.remove_long(60), tantivy.Filter.lowercase(), tantivy.Filter.ascii_fold()):
        builder = builder.filter(each_filter)
    return builder.filter(tantivy.Filter.stemmer("english")).build()


def writer_of(index: Any, heap: int) -> Any:
    """Return a writer with one thread, which keeps the order of documents, and so the order of equal scores."""
    index.register_tokenizer(_ANALYZER, analyzer())
    return index.writer(heap, 1)


def add(writer: Any, number: int, document: Document) -> None:
    """Add a document to the index under this number."""
    record = library().Document()
    record.add_unsigned("number", number)
    title, text = spaced(document.title), spaced(document.text)
    record.add_text("words", text)
    record.add_text("words", title)
    record.add_text("headings", title)
    if "#" in text:
        record.add_text("headings", "\n".join(_HEADING.findall(text)))
    writer.add_document(record)
