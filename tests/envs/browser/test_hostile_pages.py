"""Pages made to exhaust a reader: each comes to a page within a second or two, and none is kept whole."""

import time
import tracemalloc

import pytest

from palaestra.envs.browser.text.document import document_of

SIZE = 10_000_000
HOSTILE = {
    "100,000 nested tags": "<div>" * 100_000,
    "nested tags whose ends close nothing": "<div><table></div></table>" * 100_000,
    "a tag with 100,000 attributes": "<p " + " ".join(f"a{n}" for n in range(100_000)) + ">x",
    "attributes that look like tags": "<p " + " ".join(f"a{n}<" for n in range(100_000)) + ">x",
    "a table of a million cells": "<table>" + ("<tr>" + "<td>x" * 1000) * 1000,
    "a million options": "<select>" + "<option>x" * 1_000_000,
    "one line of 10 MB": "x" * SIZE,
    "10 MB of brackets": "[1:" * (SIZE // 3),
    "10 MB of open comments": "<!--" * (SIZE // 4),
    "scripts that never end": "<script>" + "</script" * (SIZE // 8),
    "10 MB of scripts": "<script>while(1);</script>" * (SIZE // 26),
    "labels around labels": "<label><input>" * 100_000,
    "formatting that must be closed again and again": "<b><i><a><p></b></i></a>" * 100_000,
    "links without end": "<a href=x>y" * 200_000,
}
SLOW = ("nested tags whose", "a table of", "a million options", "10 MB of b", "10 MB of s", "formatting")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.prove) if name.startswith(SLOW) else name for name in HOSTILE]
)
def test_a_hostile_page_is_read_in_bounded_time_and_size(name):
    begun = time.process_time()
    page = document_of(HOSTILE[name])
    assert time.process_time() - begun < 3, "it takes at most one on a quiet machine"
    assert sum(map(len, page.lines)) <= 2_500_000 and len(page.lines) <= 20_000 and len(page.numbered) <= 5_000


@pytest.mark.prove
def test_the_memory_of_a_hostile_page_is_bounded_and_it_is_not_kept():
    document_of("<p>warm")
    tracemalloc.start()
    for name in ("10 MB of open comments", "a table of a million cells", "a million options"):
        document_of(HOSTILE[name])
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 5e6 and most < 150e6


def test_a_large_honest_page_is_read_to_its_end_and_a_cut_one_says_so():
    script = "<script>for (i=0; i<n && i<m; i++) { x = '<b><div' }</script>"
    honest = "".join(
        f"<h2>Part {n}</h2>{script}<p class='a'>Some text <a href='/{n}'>of it</a>.</p>" for n in range(1000)
    )
    page = document_of(honest)
    assert page.note == "" and page.lines[-2:] == ("## Part 999", "Some text [1000:link of it].")
    assert "only the first 5000 of 500000" in document_of("<div>" * 100_000).note
