"""Write the viewer as one self-contained HTML file, which needs no network, no library and no other file.

The page allows only its own script and style, by their hashes, so that no text of an agent can run; and the script
cannot build markup from text (trusted types). The data is JSON in script elements that browsers do not execute. The
lists come first, then the content of each episode, which is parsed when the episode is opened.
"""

import base64
import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from palaestra.errors import UsageError
from palaestra.trainers.run.atomic_files import whole_file
from palaestra.trainers.view.pages.compare_runs import RunComparison
from palaestra.trainers.view.pages.episode_view import content, embedded
from palaestra.trainers.view.pages.load_episodes import Collection

MARK = "<!doctype html><!-- palaestra view -->"
"""First bytes of every page. A file without them is never overwritten."""
SCRIPTS = (
    *("base", "store", "route", "list", "curves", "compare", "group"),
    *("episode", "tokens", "token_view", "diff", "main"),
)
"""Names of the script files, in the order in which they are joined."""


@dataclass(frozen=True, slots=True)
class Written:
    """Result of writing a page."""

    path: Path
    episodes: int
    bytes: int
    defects: int


def write(path: Path, collection: Collection | RunComparison) -> Written:
    """Read a collection to its end and write its page atomically."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file, such as {path / 'view.html'}")
    if path.exists() and not _is_ours(path):
        raise UsageError(f"{path} exists and is no page of this viewer; name another file with --out")
    try:
        with tempfile.TemporaryFile() as contents, whole_file(path) as page:
            for number, record in enumerate(collection.news()):
                block = f'<script type="application/json" id="episode-{number}">{embedded(content(record))}</script>\n'
                contents.write(block.encode("ascii"))
            collection.require_something()
            page.write((_head(policy()) + _body(embedded(collection.state()))).encode("utf-8"))
            contents.seek(0)
            shutil.copyfileobj(contents, page)
            page.write(b"</body></html>\n")
    except OSError as error:
        raise UsageError(f"the page {path} cannot be written: {error.strerror or error}") from error
    return Written(path, len(collection.entries), path.stat().st_size, len(collection.defects()))


def served() -> str:
    """Return the page of the live server. It contains no data; its script requests the data from the server."""
    return _head(policy(connect="'self'")) + _body("null") + "</body></html>\n"


def policy(connect: str = "'none'") -> str:
    """Return the content security policy, which allows only the script and the style of the viewer."""
    return (
        f"default-src 'none'; script-src {_hash(_script())}; style-src {_hash(_style())}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _head(allowed: str) -> str:
    return (
        f'{MARK}\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>palaestra view</title>\n<style>{_style()}</style></head>\n"
    )


def _body(state: str) -> str:
    return (
        '<body><div id="app"><noscript>This page draws itself with JavaScript, which is turned off.</noscript></div>\n'
        f'<script type="application/json" id="state">{state}</script>\n<script>{_script()}</script>\n'
    )


@cache
def _script() -> str:
    parts = [_asset("js", f"{name}.js") for name in SCRIPTS]
    return "'use strict';\n(() => {\n" + "\n".join(parts) + "})();\n"


@cache
def _style() -> str:
    return _asset("page.css")


def _asset(*names: str) -> str:
    text = files(__package__).joinpath(*names).read_text(encoding="utf-8")
    assert "</" not in text, f"{names[-1]} would end its own element"
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK.encode("ascii")
    except OSError:
        return False
