"""Measure the real browser: an action beside a raw click of Playwright, many contexts at once, and the memory of one.

An action is a click and the observation after it, through a session as tools use it. A raw click is Playwright's own,
on the same page of the same browser, without an observation. They alternate, so that other load on the machine affects
both. CPU time is that of this process and of all below it: driver, browser, renderers. Left out: networks.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from peers.findings import target

from palaestra.envs.browser.chromium.browser import ChromiumBrowser
from palaestra.envs.browser.chromium.engine import memory
from palaestra.envs.browser.site import Pages
from palaestra.errors import Broken, ToolError

ACTION_RATIO = 1.5
"""Largest wall time of an action, divided by that of a raw click."""
CONTEXTS = 16
TICK = os.sysconf("SC_CLK_TCK")
HOST, HOME = "bench.test", "http://bench.test/"
WORDS = "a page of documentation with prose, links and a button that counts how often it was pressed "


def page(size: int) -> str:
    """Return a page of about this many bytes: a button that counts, then sections with links."""
    head = "<title>Page</title><h1>Page</h1><button id=b onclick='this.textContent = 1 + +this.textContent'>0</button>"
    part = f"<section><h2>Section</h2><p>{WORDS}<a href='/x'>a link</a> {WORDS}</p><ul><li>item</ul></section>"
    return head + part * max((size - len(head)) // len(part), 0)


PAGES = Pages({"/": page(1_000), "/large": page(44_000)})


def measure(
    rounds: int = 40, contexts: int = CONTEXTS, actions: int = 10
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the figures and the targets."""
    browser = ChromiumBrowser(max_contexts=max(32, contexts))
    try:
        figures = asyncio.run(_measured(browser, rounds, contexts, actions))
    finally:
        browser.close()
    targets = [
        target("chromium: an action on a page of 1 KB, by a raw click", figures["1 KB"]["ratio"], most=ACTION_RATIO),
        target("chromium: an action on a page of 44 KB, by a raw click", figures["44 KB"]["ratio"], most=ACTION_RATIO),
        target(f"chromium: failures of {contexts} contexts at once", figures["at once"]["failures"], most=0),
    ]
    return figures, targets


async def _measured(browser: ChromiumBrowser, rounds: int, contexts: int, actions: int) -> dict[str, Any]:
    begun = time.perf_counter()
    session = browser.session({HOST: PAGES})
    await session.open(HOME)
    first = time.perf_counter() - begun
    figures: dict[str, Any] = {"first page of a process, s": round(first, 2)}
    for name, url in (("1 KB", HOME), ("44 KB", f"{HOME}large")):
        await session.open(url)
        figures[name] = await _beside_raw(browser, session, rounds)
    session.close()
    figures["at once"] = await _at_once(browser, contexts, actions)
    return figures


async def _beside_raw(browser: ChromiumBrowser, session: Any, rounds: int) -> dict[str, float]:
    """Measure actions and raw clicks in turn."""
    raw_page = session._tab.page

    async def raw() -> None:
        await browser._loop.outcome(raw_page.locator("#b").click(), 60, blocking=False)

    async def ours() -> None:
        await session.click(1)

    sides: dict[str, Callable[[], Awaitable[None]]] = {"raw": raw, "ours": ours}
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu = dict.fromkeys(sides, 0.0)
    for at in range(rounds + 3):
        for name, act in sides.items():
            before, begun = spent(), time.perf_counter()
            await act()
            if at >= 3:
                wall[name].append(time.perf_counter() - begun)
                cpu[name] += spent() - before
    ratio = statistics.median(mine / theirs for mine, theirs in zip(wall["ours"], wall["raw"], strict=True))
    figures = {"ratio": round(ratio, 3)}
    for name in sides:
        figures[f"{name}, wall ms"] = round(1000 * statistics.median(wall[name]), 1)
        figures[f"{name}, CPU ms"] = round(1000 * cpu[name] / rounds, 1)
    return figures


async def _at_once(browser: ChromiumBrowser, contexts: int, actions: int) -> dict[str, float]:
    """Run this many episodes at the same time."""
    sessions = [browser.session({HOST: PAGES}) for _ in range(contexts)]
    failures = 0

    async def play(session: Any) -> None:
        nonlocal failures
        try:
            page = await session.open(f"{HOME}large")
            for _ in range(actions):
                page = await session.click(1)
            failures += f"button {actions}]" not in " ".join(page.lines)
        except (ToolError, Broken):
            failures += 1

    await play(sessions[0])
    one = await _memory(browser, sessions[0])
    before, begun = spent(), time.perf_counter()
    await asyncio.gather(*map(play, sessions[1:]))
    seconds, cpu = time.perf_counter() - begun, spent() - before
    all_ = await _memory(browser, sessions[0])
    for session in sessions:
        session.close()
    done = (contexts - 1) * (actions + 1)
    return {
        "contexts": contexts,
        "failures": failures,
        "actions a second": round(done / seconds, 1),
        "CPU ms an action": round(1000 * cpu / done, 1),
        "MB of the first": round(one / 2**20),
        "MB of each further one": round((all_ - one) / 2**20 / (contexts - 1), 1),
    }


async def _memory(browser: ChromiumBrowser, session: Any) -> int:
    """Return the private bytes of the browser's processes."""
    return await browser._loop.outcome(memory(session._place[0]), 30, blocking=False)


def spent() -> float:
    """Return the CPU seconds of this process and of the running processes below it."""
    processes: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        processes[int(path.parent.name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / TICK)
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in processes.items() if parent in mine} - mine:
        mine |= more
    return sum(processes[pid][1] for pid in mine if pid in processes)
