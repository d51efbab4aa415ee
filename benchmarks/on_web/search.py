"""Measure the cost of a search through the tool, and whether it finds known pages: part of `make bench-web`.

Passages are made of words with Zipf's distribution. Each query has rare words of one passage; no two are alike, and no
cache is used. Each step runs in a separate process, whose CPU time and memory are reported beside the wall time. Known
items are the headings of Debian's python3-doc: each must bring its page among the first ten results. Left out: peers'
engines (the search page names the measurements by which this one was chosen).
"""

import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from peers.findings import target

from palaestra.envs.core.calls import Prepared, prepare
from palaestra.envs.search.building import build
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.remembered import Remembered
from palaestra.envs.tools.search import Search
from palaestra.episode import Call, Status, Task
from palaestra.formats import ParsedCall

WORDS, EXPONENT, LENGTH = 300_000, 1.05, 100
"""Size of the vocabulary, exponent of its distribution, and words per passage."""
COMMON = 100
"""Number of the most frequent words, which no query contains."""
QUERIES = 4000
DOCUMENTATION = "python3-doc"
P50_MS, P99_MS, PER_SECOND = 0.4, 8.0, 2500
"""Targets at 100,000 passages."""
P50_MS_MILLION = 1.5
_TASK, _RNG = Task(""), np.random.default_rng(0)
FOUND = 0.9
"""Smallest share of headings whose page is among the first ten results."""


