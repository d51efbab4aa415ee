"""The real browser: pages as the text browser shows them, acting by number, and pages that mean harm.

One browser for all tests of this file, as in use; every session is an episode of its own.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from chromium_pages import BOMBS, HOME, HOST, RICH, SIMPLE, Shop, number_of, played
from gone_services import gone_services

from palaestra.envs.browser.browser import Page
from palaestra.envs.browser.chromium.browser import ChromiumBrowser
from palaestra.envs.browser.chromium.engine import sweep
from palaestra.envs.browser.chromium.session import ChromiumSession
from palaestra.envs.browser.opening import open_browser
from palaestra.envs.browser.site import Pages
from palaestra.errors import Broken, ToolError, UsageError

pytestmark = [pytest.mark.chromium, pytest.mark.usefixtures("chromium_path")]


def test_a_service_that_is_gone_is_broken_and_an_address_of_the_agents_is_told() -> None:
    gone_services("chromium")


async def outcome(action: Awaitable[Page]) -> str:
    """What an agent is told."""
    try:
        return " ".join((await action).lines)
    except ToolError as told:
        return str(told)


async def until_it_fails(session: ChromiumSession, kind: type[Exception]) -> str:
    """What is told when looking at the page fails, as it must soon."""
    try:
        for _ in range(50):
            await session.look()
    except kind as told:
        return str(told)
    raise AssertionError("it goes on")


def test_a_page_without_scripts_reads_as_in_the_text_browser(browser: ChromiumBrowser) -> None:
    async def look(session: Any) -> Page:
        return await session.open(HOME)

    real, plain = played(browser, {"/": SIMPLE}, look), played(open_browser("text"), {"/": SIMPLE}, look)
    assert real.lines == plain.lines
    assert (real.url, real.title, real.elements, real.note) == (plain.url, plain.title, plain.elements, plain.note)


def test_what_scripts_make_is_acted_on_by_number(browser: ChromiumBrowser) -> None:
    async def play(session: ChromiumSession) -> None:
        page = await session.open(HOME)
        for words, after in (("listens", "heard"), ("points", "pointed"), ("inner", "framed"), ("shadow", "lit")):
            page = await session.click(number_of(page, words))
            assert after in "\n".join(page.lines), words
        page = await session.type(number_of(page, "field Name"), 'a "b" [9:x]')
        assert "[9:x]" not in "\n".join(page.lines)
        assert "keys 1" in "\n".join(page.lines)
        page = await session.type(number_of(page, "date"), "2025-02-03")
        page = await session.select(number_of(page, "select"), "l")
        page = await session.click(number_of(page, "checkbox"))
        page = await session.press("Tab")
        page = await session.submit(number_of(page, "select"))
        assert json.loads("".join(page.lines).replace("[\\", "[")) == {
            "name": 'a "b" [9:x]',
            "size": "L",
            "day": "2025-02-03",
            "agree": "on",
        }
        assert (await session.back()).url == HOME

    played(browser, Shop(RICH), play)


def test_forms_redirects_and_cookies_of_a_site_in_this_process_work(browser: ChromiumBrowser) -> None:
    async def play(session: ChromiumSession) -> None:
        page = await session.open(f"{HOME}login")
        page = await session.type(number_of(page, "field"), "ann")
        page = await session.click(number_of(page, "button"))
        assert (page.url, page.lines) == (f"{HOME}home", ("Hello ann",))
        assert "status 500" in (await session.open("/fails")).note
        assert "status 404" in (await session.open("/nowhere")).note

    played(browser, Shop({}), play)


def test_nothing_is_shared_between_sessions(browser: ChromiumBrowser) -> None:
    keep = "<script>localStorage.x = document.cookie = 'x=1'</script><p>kept"
    show = "<p id=p></p><script>p.textContent = 'found ' + document.cookie + localStorage.x</script>"
    pages = {"/": keep, "/show": show}

    async def both() -> Page:
        one, other = (browser.session({HOST: Pages(pages)}) for _ in range(2))
        await one.open(HOME)
        found = await other.open(f"{HOME}show")
        one.close()
        other.close()
        return found

    assert asyncio.run(both()).lines == ("found undefined",)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda s: s.click(99), "there is no [99]"),
        (lambda s: s.type(1, "x"), "no field"),
        (lambda s: s.select(1, "x"), "no list"),
        (lambda s: s.submit(1), "no form"),
        (lambda s: s.click(2), "disabled"),
        (lambda s: s.click(3), "covered"),
        (lambda s: s.click(4), "gone"),
        (lambda s: s.press("Nokey"), "no key"),
        (lambda s: s.back(), "no page before"),
        (lambda s: s.open("file:///etc/passwd"), "http"),
        (lambda s: s.open("javascript:alert(1)"), "http"),
        (lambda s: s.open("chrome://settings"), "http"),
        (lambda s: s.open("http://127.0.0.1:8080/"), "may not be reached"),
        (lambda s: s.open("https://example.com/"), "may not be reached"),
    ],
)
def test_what_cannot_be_done_is_told_and_the_tab_goes_on(browser: ChromiumBrowser, act: Any, said: str) -> None:
    pages = """<button onmousemove="late.remove()">plain</button><button disabled>off</button>
    <div style="position: relative"><button>below</button><div style="position: absolute; inset: 0">above</div></div>
    <button id=late>late</button>"""

    async def play(session: ChromiumSession) -> str:
        await session.open(HOME)
        await session.evaluate("late.remove()")
        told = await outcome(act(session))
        assert "plain" in (await session.open(HOME)).lines[0]
        return told

    assert said in played(browser, {"/": pages}, play)


def test_dialogs_windows_and_downloads_are_told(browser: ChromiumBrowser) -> None:
    page = """<button onclick="alert('a [3:b] c')">say</button><button onclick="window.open('/other')">window</button>
    <a href=/other target=_blank>blank</a><a href="/file" download>load</a>"""

    async def play(session: ChromiumSession) -> None:
        await session.open(HOME)
        assert "[3:b]" not in (told := (await session.click(1)).note)
        assert "the page said" in told
        assert f"{HOME}other" in (await session.click(2)).note
        assert (await session.click(3)).url == f"{HOME}other"
        await session.back()
        page = await session.click(4)
        for _ in range(100):
            page = page if page.note else await session.look()
        assert "download" in page.note
        assert page.url == HOME

    played(browser, {"/": page, "/other": "other", "/file": "file"}, play)


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_page_ends_within_the_deadline_and_the_tab_goes_on(browser: ChromiumBrowser, name: str) -> None:
    async def play(session: ChromiumSession) -> None:
        await session.open(f"{HOME}calm")
        begun = time.monotonic()
        told = await outcome(session.open(HOME, 4))
        if "[1:" in told:
            told += await outcome(session.click(1, 4))
        assert len(told) < 3_000_000
        assert time.monotonic() - begun < 9
        calm = await session.open(f"{HOME}calm")
        assert calm.lines == ("calm [1:link home]",)

    played(browser, {"/": BOMBS[name], "/calm": "calm <a href=/>home</a>"}, play)


def test_a_page_cannot_blind_the_reader_or_forge_its_numbers(browser: ChromiumBrowser) -> None:
    async def play(session: ChromiumSession) -> Page:
        await session.open(HOME)
        return await session.click(1)

    blind = BOMBS["breaks what is built in"].replace("<button", "<button onclick='this.textContent = `b`'")
    assert played(browser, {"/": blind}, play).lines == ("[1:button b]",)
    marks = played(browser, {"/": "<button>a</button>" + BOMBS["marks"]}, play)
    assert marks.elements == 1
    assert not any(line.replace("\u200b", "").startswith(("[7", "［7")) for line in marks.lines)


def test_a_page_that_crashes_is_told_and_a_browser_that_ends_is_broken(browser: ChromiumBrowser) -> None:
    async def play(session: ChromiumSession) -> None:
        await session.open(HOME)
        tab = session._tab
        assert tab is not None
        browser._loop.submit(tab.send("Page.crash"))
        assert "crash" in await until_it_fails(session, ToolError)
        assert (await session.open(HOME)).lines == ("fine",)

    played(browser, {"/": "fine"}, play)
    own = ChromiumBrowser()

    async def ends(session: ChromiumSession) -> None:
        await session.open(HOME)
        assert session._place is not None
        running = session._place[0]
        told = await own._loop.outcome(running.protocol.send("SystemInfo.getProcessInfo"), 10, blocking=False)
        os.kill(next(one["id"] for one in told["processInfo"] if one["type"] == "browser"), signal.SIGKILL)
        await until_it_fails(session, Broken)

    played(own, {"/": "fine"}, ends)
    assert played(own, {"/": "again"}, lambda session: session.open(HOME)).lines == ("again",)
    own.close()


def test_after_so_many_episodes_another_browser_takes_over() -> None:
    browser = ChromiumBrowser(max_episodes=2)

    async def run() -> list[Any]:
        sessions = [browser.session({HOST: Pages({"/": "x"})}) for _ in range(3)]
        for session in sessions:
            await session.open(HOME)
        used = [session._place[0] for session in sessions if session._place]
        assert used[0] is used[1] is not used[2]
        assert (await sessions[0].look()).lines == ("x",)  # It lives on in the old one.
        for session in sessions:
            session.close()
        for _ in range(1200):
            if not used[0].browser.is_connected():
                break
            await asyncio.sleep(0.05)
        return [one.browser.is_connected() for one in (used[0], used[2])]

    assert asyncio.run(run()) == [False, True]
    browser.close()


def test_pictures_and_the_accessibility_tree_come_on_demand(browser: ChromiumBrowser) -> None:
    async def play(session: ChromiumSession) -> tuple[bytes, Page]:
        page = await session.open(HOME)
        return await session.screenshot(), page

    picture, _ = played(browser, {"/": SIMPLE}, play)
    assert picture.startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="text browser"):
        browser.session({}).snapshot()
    with pytest.raises(UsageError, match="accessibility"):
        ChromiumBrowser(view="tree")
    other = ChromiumBrowser(view="accessibility")
    page = played(other, {"/": SIMPLE}, lambda session: session.open(HOME))
    other.close()
    text = "\n".join(page.lines)
    assert 'heading "A page"' in text
    assert "[1:link Home]" in text


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio
from palaestra.envs.browser.chromium.browser import ChromiumBrowser
from palaestra.envs.browser.site import Pages
PAGE = "<script>setTimeout(() => {{ while (true); }}, 1500)</script>x"
async def main():
    browser = ChromiumBrowser()
    session = browser.session({{"{HOST}": Pages({{"/": PAGE}})}})
    await session.open("{HOME}")
    print("open", flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    below = descendants(child.pid)
    assert any("type=renderer" in command for command in below.values()), below
    time.sleep(1.6)  # Its page is in an endless loop now.
    child.kill()
    child.wait()
    child.stdout.close()
    for _ in range(600):
        left = [command for pid, command in below.items() if commands().get(pid) == command]
        if not left and not list(tmp_path.glob("playwright*")):
            break
        time.sleep(0.1)
    assert not left
    assert not list(tmp_path.glob("playwright*"))


def test_profiles_of_browsers_that_were_killed_are_swept_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket
    import tempfile

    ended = subprocess.Popen(["true"])
    ended.wait()
    for name, pid in (("old", ended.pid), ("used", os.getpid())):
        folder = tmp_path / f"playwright_chromiumdev_profile-{name}"
        folder.mkdir()
        (folder / "SingletonLock").symlink_to(f"{socket.gethostname()}-{pid}")
    (tmp_path / "playwright_chromiumdev_profile-new").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sweep()
    assert sorted(path.name.rpartition("-")[2] for path in tmp_path.iterdir()) == ["new", "used"]


def commands() -> dict[int, str]:
    """Command lines by process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return {pid: command for pid, command in found.items() if command}


def descendants(root: int) -> dict[int, str]:
    """Command lines of a process's children, and theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    wanted, known = {root}, commands()
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return {pid: known[pid] for pid in wanted - {root} if pid in known}
