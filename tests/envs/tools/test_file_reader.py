"""file_reader: what a file holds decides how it is read; no path leads out; a hostile file is an observation."""

import asyncio
import io
import json
import os
import time
import zipfile

import made_files
import numpy as np
import pytest

from palaestra.envs import Task
from palaestra.envs.files import reading
from palaestra.envs.files.limits import ReadLimits
from palaestra.envs.tools.file_reader import FileReader
from palaestra.errors import ToolError, UsageError

ENTITIES = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "ha"}">' for n in range(30))
LAUGHS = (
    f'<?xml version="1.0"?><!DOCTYPE a [{ENTITIES}<!ENTITY out SYSTEM "file:///etc/passwd">]><a>&a29;&out;</a>'.encode()
)

SMALL = ReadLimits(file_bytes=4 * 2**20, unpacked_bytes=2**21, chars=2**16)


def reader(files=(), folder=None, **settings):
    class Reader(FileReader):
        def files(self, task):
            return dict(files)

        def folder(self, task):
            return folder

    for name, value in settings.items():
        setattr(Reader, name, value)
    made = Reader()
    made.start(Task("q", "a"), np.random.default_rng(0))
    return made


def told(made, path, **arguments):
    """What the agent is told, be it an error."""
    try:
        return asyncio.run(made.file_reader(path, **arguments))
    except ToolError as error:
        return f"Error: {error}"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(made_files.pdf(), "[page 1]\ntext of page 1\n[page 2]\ntext of page 2", id="pdf"),
        pytest.param(made_files.docx(), "# Rivers\nTwo of them.\nMomu | 12 km", id="docx"),
        pytest.param(made_files.pptx(), "[slide 1]\nRivers\nMomu\nTila\n(notes) say more", id="pptx"),
        pytest.param(made_files.xlsx(), "[sheet Rivers]\n1: name | length\n7:  |  | far", id="xlsx"),
        pytest.param(b"name,length\nMomu,12\n", "name,length\nMomu,12", id="csv"),
        pytest.param(json.dumps({"k": "x" * 600, "n": 1}).encode(), "{\n" + ' "k": "' + "x", id="json"),
        pytest.param(b'{"a": 1}\n{"a": 2}\n', '{"a": 1}\n{"a": 2}', id="jsonl"),
        pytest.param(b"<r><a>1</a></r>", "<r><a>1</a></r>", id="xml"),
        pytest.param(
            b"<!doctype html><h1>R</h1><script>no()</script><p>one <b>two<table><tr><td>a<td>b</table>",
            "# R\none two\na | b",
            id="html",
        ),
        pytest.param(b"def f():\n    return 1\n", "def f():\n    return 1", id="py"),
        pytest.param("café ☕".encode("utf-16"), "café ☕", id="utf16"),
        pytest.param(b"caf\xe9", "(not UTF-8; read as cp1252, so some letters may be wrong)\ncafé", id="cp1252"),
        pytest.param(
            made_files.packed({"in/t.csv": b"1"}),
            "x.py is a zip; its members are read by these paths:\nx.py/in/t.csv (1 bytes)",
            id="zip",
        ),
    ],
)  # fmt: skip
def test_what_a_file_holds_decides_how_it_is_read_and_not_its_name(data, lines):
    assert told(reader({"x.py": data}), "x.py").startswith(lines)


def test_a_file_is_shown_in_parts_and_searched():
    made = reader({"a.txt": "\n".join(f"line {n}" for n in range(1, 2001)).encode()})
    shown = told(made, "a.txt")
    assert shown.startswith("lines 1-")
    assert shown.splitlines()[0].endswith(" of 2000")
    assert told(made, "a.txt", first_line=1990, last_line=1991) == "lines 1990-1991 of 2000\nline 1990\nline 1991"
    assert told(made, "a.txt", first_line=2001) == "Error: there is no line 2001; the lines are 1 to 2000"
    assert asyncio.run(made.find_in_file("a.txt", "LINE 77")).splitlines()[0] == "77: line 77"
    assert asyncio.run(made.list_files()) == "a.txt (18892 bytes)"


def test_members_of_archives_in_archives_are_read_and_their_names_lead_nowhere():
    inner = made_files.packed({"deep/t.txt": b"found", "../../out.txt": b"slipped", "/etc/passwd": b"mine"})
    made = reader({"a.zip": made_files.packed({"b.zip": inner})})
    assert told(made, "a.zip/b.zip/deep/t.txt") == told(made, "a.zip::b.zip::deep/t.txt") == "found"
    assert "../../out.txt" in told(made, "a.zip/b.zip")
    assert "leads out of the folder" in told(made, "a.zip/b.zip/../../out.txt")
    assert "no member 'etc/passwd'" in told(made, "a.zip/b.zip//etc/passwd")


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "link.txt", "way/secret.txt", "in/../../secret.txt",
                                  "a\0b", "", ".", "pipe", "x" * 5000, "\ud800", "in/none"])  # fmt: skip
def test_no_path_leads_out_of_the_folder(path, tmp_path):
    folder = tmp_path / "open"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a.txt").write_text("fine")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "way").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    made = reader(folder=folder)
    assert told(made, "in/a.txt") == "fine"
    assert asyncio.run(made.list_files()) == "in/a.txt (4 bytes)"
    assert told(made, path).startswith("Error: ")


