"""Environments whose pages are on a port where nobody listens, for either browser."""

import socket

from palaestra.envs import Task, TextEnv, ToolEnv
from palaestra.envs.tools.browse import Browse
from palaestra.envs.tools.browser import ReadingBrowser, in_browser


class Gone(ToolEnv):
    """Its pages are on a port where nobody listens."""

    def __init__(self, kit, allow, browser="text"):
        super().__init__()
        self.toolkits = in_browser({"backend": browser, "allow": allow}, kit)

    def task(self, rng):
        return Task(f"What is there? {rng.integers(100)}")

    def reward(self, attempt):
        return 0.0


def opened_there(kit, allow, url, browser="text"):
    """How a call goes that opens this address, and how the episode then stands."""
    env = TextEnv(Gone(kit, allow, browser))
    env.reset(seed=0)
    name, given = ("browse", {"query": "x"}) if kit is Browse else ("open", {})
    text, *_, info = env.step(env.call(name, url=url, **given))
    env.close()
    return text, info["ending"], info["fault"]


class AtHome(ReadingBrowser):
    def home(self, task):
        return "http://shop.test/"


def gone_services(browser):
    """A service that the author names and that is gone is BROKEN; an address that the agent chose is an observation."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nobody listens, and nobody else can.
        port = taken.getsockname()[1]
        service, other = f"shop.test:{port}=127.0.0.1", "dead.test=127.0.0.9"
        for kit in (ReadingBrowser, Browse):
            text, ending, fault = opened_there(kit, [service], f"http://shop.test:{port}/", browser)
            assert ending == "broken", text
            assert f"shop.test:{port} was not reached" in fault
            text, ending, _ = opened_there(kit, [service, other], "http://dead.test/", browser)
            assert (ending, text[:6]) == ("", "Error:")
            assert "dead.test:80" in text
        text, ending, fault = opened_there(AtHome, ["shop.test=127.0.0.9"], "/", browser)
        assert ending == "broken", text
        assert "the page where the episode begins is gone" in fault
