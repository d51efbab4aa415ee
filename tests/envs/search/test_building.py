"""Indexes on disk: what is read, what is told of bad rows, going on after a kill, and what is refused."""

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
import pytest

from palaestra.envs.search import building
from palaestra.envs.search.building import Stand, build
from palaestra.envs.search.corpus import Columns, page_text
from palaestra.envs.search.documents import Stored
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.folder import MANIFEST, PROGRESS
from palaestra.errors import Broken, ToolError, UsageError

ROWS = [
    {"id": f"r{number}", "title": f"Row {number}", "text": f"Row {number} of colour{number % 7}."}
    for number in range(50)
]


def corpus_of(folder, rows=ROWS, name="corpus.jsonl"):
    path = folder / name
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows))
    return path


def found(index, query, k=100):
    return [hit.id for hit in index.search(query, k)]


def test_bad_rows_are_told_with_their_lines_and_the_others_are_found(tmp_path):
    rows = [
        {"id": "a", "text": "apples"},
        b"{broken",
        {"id": "b", "text": ""},
        {"id": "a", "text": "apples again"},
        {"id": "c", "text": 7},
        {"id": "d", "words": "no text"},
        b'{"id": "e", "text": "half a pair \\ud800"}',
        {"id": "f\0\x1fg", "title": "T\x1ft\n2", "text": "nul \0 and \x1f apples " + "x" * 10},
        b'{"text": "' + b"y" * 17_000_000 + b'"}',
        {"text": "pears, without an id"},
        {"contents": '"Plums"\nA plum tree.', "id": 12},
    ]
    faults = []
    folder = build(corpus_of(tmp_path, rows), tmp_path / "index", report_fault=faults.append)
    assert (folder.documents, folder.skipped) == (4, 7) == (4, len(faults))
    expected = (
        "line 2", "line 3 has an empty text", "row 4 has the id 'a'", "line 5 has the number 7",
        "line 6 has no text: the columns are 'id', 'words'", "line 7", "line 9 is longer",
    )  # fmt: skip
    for fault, words in zip(faults, expected, strict=True):
        assert words in fault
    index = EmbeddedIndex(folder.path)
    assert found(index, "apple") == ["a", "f g"]
    assert found(index, "pear") == ["10"]
    plums = asyncio.run(index.get("12"))
    assert (plums.title, plums.text) == ("Plums", "A plum tree.")
    assert asyncio.run(index.get("f g")).text.startswith("nul \0 and \x1f apples")
    with pytest.raises(ToolError, match="there is no document"):
        asyncio.run(index.get("zz"))


def test_folders_and_tables_are_read_and_columns_can_be_named(tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "deep").mkdir(parents=True)
    (corpus / "deep" / "page.html").write_text(
        "<title>Bread &amp; butter</title><nav>menu</nav><script>var secret</script><h2>Baking¶</h2>"
        "<p>Flour <b>and</b> water.</p><pre>a\nb</pre>"
    )
    (corpus / "notes.md").write_text("# Cheese\nMade of milk.")
    (corpus / "empty.txt").write_text(" ")
    (corpus / ".hidden.txt").write_text("hidden")
    (corpus / "picture.png").write_bytes(b"\x89PNG")
    table = pyarrow.table({"key": ["k1", "k2"], "headline": ["One", "Two"], "story": ["About rain.", "About snow."]})
    pyarrow.parquet.write_table(table, corpus / "table.parquet")
    faults = []
    named = Columns(text="story", title="headline", id="key")
    folder = build(corpus, tmp_path / "index", columns=named, report_fault=faults.append)
    assert faults == ["empty.txt has no text"]
    index = EmbeddedIndex(folder.path)
    assert [found(index, word) for word in ("baking", "cheese", "snow", "menu", "secret")] == [
        ["deep/page.html"], ["notes.md"], ["k2"], [], [],
    ]  # fmt: skip
    page = asyncio.run(index.get("deep/page.html"))
    assert (page.title, page.text) == ("Bread & butter", "## Baking\nFlour and water.\na\nb")


def test_hostile_html_is_read_in_time():
    begun = time.process_time()
    for data in (
        b"<div>" * 100_000 + b"deep",
        b"\xff\xfe<p>x",
        b"<p>" + b"word " * 1_000_000,
        b"",
        b"<title>",
        b"\0" * 1000,
    ):
        page_text(data)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_build_that_was_cut_off_goes_on_and_loses_and_doubles_nothing(tmp_path, monkeypatch, at, when):
    """Cut off before a batch is written down, before tantivy's commit, and after it."""
    monkeypatch.setattr(building, "BATCH_DOCUMENTS", 20)
    corpus, index = corpus_of(tmp_path, [*ROWS, ROWS[3]]), tmp_path / "index"
    saves = []

    def cut_off(self, save=building._Building._save):
        if len(saves) == at:
            if when != "before":
                self.texts.flush()
                self._note([self.saved, self._stand()])
            if when == "after":
                self.writer.commit()
            raise KeyboardInterrupt
        saves.append(self.documents)
        save(self)

    with monkeypatch.context() as patch:
        patch.setattr(building._Building, "_save", cut_off)
        with pytest.raises(KeyboardInterrupt):
            build(corpus, index)
    gc.collect()  # The writer holds a lock until it goes, as it does when a process ends.
    with pytest.raises(UsageError, match="half written; the same"):
        EmbeddedIndex(index)
    stands: list[Stand] = []
    folder = build(corpus, index, report=lambda stand, seconds: stands.append(stand))
    assert (folder.documents, folder.skipped) == (50, 1)
    made = EmbeddedIndex(index)
    assert sorted(found(made, "row")) == sorted(row["id"] for row in ROWS)
    assert asyncio.run(made.get("r49")).text == "Row 49 of colour0."


