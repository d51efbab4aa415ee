"""The README is for the first hour: short, in a newcomer's order, and what it shows is what runs."""

import re
from pathlib import Path

import pytest
from pages import ROOT, Reader, blocks

README = ROOT / "README.md"
LONGEST = 220


@pytest.mark.prove  # It trains, which takes half a minute.
def test_everything_it_shows_runs_as_it_stands(tmp_path: Path, shared_runs: Path) -> None:
    reader = Reader(tmp_path, shared_runs)
    reader.follow(README)
    assert (shared_runs / "first" / "model" / "model.safetensors").exists()
    assert (shared_runs / "first" / "view.html").exists()


def test_its_environment_is_short() -> None:
    (example,) = (block.text for block in blocks(README.read_text("utf-8")) if block.name == "multiplication.py")
    body = example.split("class ")[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 14


def test_it_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= LONGEST


def test_it_goes_the_way_of_a_newcomer() -> None:
    text = "\n".join(block.text for block in blocks(README.read_text("utf-8")) if block.language == "sh")
    order = re.findall(r"^palaestra (\w+)|^(make setup)", text, re.MULTILINE)
    first = list(dict.fromkeys(command or make for command, make in order))
    assert " ".join(first) == "make setup check data play train view doctor eval replay collect sft"


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?:^\s*|`)make ([a-z-]+)", README.read_text("utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_pictures_are_light_and_described() -> None:
    shown = re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", README.read_text("utf-8"))
    assert [target for _, target in shown] == [
        f"docs/pictures/{name}.png" for name in ("curve", "curve-real", "episode")
    ]
    assert [alt for alt, _ in shown if len(alt.split()) < 10] == []
    sizes = {target: (ROOT / target).stat().st_size for _, target in shown}
    assert max(sizes.values()) < 200_000, f"GitHub's readers wait for {sizes}: make pictures"