def test_a_folder_that_is_none_is_told_before_an_episode(tmp_path):
    with pytest.raises(UsageError, match="which is no folder"):
        reader(folder=tmp_path / "none")


def hostile():
    bomb = made_files.packed({"zeros.txt": bytes(3 * 2**20)})
    lies = bytearray(made_files.packed({"a.txt": b"x" * 1000}))
    at = lies.rindex(b"PK\x01\x02")
    lies[at + 24 : at + 28] = (10).to_bytes(4, "little")  # it says that it unpacks to 10 bytes
    docx_bomb = made_files.changed(
        made_files.docx(), "word/document.xml", lambda text: text.replace(b"Two", b"A" * 3 * 2**20)
    )
    laughing = made_files.changed(
        made_files.docx(), "word/document.xml",
        lambda text: text.replace(b"?>", b"?>" + LAUGHS[LAUGHS.index(b"<!D") : LAUGHS.index(b"<a>")], 1).replace(
            b"Two of", b"&a29;&out;"
        ),
    )  # fmt: skip
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(3000):
            archive.writestr(f"{number}.txt", b"")
    nested = b"one"
    for number in range(6):
        nested = made_files.packed({f"{number}.zip" if number else "t.txt": nested})
    return {
        "a member that is larger than it may be": (bomb, "a/zeros.txt", "more than unpacked_bytes"),
        "a member that lies of its size": (bytes(lies), "a/a.txt", "cannot be unpacked (BadZipFile"),
        "an office file that unpacks to more": (docx_bomb, "a", "more than unpacked_bytes"),
        "archives without end": (nested, "a/5.zip/4.zip/3.zip/2.zip/1.zip/t.txt", "no deeper one is opened"),
        "more members than are named": (many.getvalue(), "a", "(cut here: members=1000"),
        "entities that are their square": (LAUGHS, "a", "&a29;&out;"),
        "entities in an office file": (laughing, "a", ""),
        "a sheet that claims all cells": (made_files.xlsx('"A1:XFD1048576"'), "a", "7:  |  | far\n--"),
        "a PDF that is cut off": (made_files.pdf()[:700], "a", ""),
        "a PDF that is nothing": (b"%PDF-1.7\n", "a", "is broken"),
        "a PDF with a password": (made_files.encrypted_pdf(), "a", "is encrypted"),
        "JSON of one line": (json.dumps([list(range(50_000))]).encode(), "a", "(cut here: chars=65536"),
        "JSON too deep": (b"[" * 200_000, "a", "[[[["),
        "a line without end": (b"x" * 3_000_000, "a", "xxxx"),
        "HTML that is deep": (b"<html>" + b"<div>" * 5_000 + b"deep", "a", "deep"),
        "bytes of no kind": (bytes(range(256)) * 50, "a", "holds bytes that are no text"),
        "a picture": (made_files.png(), "a", "it is png"),
        "a file that is too large": (bytes(5 * 2**20), "a", "more than file_bytes"),
        "nothing": (b"", "a", "(nothing)"),
    }


def test_a_hostile_file_is_an_observation_in_time_and_tells_nothing_of_ours():
    for name, (data, path, says) in hostile().items():
        begun = time.monotonic()
        made = reader({"a": data}, window_tokens=2**20, read_limits=SMALL)
        said = told(made, path)
        assert says in f"{said}\n--", name
        assert "root:" not in said, name
        assert len(said) < 2**18, name
        assert time.monotonic() - begun < reading.SECONDS + 60, name
        assert told(reader({"b": b"fine"}), "b") == "fine", name


@pytest.mark.prove
def test_a_file_that_takes_too_long_or_too_much_memory_is_told_and_the_next_one_is_read(monkeypatch):
    """The bound on the process itself, whatever a reader does."""
    monkeypatch.setattr(reading._processes, "seconds", 1.0)
    deep = b"<html>" + b"<div>" * 100_000  # Its parser takes time by the square.
    assert told(reader({"a": deep}), "a").startswith("Error: a cannot be read: it took more than")
    wide = made_files.changed(
        made_files.docx(), "word/document.xml", lambda text: text.replace(b"Two", b"A" * 300 * 2**20)
    )
    monkeypatch.setattr(reading._processes, "seconds", 60.0)
    made = reader({"wide": wide, "b": b"fine"}, read_limits=ReadLimits(unpacked_bytes=2**30))
    assert "Error: wide" in told(made, "wide")
    assert "[page 1]" in told(reader({"a": made_files.pdf(100_000)}), "a")
    assert told(made, "b") == "fine"


def test_a_file_that_changes_is_read_anew_and_one_that_does_not_is_not(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one")
    asked = []
    answered = reading._processes._answered
    monkeypatch.setattr(reading._processes, "_answered", lambda *given: asked.append(given) or answered(*given))
    made = reader(folder=tmp_path)
    assert [told(made, "a.txt") for _ in range(3)] == ["one"] * 3
    (tmp_path / "a.txt").write_text("two")
    assert told(made, "a.txt") == "two"
    assert len(asked) <= 2


def test_budgets_hold_and_branches_keep_them():
    made = reader({"a.txt": b"x"}, max_calls=2)
    told(made, "a.txt")
    kept = made.snapshot()
    told(made, "a.txt")
    assert "max_calls is 2" in told(made, "a.txt")
    made.restore(kept)
    assert told(made, "a.txt") == "x"
