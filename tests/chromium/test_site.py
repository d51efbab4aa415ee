"""The documentation site, built as `make docs` builds it: every link is followed, and every public name is on it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ("palaestra", "palaestra.formats", "palaestra.envs", "palaestra.agents", "palaestra.trainers")
READ_PAGE = """() => ({
    links: [...document.links].map((link) => link.href),
    places: [...document.querySelectorAll('[id]')].map((element) => element.id),
    broken: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
})"""

pytestmark = pytest.mark.chromium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path, looked: Any) -> None:
    waiting, pages, wanted = [(site / "index.html").as_uri()], {}, set()
    while waiting:
        address = waiting.pop()
        looked.page.goto(address)
        pages[address] = looked.page.evaluate(READ_PAGE)
        assert pages[address]["broken"] == [], address
        for link in pages[address]["links"]:
            target, _, place = link.partition("#")
            if link.startswith("file:"):
                wanted.add((address, target, unquote(place)))
                if target not in pages and target not in waiting:
                    assert Path(unquote(target.removeprefix("file://"))).is_file(), (address, link)
                    waiting.append(target)
    lost = [one for one in wanted if one[2] and one[2] not in pages[one[1]]["places"]]
    assert lost == [], "no such place on the page"
    written = {path.as_uri() for path in site.rglob("*.html")}
    lonely = {site / "search.html", site / "_modules" / "index.html"}  # Reached by a form, and not at all.
    assert written - set(pages) == {path.as_uri() for path in lonely}
    assert looked.faults == []


def test_every_public_name_is_in_the_reference_with_its_source(site: Path) -> None:
    pages = "".join(path.read_text("utf-8") for path in (site / "reference").glob("*.html"))
    for package in PUBLIC:
        for name in importlib.import_module(package).__all__:
            assert re.search(rf'id="palaestra[\w.]*\.{name}"', pages), f"{package}.{name}"
    assert 'href="../_modules/palaestra/envs/core/author.html#ToolEnv"' in pages


def test_a_search_finds_a_page_and_a_class(site: Path, looked: Any) -> None:
    for words, place in (("curriculum", "train.html"), ("StagedReward", "palaestra.envs.StagedReward")):
        looked.page.goto((site / "search.html").as_uri() + f"?q={words}")
        looked.until("document.querySelector('.search-summary')?.textContent.includes('finished')")
        assert place in looked.page.inner_html("#search-results")