def measure(
    sizes: tuple[int, ...] = (100_000, 1_000_000), queries: int = QUERIES
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the figures by number of passages, those of known items, and the targets."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            corpus, index = Path(folder) / f"{size}.jsonl", Path(folder) / f"{size}"
            titles = _apart(_write, corpus, size, queries)["queries"]
            made = _apart(_build, corpus, index)
            corpus.unlink()
            made["disk_mb"] = sum(file.stat().st_size for file in index.rglob("*") if file.is_file()) / 1e6
            figures[f"{size:,}"] = {"build": made, "ask": _apart(_ask, index, titles)}
        figures["known items"] = _apart(known_items, Path(folder))
    return figures, list(targets(figures))


def targets(figures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each figure with its target."""
    small, large = (figures.get(size, {}).get("ask", {}) for size in ("100,000", "1,000,000"))
    yield target("search, 100,000 passages: p50 ms", small.get("p50_ms"), most=P50_MS)
    yield target("search, 100,000 passages: p99 ms", small.get("p99_ms"), most=P99_MS)
    yield target("search, 100,000 passages: queries a CPU second", small.get("per_cpu_second"), least=PER_SECOND)
    yield target("search, 1,000,000 passages: p50 ms", large.get("p50_ms"), most=P50_MS_MILLION)
    yield target("known items: pages among the first ten", figures["known items"].get("found"), least=FOUND)


def _apart(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return the result of a function in a new process, with that process's memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        figures: dict[str, Any] = pool.submit(_weighed, work, arguments).result()
        return figures


def _weighed(work: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> dict[str, Any]:
    begun, cpu = time.perf_counter(), time.process_time()
    figures = work(*arguments)
    spent = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
    return spent | figures | {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def word(number: int) -> str:
    """Return a pronounceable word, a different one for each number."""
    letters, number = "", number + 37
    while number:
        number, syllable = divmod(number, 85)
        letters += "bcdfghjklmnprstvz"[syllable // 5] + "aeiou"[syllable % 5]
    return letters


def _write(corpus: Path, size: int, queries: int) -> dict[str, Any]:
    """Write passages to a file; return queries for some of them."""
    rng = np.random.default_rng(0)
    words = np.array([word(number) for number in range(WORDS)], object)
    share = 1 / np.arange(1, WORDS + 1) ** EXPONENT
    bounds = np.cumsum(share / share.sum())
    titles: dict[str, str] = {}
    wanted = set(rng.choice(size, min(queries, size), replace=False).tolist())
    with corpus.open("w") as file:
        for first in range(0, size, 10_000):
            rows = np.searchsorted(bounds, rng.random((min(10_000, size - first), LENGTH))).clip(0, WORDS - 1)
            for number, row in enumerate(rows, first):
                file.write(json.dumps({"id": f"p{number}", "title": f"Passage {number}", "text": " ".join(words[row])}))
                file.write("\n")
                rare = row[row >= COMMON]
                if number in wanted and len(rare) >= 5:
                    titles[" ".join(words[rng.choice(rare, 5, replace=False)])] = f"Passage {number}"
    return {"queries": titles}


def _build(corpus: Path, index: Path) -> dict[str, Any]:
    return {"documents": build(corpus, index).documents}


def _ask(index: Path, titles: dict[str, str]) -> dict[str, Any]:
    """Run each query once as a call of the tool: check the arguments, run it in place, and render the result."""
    kit = Search(Remembered(EmbeddedIndex(index), entries=0))
    for query in list(titles)[:100]:
        called(kit, query, 10)  # What is read for the first time comes from the disk.
    seconds, hits, cpu, begun = [], 0, time.process_time(), time.perf_counter()
    for query, title in titles.items():
        start = time.perf_counter()
        shown = called(kit, query, 10)
        seconds.append(time.perf_counter() - start)
        hits += title in shown
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    p50, p99 = (np.percentile(seconds, [50, 99]) * 1000).tolist()
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "cpu_ms": cpu / len(titles) * 1000,
        "per_second": len(titles) / wall,
        "per_cpu_second": len(titles) / cpu,
        "passage_found": hits / len(titles),
    }


def called(kit: Search, query: str, topn: int) -> str:
    """Make a call in a new episode."""
    kit.start(_TASK, _RNG)
    call: Call | Prepared = prepare(ParsedCall("search", {"query": query, "topn": topn}), kit.tools, {}, kit)
    assert isinstance(call, Call) and call.status is Status.OK, call
    return call.text


# Known items


def known_items(folder: Path) -> dict[str, Any]:
    """Search for the headings of a documentation package by their words. Return the reason if the package cannot be
    fetched.
    """
    if reason := fetch(folder):
        return {"missing": reason}
    root = max(folder.rglob("html"), key=lambda one: len(list(one.glob("**/*.html"))))
    build(root, folder / "known")
    kit = Search(Remembered(EmbeddedIndex(folder / "known"), entries=0))
    pages = headings_of(root)
    met = 0
    for heading, gold in pages.items():
        called(kit, heading, 10)
        met += not gold.isdisjoint(kit.final()["search"]["found"])
    return {"found": met / len(pages), "headings": len(pages), "pages": len(set().union(*pages.values()))}


def headings_of(root: Path) -> dict[str, set[str]]:
    """Return every heading in the body of a page, with the pages that contain it."""
    from selectolax.lexbor import LexborHTMLParser

    pages_by_heading: dict[str, set[str]] = {}
    for page in sorted(root.rglob("*.html")):
        tree = LexborHTMLParser(page.read_bytes())
        for node in tree.css(", ".join(f"div.body h{level}" for level in range(1, 5))):
            if heading := " ".join(node.text().removesuffix("¶").split()):
                pages_by_heading.setdefault(heading, set()).add(page.relative_to(root).as_posix())
    return pages_by_heading


def fetch(folder: Path) -> str:
    """Unpack the documentation into the folder. Return the reason if that is impossible, otherwise ""."""
    try:
        needed = _run(["apt-cache", "depends", "--important", DOCUMENTATION], folder)
        packages = [DOCUMENTATION, *(line.split()[-1] for line in needed.splitlines() if "Depends:" in line)]
        _run(["apt-get", "download", *packages], folder)
        for package in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(folder / "documentation")], folder)
    except (OSError, subprocess.SubprocessError) as error:
        message = getattr(error, "stderr", None) or str(error).encode()
        return f"{DOCUMENTATION} could not be fetched with apt-get: {message.decode('utf-8', 'replace').strip()[-200:]}"
    return ""


def _run(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300).stdout.decode()
