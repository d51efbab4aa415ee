"""The base class of toolkits on a browser, and the function that gives them one. Left out: tools (`browser`)."""

from collections.abc import Callable, Mapping
from functools import partial

from palaestra.envs.browser.browser import Browser
from palaestra.envs.browser.opening import BROWSERS
from palaestra.envs.browser.site import Site
from palaestra.envs.core.backends import Where
from palaestra.envs.core.toolkit import Toolkit
from palaestra.envs.tools.budgets import BudgetedToolkit
from palaestra.episode import Task


def in_browser(where: Where, *toolkits: Callable[..., Toolkit]) -> tuple[Callable[[], Toolkit], ...]:
    """Return factories of these toolkits with this browser, for an environment's `self.toolkits`."""
    BROWSERS.read(where)
    return tuple(partial(kit, where) for kit in toolkits)


class BrowserToolkit(BudgetedToolkit):
    """Base of toolkits on a browser. Settings are class attributes: a subclass changes them."""

    namespace = "browser"
    window_tokens: int = 1024
    """Approximate number of tokens that are shown at a time."""

    served: Mapping[str, Site]
    """The sites of the running episode, by host; `final` reads them."""

    def __init__(self, browser: Where = "text") -> None:
        self.backend, self._options = BROWSERS.read(browser)
        self.served = {}

    def sites(self, task: Task) -> Mapping[str, Site]:
        """Return the sites that this process serves, by host. Each episode needs a new object of a site with state."""
        return {}

    def _browser(self) -> Browser:
        return BROWSERS.shared(self.backend, **self._options)

    def _run_in_place_if_possible(self) -> None:
        if self.backend == "text" and not self._browser().waits:
            self.never_waits()
