"""Configure the documentation site: the pages of this folder, and the reference, which Sphinx reads from the source.

`make docs` builds it in `build/docs`. The names in the reference are those that the five public packages export and
those that a page imports from elsewhere. Left out: `docs/configuration.md`, which `scripts/reference.py` writes, and
`palaestra.interop`, whose modules import other projects that need not be installed here.
"""

import ast
import inspect
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

from sphinx.application import Sphinx

import palaestra

DOCS = Path(__file__).resolve().parent
ROOMS = ("palaestra", "palaestra.formats", "palaestra.envs", "palaestra.agents", "palaestra.trainers")
"""Packages whose `__all__` is public; each has its page in `reference/`."""
CHAPTERS = {
    "Start": ("quick_start", "coming_from", "interop", "from_python", "debug_a_reward"),
    "Environments": ("write_an_environment", "bring_your_agent", "sandbox", "search_tool", "browser", "tools"),
    "Training": ("train", "task_data", "scale", "engines", "analysis"),
    "Research": (
        "your_own_parts",
        "reward_model",
        "reagent",
        "papers",
        "study",
        "study_tables",
        "results",
        "benchmarks",
    ),
    "Look up": (
        *(f"reference/{room.rpartition('.')[2]}" for room in ROOMS),
        "genindex",
        "configuration",
        "trust",
        "dependencies",
    ),
}

project = "palaestra"
version = release = palaestra.__version__
html_title = f"palaestra {palaestra.__version__}"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_domain_indices = False
html_show_search_summary = False  # Summaries are fetched, which a page on disk may not do.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["pictures"]
myst_heading_anchors = 4
default_role = "code"  # Docstrings write names in single backticks.
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100


def imported_names() -> dict[str, list[str]]:
    """Return the names that the pages import, by module, without those that a public package exports."""
    exported = {name for room in ROOMS for name in import_module(room).__all__}
    found = defaultdict(set)
    for page in (DOCS.parent / "README.md", *DOCS.glob("*.md")):
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if not isinstance(node, ast.ImportFrom) or f"{node.module}.".startswith("palaestra.interop."):
                    continue
                if f"{node.module}.".startswith("palaestra."):
                    found[node.module] |= {name.name for name in node.names} - exported
    return {module: sorted(found[module]) for module in sorted(set(found) - set(ROOMS)) if found[module]}


def reference(room: str) -> str:
    """Return the directives of a package's page: what it exports, and what the pages import from its modules."""
    twice = ", ".join(palaestra.__all__) if room != "palaestra" else ""
    parts = [f".. automodule:: {room}\n   :exclude-members: {twice}"]
    late = [name for name in import_module(room).__all__ if name not in vars(import_module(room))]
    parts += [f".. auto{kind_of(room, name)}:: {room}.{name}" for name in late]  # Loaded when they are asked for.
    for module, names in imported_names().items():
        if max((one for one in ROOMS if f"{module}.".startswith(f"{one}.")), key=len) == room:
            parts += [f"{module}\n{'-' * len(module)}", inspect.getdoc(import_module(module)).partition("\n\n")[0]]
            parts += [f".. auto{kind_of(module, name)}:: {module}.{name}" for name in names]
    return "\n\n```{eval-rst}\n" + "\n\n".join(parts) + "\n```\n"


def kind_of(module: str, name: str) -> str:
    """Return which directive documents a name: that of a class, a function or a value."""
    value = getattr(import_module(module), name)
    return "class" if inspect.isclass(value) else "function" if inspect.isroutine(value) else "data"


def add_generated(app: Sphinx, document: str, source: list[str]) -> None:
    """Append the navigation to the first page, and the directives to a page of the reference."""
    if document == "index":
        for chapter, pages in CHAPTERS.items():
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {chapter}\n\n" + "\n".join(pages) + "\n```\n"
    for room in ROOMS:
        if document == f"reference/{room.rpartition('.')[2]}":
            source[0] += reference(room)


def to_restructured_text(app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Turn the `Args:` of a tool's docstring into a list of parameters, and indented blocks into literal ones."""
    if "Args:" in lines:
        start = lines.index("Args:")
        lines[start:] = ["", *(re.sub(r"^    (\w+):", r":param \1:", line) for line in lines[start + 1 :])]
    for index in range(len(lines) - 1, 1, -1):
        if lines[index].startswith("    ") and not lines[index - 1] and not lines[index - 2].startswith(" "):
            lines[index:index] = ["::", ""]


def without_factories(
    app: Sphinx, kind: str, name: str, value: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Write `...` for a default that a factory makes; Sphinx cannot read `<factory>` in a signature."""
    return signature and signature.replace("<factory>", "..."), returned


def setup(app: Sphinx) -> None:
    """Connect the functions above to Sphinx."""
    app.connect("source-read", add_generated)
    app.connect("autodoc-process-docstring", to_restructured_text)
    app.connect("autodoc-process-signature", without_factories)
