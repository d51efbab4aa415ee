"""The page is one file that needs nothing else, and it is written whole or not at all."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from viewer_records import HOSTILE, hostile_record, record

from palaestra.cli import main
from palaestra.cli.view import ViewOptions, chosen_numbers
from palaestra.errors import UsageError
from palaestra.record import write as write_records
from palaestra.trainers.view.pages import page
from palaestra.trainers.view.pages.load_episodes import Collection

Make = Callable[..., Path]


OURS = {"html", "head", "meta", "title", "style", "body", "div", "noscript", "script"}


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside = False
        self.feed(text)

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.found}

    def said(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """The attributes and the text of each element of a kind."""
        return [(found[1], text) for found, text in zip(self.found, self.texts, strict=True) if found[0] == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.texts.append("")
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[-1] += data


def test_the_page_refers_to_nothing_outside_itself(make_run: Make, tmp_path: Path) -> None:
    out = tmp_path / "view.html"
    assert page.write(out, Collection([make_run()])).episodes == 16
    elements = Elements(out.read_text(encoding="utf-8"))
    assert elements.tags <= OURS
    assert not {name for _, attributes in elements.found for name in attributes} & {"src", "href", "style"}
    assert not re.search(r"@import|url\(", page._style())


def test_the_policy_allows_exactly_the_script_and_the_style_of_the_page(make_run: Make, tmp_path: Path) -> None:
    out = tmp_path / "view.html"
    page.write(out, Collection([make_run()]))
    elements = Elements(out.read_text(encoding="utf-8"))
    policy = next(attributes["content"] for tag, attributes in elements.found if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    running = [text for attributes, text in elements.said("script") if not attributes]
    styles = [text for _, text in elements.said("style")]
    assert len(running) == len(styles) == 1
    for text in (*running, *styles):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.count(f"'sha256-{digest}'") == 1


def test_no_hostile_text_becomes_an_element_of_the_page(tmp_path: Path) -> None:
    path, out = tmp_path / "evil.jsonl", tmp_path / "view.html"
    write_records(path, [hostile_record(), hostile_record(1)])
    page.write(out, Collection([path]))
    text = out.read_text(encoding="utf-8")
    elements = Elements(text)
    assert elements.tags <= OURS
    blocks = {attributes["id"]: json.loads(said) for attributes, said in elements.said("script") if attributes}
    assert set(blocks) == {"state", "episode-0", "episode-1"}
    assert blocks["episode-1"]["messages"][0]["text"] == "\n".join(HOSTILE)


def test_a_file_of_another_kind_is_never_replaced(make_run: Make, tmp_path: Path) -> None:
    out = tmp_path / "thesis.html"
    out.write_text("<html>years of work")
    with pytest.raises(UsageError, match="is no page of this viewer"):
        page.write(out, Collection([make_run()]))
    assert out.read_text() == "<html>years of work"
    with pytest.raises(UsageError, match="is a folder"):
        page.write(tmp_path, Collection([tmp_path / "a-run"]))


def test_an_older_page_stays_when_the_new_one_fails(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run = tmp_path / "view.html", make_run()
    page.write(out, Collection([run]))
    before = out.read_bytes()

    def fail(record: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "content", fail)
    with pytest.raises(UsageError, match="No space left"):
        page.write(out, Collection([run]))
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-run", "view.html"]


def test_the_command_writes_into_the_run_and_again(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    for _ in range(2):
        assert main(["view", str(run)]) == 0
    assert "16 episodes" in capsys.readouterr().out
    assert (run / "view.html").read_bytes().startswith(page.MARK.encode())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"serve": True, "out": Path("x.html")}, "--serve writes no file"),
        ({"port": 80}, "add --serve"),
        ({"serve": True, "port": 99999}, "from 0 to 65535"),
        ({"steps": "3-1"}, "expected numbers and ranges"),
        ({"steps": "1-999999999"}, "more than"),
        ({"steps": "one"}, "expected numbers and ranges"),
    ],
)
def test_a_wrong_option_is_explained(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ViewOptions(**{"paths": (Path("a-run"),), **options})


def test_the_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view"]) == 2
    assert "name a run's folder" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "absent")]) == 2
    assert "there is no" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["view", str(tmp_path), "--port", "80"])


def test_steps_are_read_as_numbers_and_ranges() -> None:
    assert chosen_numbers("") is None
    assert chosen_numbers(" 1, 5-7 ,3") == {1, 3, 5, 6, 7}


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (b"import palaestra\n", [], "line 1: "),
        (b"", [], "no line of sums.py is an episode; pass"),
        (None, ["--steps", "9"], "no line of played.jsonl is an episode of the chosen steps"),
    ],
)
def test_a_page_without_any_episode_is_refused_and_an_older_one_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_records(Path("played.jsonl"), [record(step=1)])
    assert main(["view", "played.jsonl"]) == 0
    before = Path("view.html").read_bytes()
    if content is not None:
        Path("sums.py").write_bytes(content)
    assert main(["view", "played.jsonl" if content is None else "sums.py", *options]) == 2
    assert said in capsys.readouterr().err
    assert Path("view.html").read_bytes() == before
    assert not Path("view.html.part").exists()
