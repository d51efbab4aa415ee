"""Whatever an agent writes is text in the viewer: none of it runs, loads, leads anywhere or hides."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from viewer_records import HOSTILE, NAMES, hostile_record, record

from palaestra.record import Record, write
from palaestra.trainers.view.pages import page
from palaestra.trainers.view.pages.load_episodes import Collection
from palaestra.trainers.view.pages.viewer_server import ViewerServer

pytestmark = pytest.mark.chromium
EVIL_FILE = "<img src=x onerror=window.__pwned=1>\u202e.jsonl"
LOADING = "a, img, iframe, object, embed, link, form, base, video, audio, [href], [src], [onerror]"
PLACES = [
    "#",
    "#{at}",
    "#{at}&episode=1",
    "#{at}&episode=1&view=tokens",
    "#{at}&episode=1&with=2&view=diff",
    "#step=<img src=x onerror=window.__pwned=1>&group=1",
    "#step=__proto__&group=0&episode=1",
    "#metric=__proto__&metric=constructor",
]


@pytest.fixture
def evil_run(tmp_path: Path) -> Path:
    """A run in which every name, number and text that can be hostile is."""
    run = tmp_path / "<b>run"
    (run / "episodes").mkdir(parents=True)
    figures = ", ".join(f'"{name}": 1.5' for name in (*NAMES, "<svg onload=window.__pwned=1>", "reward"))
    (run / "metrics.jsonl").write_text(f'{{"step": 1, {figures}}}\n{{"step": 2, {figures}}}\nno json <script>\n')
    settings = '{"__proto__": {"polluted": 1}, "constructor": "</script><script>window.__pwned=1</script>"}'
    (run / "config.json").write_text(settings)
    records = [hostile_record(0, 0), hostile_record(0, 1), record(0, 2)]
    write(run / "episodes" / "step-000001.jsonl", records)
    (run / "episodes" / EVIL_FILE).write_text('{"palaestra": "<script>window.__pwned=1</script>"}\n')
    return run


def see_all(looked: Any, go: Any) -> None:
    for place in PLACES:
        go(place.format(at="step=1&group=0"))
        looked.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        looked.page.evaluate("document.querySelectorAll('button.more').forEach((one) => one.click())")
        # Text leads nowhere: there is nothing to click but buttons of ours, and nothing that loads.
        assert looked.page.locator(LOADING).count() == 0
        assert looked.harm() == []


def test_no_text_of_an_episode_runs_or_loads_anything(evil_run: Path, tmp_path: Path, looked: Any) -> None:
    out = tmp_path / "view.html"
    page.write(out, Collection([evil_run]))
    looked.open(out)
    see_all(looked, looked.go)
    assert set(looked.requests) <= {"about:blank", out.as_uri()}
    assert looked.page.evaluate("({}).polluted === undefined && Object.prototype.of === undefined")


@pytest.fixture
def live(evil_run: Path) -> Iterator[ViewerServer]:
    viewer = ViewerServer([evil_run])
    thread = threading.Thread(target=viewer.run)
    thread.start()
    yield viewer
    viewer.close()
    thread.join(30)


def test_no_text_runs_or_loads_anything_when_it_is_served(live: ViewerServer, looked: Any) -> None:
    looked.page.goto(live.url)
    looked.page.wait_for_selector(".row")
    see_all(looked, looked.go)
    assert all(request.startswith(live.url) for request in looked.requests)


def test_every_hostile_text_and_file_name_is_shown_letter_by_letter(
    evil_run: Path, tmp_path: Path, looked: Any
) -> None:
    out = tmp_path / "view.html"
    page.write(out, Collection([evil_run]))
    looked.open(out, "#step=1&group=0&episode=1")
    said = looked.text(".turns")
    for text in (*HOSTILE[:5], *HOSTILE[8:], *NAMES):
        assert text in said
    for mark in ("⟨RLO⟩right to left⟨PDF⟩", "⟨LRI⟩", "zero⟨ZWSP⟩width", "⟨U+2028⟩line⟨U+2029⟩", "⟨BEL⟩", "⟨NUL⟩"):
        assert mark in said
    assert "⟨ESC⟩[31mred⟨ESC⟩[0m" in said
    assert "half ⟨U+D800⟩ pair, half ⟨U+DFFF⟩ pair" in said
    # But for new lines and tabs nothing unseen is left in the document, in texts or in titles.
    left = looked.page.evaluate(
        r"/(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u.test(document.body.innerText + document.title"
        " + [...document.querySelectorAll('[title]')].map((one) => one.title).join(''))"
    )
    assert left is False
    looked.open(out)
    banner = looked.text(".banner")
    assert "episodes/<img src=x onerror=window.__pwned=1>⟨RLO⟩.jsonl, line 1: it has version" in banner
    assert "metrics.jsonl, line 3" in banner
    assert "⟨" not in looked.text("header")
    assert looked.text("header").startswith("<b>run")
    assert looked.harm() == []


def test_the_policy_stops_what_a_mistake_of_ours_would_let_through(tmp_path: Path, looked: Any) -> None:
    """The second wall: markup, handlers, scripts and styles that were put into the page do nothing."""
    path, out = tmp_path / "one.jsonl", tmp_path / "view.html"
    write(path, [record()])
    page.write(out, Collection([path]))
    looked.open(out)
    outcome = looked.page.evaluate("""async () => {
        await new Promise((resolve) => setTimeout(resolve, 10)); // The debugger's own call may evaluate texts.
        const tried = [];
        const attempt = (what, run) => { try { run(); tried.push(what) } catch { } };
        attempt('innerHTML', () => { document.body.innerHTML = '<img src=x onerror=window.__pwned=1>' });
        attempt('eval', () => eval('window.__pwned=1'));
        attempt('Function', () => new Function('window.__pwned=1')());
        const script = document.createElement('script');
        attempt('script', () => { script.textContent = 'window.__pwned=1'; document.body.append(script) });
        const image = document.createElement('img');
        image.src = 'http://evil.example/image';
        document.body.append(image);
        fetch('http://evil.example/fetch').catch(() => 0);
        return tried;
    }""")
    assert outcome == []
    looked.until("window.__violations.some((one) => one.startsWith('connect-src'))")
    looked.until("window.__violations.some((one) => one.startsWith('img-src'))")
    assert looked.page.evaluate("window.__pwned") is None
    # Chromium names the request that it stopped; it must have been stopped by the policy, before it left.
    assert {why for address, why in looked.failed.items() if "evil" in address} <= {"csp"}
    assert not [address for address in looked.requests if "evil" in address and address not in looked.failed]


def test_ten_megabytes_in_one_message_are_clipped_until_they_are_asked_for(tmp_path: Path, looked: Any) -> None:
    plain = record()
    long = "word\u202e " * (10_000_000 // 6)
    messages = ({"role": "user", "content": "x"}, {"role": "assistant", "content": long})
    attempt = replace(plain.episode.attempt, messages=messages)
    path, out = tmp_path / "long.jsonl", tmp_path / "view.html"
    write(path, [Record(plain.env_id, replace(plain.episode, attempt=attempt), lessons=plain.lessons)])
    page.write(out, Collection([path]))
    looked.open(out, "#step=1&group=0&episode=1")
    shown = "document.querySelector('.turn .text').textContent.length"
    assert looked.page.evaluate(shown) < 40_000
    button = looked.page.locator(".turn button.more")
    assert button.inner_text() == f"… show all {len(long):,} letters"
    button.click()
    assert looked.page.evaluate(shown) >= len(long)
    assert looked.harm() == []


@pytest.mark.parametrize("place", [b'<script type="application/json" id="episode-1"', b'"messages":[', b"</body>"])
def test_a_cut_off_page_shows_what_it_has_and_says_what_it_lacks(tmp_path: Path, looked: Any, place: bytes) -> None:
    path, out = tmp_path / "two.jsonl", tmp_path / "view.html"
    write(path, [record(0, 0), record(0, 1)])
    page.write(out, Collection([path]))
    text = out.read_bytes()
    out.write_bytes(text[: text.rindex(place)])
    looked.open(out, "#step=1&group=0&episode=1")
    assert "I compute." in looked.text("main")
    looked.go("#step=1&group=0&episode=2")
    assert ("cut off" in looked.text("main")) is (place != b"</body>")