@pytest.mark.prove
def test_a_killed_process_leaves_what_the_next_one_goes_on_with(tmp_path):
    corpus = corpus_of(
        tmp_path, [{"id": str(number), "text": f"number {number} " + "filler " * 50} for number in range(8000)]
    )
    script = (
        "import sys; from palaestra.envs.search import building; building.BATCH_DOCUMENTS = 300; "
        "building.build(sys.argv[1], sys.argv[2])"
    )
    child = subprocess.Popen([sys.executable, "-c", script, corpus, tmp_path / "index"])
    progress, until = tmp_path / "index" / PROGRESS, time.monotonic() + 60

    def documents():
        try:
            return json.loads(progress.read_text())["stands"][-1]["documents"]
        except (FileNotFoundError, IndexError):
            return 0

    while documents() < 900:
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert documents() >= 900
    assert build(corpus, tmp_path / "index").documents == 8000
    index = EmbeddedIndex(tmp_path / "index")
    assert found(index, "7999", 2) == ["7999"]
    assert len(index.documents) == 8000


def test_what_cannot_be_used_is_refused_with_what_to_do(tmp_path):
    whole = tmp_path / "whole"
    build(corpus_of(tmp_path), whole)
    said = json.loads((whole / MANIFEST).read_text())

    def spoilt(name, spoil):
        copy = tmp_path / name
        shutil.copytree(whole, copy)
        spoil(copy)
        return copy

    other = spoilt("other", lambda copy: (copy / MANIFEST).write_text(json.dumps(said | {"format": 99})))
    short = spoilt("short", lambda copy: os.truncate(copy / "documents", 100))
    gone = spoilt("gone", lambda copy: (copy / "order").unlink())
    garbled = spoilt("garbled", lambda copy: (copy / "tantivy" / "meta.json").write_bytes(
        b"x" * said["sizes"]["tantivy/meta.json"]))  # fmt: skip
    strange = spoilt("strange", lambda copy: (copy / MANIFEST).write_text("[]"))
    for path, words in {
        tmp_path / "none": "does not exist; make one with `palaestra index build", other: "has the format 99",
        short: "documents has another size", gone: "order is missing", garbled: "is damaged",
        strange: "is damaged", tmp_path: f"has no index.*index build {tmp_path} --to {tmp_path}-index`",
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match=words):
            EmbeddedIndex(path)
    for corpus, to, words in (
        (tmp_path / "corpus.jsonl", whole, "has an index already"),
        (tmp_path / "no.jsonl", tmp_path / "new", "does not exist"),
        (whole, whole, "is in the corpus, which the index would be a part of; take a folder outside"),
        (tmp_path, tmp_path / "inside" / "index", "is in the corpus"),
        (whole / "tantivy", tmp_path / "new", "no file that can be read|no document could be read"),
        (
            corpus_of(tmp_path, [{"x": 1}] * 2000, "bad.jsonl"),
            tmp_path / "new2",
            "no document could be read.*line 1 has no text",
        ),
        (tmp_path / "corpus.jsonl", tmp_path, "is there and is no index"),
    ):
        with pytest.raises(UsageError, match=words):
            build(corpus, to)


def test_an_index_whose_files_go_wrong_while_it_is_open_fails_as_infrastructure(tmp_path):
    folder = build(corpus_of(tmp_path), tmp_path / "index").path
    index = EmbeddedIndex(folder)
    shutil.rmtree(folder)
    assert "r7" in found(index, "colour0")  # What is open stays readable.
    index.documents._offsets = memoryview(bytes(8 * 51)).cast("Q")
    with pytest.raises(Broken, match="build it again"):
        index.search("colour0", 3)


def test_ideographs_and_accents_are_found(tmp_path):
    rows = [
        {"id": "zh", "text": "东京是日本的首都。"},
        {"id": "fr", "text": "Café à Orléans"},
        {"id": "n", "text": "else"},
    ]
    index = EmbeddedIndex(build(corpus_of(tmp_path, rows), tmp_path / "index").path)
    assert found(index, "首都")[:1] == ["zh"]
    assert found(index, "cafe orleans") == ["fr"]
    assert Stored(tmp_path / "index").of_id("fr").text == "Café à Orléans"


def test_a_query_of_any_size_is_answered_at_once(tmp_path):
    index = EmbeddedIndex(build(corpus_of(tmp_path), tmp_path / "index").path)
    begun = time.process_time()
    assert found(index, "colour3 " + "word{} " * 100_000, 1) == ["r3"]
    assert time.process_time() - begun < 3
    assert index.search("row", 0) == [] == index.search("", 5)


def test_a_build_goes_on_in_no_folder_with_links(tmp_path, monkeypatch):
    corpus, precious = corpus_of(tmp_path), tmp_path / "precious"
    precious.write_text("mine")
    monkeypatch.setattr(building, "close_folder", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build(corpus, tmp_path / "index")
    (tmp_path / "index" / "offsets").unlink()
    (tmp_path / "index" / "offsets").symlink_to(precious)
    with pytest.raises(UsageError, match="offsets is a link"):
        build(corpus, tmp_path / "index")
    assert precious.read_text() == "mine"
