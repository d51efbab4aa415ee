"""The tasks of the package `miniwob`: the folder of their pages, their names, and those that can be solved by text.

Left out: playing them (`miniwob`).
"""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from palaestra.errors import MissingExtra, UsageError

_TEXT_SOLVABLE = """
    ascending-numbers buy-ticket choose-date choose-date-easy choose-date-medium choose-date-nodelay choose-list
    click-button click-button-sequence click-checkboxes click-checkboxes-large click-checkboxes-transfer
    click-collapsible click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-dialog
    click-dialog-2 click-link click-option click-scroll-list click-tab click-tab-2 click-tab-2-easy click-tab-2-hard
    click-tab-2-medium click-test click-test-2 click-test-transfer click-widget copy-paste copy-paste-2 email-inbox
    email-inbox-delete email-inbox-forward email-inbox-important email-inbox-noscroll email-inbox-reply
    email-inbox-star-reply enter-date enter-password enter-text enter-text-2 enter-text-dynamic enter-time
    find-greatest find-word focus-text focus-text-2 form-sequence-2 generate-number grid-coordinate guess-number
    identify-shape login-user login-user-popup multi-orderings navigate-tree odd-or-even phone-book read-table
    read-table-2 scroll-text search-engine simple-algebra simple-arithmetic social-media terminal
    text-transform unicode-test use-autocomplete use-autocomplete-nodelay use-spinner
"""
TEXT_SOLVABLE = tuple(_TEXT_SOLVABLE.split())
"""Tasks that a script solves on every page that was tried, although it sees only the page's numbered text and acts only
by numbers. The others need pixels, dragging or a moment in time, or no such script was written."""


@cache
def folder() -> Path:
    """Return the folder of the package's pages. The package is not imported, because it needs Selenium."""
    spec = find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise MissingExtra("miniwob", "miniwob", "palaestra/MiniWoB-v0")
    return Path(spec.origin).parent / "html"


@cache
def tasks() -> tuple[str, ...]:
    """Return the names of all installed tasks."""
    return tuple(sorted(page.stem for page in (folder() / "miniwob").glob("*.html")))


def chosen(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """Return the named tasks: one, several (a list, or with commas), or "text" for all that text can solve."""
    names = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    names = [str(name).strip() for name in names]
    if names == ["text"]:
        return TEXT_SOLVABLE
    for name in names:
        if name not in tasks():
            close = get_close_matches(name, tasks(), n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "miniwob_tasks.tasks() lists them"
            raise UsageError(f"no task of MiniWoB is {name!r}; {hint}")
    if not names:
        raise UsageError("task names no task of MiniWoB; expected one, several, or 'text'")
    return tuple(dict.fromkeys(names))
