"""How long a large run and a long episode take to open. The figures are printed; the bound is generous."""

import time
from pathlib import Path
from typing import Any

import pytest
from viewer_records import record, row

from palaestra.record import write
from palaestra.trainers.view.pages import page
from palaestra.trainers.view.pages.load_episodes import Collection

pytestmark = pytest.mark.chromium
SECONDS = 10.0


def timed(looked: Any, address: str, ready: str) -> float:
    looked.page.goto("about:blank")
    began = time.perf_counter()
    looked.page.goto(address, wait_until="commit")
    looked.until(ready)
    return time.perf_counter() - began


@pytest.mark.parametrize("tokens", [150, 2000])
def test_two_thousand_episodes_open_in_time(
    tmp_path: Path, looked: Any, capsys: pytest.CaptureFixture[str], tokens: int
) -> None:
    path, out = tmp_path / "many.jsonl", tmp_path / "view.html"
    write(path, (record(group, member, tokens=tokens) for group in range(250) for member in range(8)))
    began = time.perf_counter()
    written = page.write(out, Collection([path]))
    wrote = time.perf_counter() - began
    opened = timed(looked, out.as_uri(), "document.querySelectorAll('.row').length > 5")
    far = "#step=1&group=249&episode=8&view=tokens"
    last = timed(looked, out.as_uri() + far, "document.querySelector('.tokentext .token')")
    looked.page.fill(".search", "in group 249")
    began = time.perf_counter()
    looked.until("document.querySelector('.progress').textContent === '1 of 250 groups, 8 episodes'")
    searched = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n2,000 episodes of {tokens:,} tokens, {written.bytes / 1e6:.1f} MB: written in {wrote:.2f} s, "
              f"list {opened:.2f} s, last episode {last:.2f} s, search {searched:.2f} s")  # fmt: skip
    assert max(opened, last) < SECONDS
    assert searched < 3 * SECONDS


def test_an_episode_of_a_hundred_thousand_tokens_opens_in_time(
    tmp_path: Path, looked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "long.jsonl", tmp_path / "view.html"
    write(path, [record(0, member, rows=(row(100_000, member),)) for member in range(2)])
    page.write(out, Collection([path]))
    opened = timed(looked, out.as_uri() + "#step=1&group=0&episode=1&view=tokens", "document.querySelector('.token')")
    began = time.perf_counter()
    looked.page.evaluate("location.hash = '#step=1&group=0&episode=1&view=tokens&token=99000'")
    looked.page.wait_for_selector('.token.pinned[data-at="99000"]')
    jumped = time.perf_counter() - began
    nodes = looked.page.evaluate("document.querySelectorAll('.token').length")
    with capsys.disabled():
        print(f"\n100,000 tokens: opened in {opened:.2f} s, at token 99,000 in {jumped:.2f} s, {nodes:,} drawn")
    assert max(opened, jumped) < SECONDS
    assert nodes < 10_000
