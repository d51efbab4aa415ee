"""Write docs/configuration.md: every setting with its type, its defaults and the words under it in the source.

    python scripts/reference.py

The source is the truth: names, types and words are read from it, defaults from the objects it makes, and a test fails
when the page is not current. Left out: options of single commands (`palaestra COMMAND --help`).
"""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from palaestra.agents.play import TokenLimits
from palaestra.cli.agents import AgentOptions
from palaestra.cli.short_help import field_texts, is_main
from palaestra.endpoint import EndpointConfig
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.sandboxes import Limits
from palaestra.envs.suite.reasoning_items import DENIED
from palaestra.registry import author_class, registered
from palaestra.trainers.config.grpo_config import grpo_config, tiny_config
from palaestra.trainers.config.recipes import RECIPES, Recipe
from palaestra.trainers.config.sft_config import SFTConfig, tiny_sft_config
from palaestra.trainers.validation import PARTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
HEAD = """\
# Configuration

Written by `make docs` from the source; edit the words there. On the command line `num_prompts` of the section `play` is
`--play.num-prompts`, and `ordered`, a `bool`, is `--play.ordered` or `--play.no-ordered`; in Python it is
`tiny_config(ID, num_prompts=4)`, for no name stands in two sections. `palaestra COMMAND --help` shows the settings that
are changed most; here the others are in tables of their own. They go in a file, by `--set`, and as options too
([how](train.md#settings-in-a-file)); `--help-all` shows them. A run's `config.json` holds the values that it was run
with. [train.md](train.md) says how they are used.
"""
ENVIRONMENTS = """\
## Options of environments

`--env-options digits=2 sandbox=docker` on every command, `gymnasium.make(ID, digits=2)` and `palaestra.arena(ID, n,
digits=2)` in Python. A value that reads as JSON is that value. Whatever the table says, an environment takes `split`
(`train` or `eval`, or `all` of a file; a command chooses its own), `format` ([how calls are
written](write_an_environment.md#how-calls-are-written)) and, in Python, `render_mode`. In the table `tasks` is a file
of tasks, read as [write_an_environment.md](write_an_environment.md#the-task) says, and `sandbox` the name of a backend
or a mapping with its options ([sandbox.md](sandbox.md)). The games take `split`, `format` and `seat`, the one seat that
is played. `palaestra list ID` shows the options of one environment, of yours too.
"""
GENERATORS = """\
`generator` is one of reasoning-gym's, and `config={"max_numbers": 5}` has settings of its own. Refused are these, and
with your settings any that fails the same look at its items:
"""
_COMMON = ("self", "split", "format")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    parts = [
        "# Training\n\n`palaestra train`, and `demo` with the tiny agent. `--recipe` chooses a preset below.\n",
        *nested("GRPOConfig", {"a model of yours": grpo_config("-"), "tiny": tiny_config("-")}),
        "# The algorithm\n\n`--recipe.PART NAME` changes a part that is one of several.\n",
        *nested("Recipe", dict(RECIPES), "recipe"),
        *named_parts(),
        "# Imitation\n\n`palaestra sft`.\n",
        *nested("SFTConfig", {"a model of yours": SFTConfig(), "tiny": tiny_sft_config()}),
        "# Everything else\n",
        section("Who plays: `AgentOptions`", "`palaestra eval`, `collect` and `curate`.", AgentOptions),
        section("A server: `EndpointConfig`", "From Python: `EndpointPolicy`.", EndpointConfig),
        section("Token limits of an episode: `TokenLimits`", "From Python: `play`.", TokenLimits),
        environments(),
        section(
            "What an environment sets: attributes of its class",
            "A subclass has others, as in `class Short(TwoHop): max_turns = 3`, and draws other problems.",
            ToolEnv,
            {"default": {name: getattr(ToolEnv, name, MISSING) for name in declared(ToolEnv)}},
            said="",
        ),
        section(
            "Limits of a program: `Limits` of `palaestra.envs.sandboxes`",
            "Of a toolkit's `limits` and of `open_sandbox`.",
            Limits,
        ),
    ]
    return "\n".join([HEAD, *parts])


def nested(title: str, columns: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """A config as a table for itself and one for each of its sections, a column for each of some configs."""
    first = next(iter(columns.values()))
    sections = [
        field.name for field in fields(first) if is_dataclass(getattr(first, field.name)) and field.name != "recipe"
    ]
    # What the reader names is no default.
    shown = {
        name: values(made) | ({"env_id": MISSING} if "env_id" in values(made) else {}) for name, made in columns.items()
    }
    if own := [name for name, value in values(first).items() if not is_dataclass(value) and name != "recipe_name"]:
        where = f"`--{prefix.replace('_', '-')}.NAME`." if prefix else ""
        yield section(f"{prefix or 'At the top'}: `{title}`", where, type(first), shown, settings=own, prefix=prefix)
    for name in sections:
        below = {column: getattr(made, name) for column, made in columns.items()}
        yield from nested(type(getattr(first, name)).__name__, below, f"{prefix}.{name}" if prefix else name)


def named_parts() -> Iterator[str]:
    """The settings of parts that are named, but for those of the first preset, which have tables of their own."""
    first = next(iter(RECIPES.values()))
    for field in fields(Recipe):
        shown = type(getattr(first, field.name))
        for name, kind in field.metadata.get(PARTS, {}).items():
            if kind is not shown and is_dataclass(kind) and fields(kind):
                named = f"Of `--recipe.{field.name} {name}`."
                yield section(f"recipe.{field.name}, {name}: `{kind.__name__}`", named, kind)


def environments() -> str:
    """What each environment of the suite takes, by the signature of its class and the words below it."""
    rows = [["`palaestra/...`", "options", "what they are"], ["---"] * 3]
    for env_id in registered():
        if not env_id.startswith("palaestra/"):
            continue
        made = author_class(env_id).__init__
        options = [
            f"`{name}={one.default!r}`"
            for name, one in inspect.signature(made).parameters.items()
            if name not in _COMMON
        ]
        said = "" if made is ToolEnv.__init__ else " ".join((inspect.getdoc(made) or "").split())
        rows.append([f"`{env_id.removeprefix('palaestra/')}`", ", ".join(options), said])
    reasons: dict[str, list[str]] = {}
    for name, why in DENIED.items():
        reasons.setdefault(why, []).append(f"`{name}`")
    refused = "\n".join(f"- {', '.join(names)}: {why}" for why, names in reasons.items())
    return f"{ENVIRONMENTS}\n{drawn(rows)}\n\n{GENERATORS}\n{refused}\n"


def section(
    title: str,
    where: str,
    kind: type,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
    said: str | None = None,
    settings: Sequence[str] | None = None,
    prefix: str = "",
) -> str:
    """Return a class as a table with a row a field and a column for each set of values; or some `settings` of a run as
    two tables, of those that `--help` shows and of the others.
    """
    shown = columns or {"default": defaults(kind)}
    said = " ".join((inspect.getdoc(kind) or "").split()) if said is None else said
    rows = {
        name: [f"`{name}`", f"`{type_}`", *(cell(found.get(name, MISSING)) for found in shown.values()), words]
        for name, (type_, words) in declared(kind).items()
    }
    head = [["name", "type", *shown, "what it is"], ["---"] * (len(shown) + 3)]
    tables = {"": list(rows)}
    if settings is not None:
        main = [name for name in settings if is_main(f"{prefix}.{name}".strip("."))]
        tables = {"On the command line:": main, "In a file:": [name for name in settings if name not in main]}
    parts = [[caption, drawn([*head, *(rows[name] for name in names)])] for caption, names in tables.items() if names]
    blocks = [f"## {title}", f"{where} {said}".strip(), *(block for part in parts for block in part if block)]
    return "\n\n".join(blocks) + "\n"


def drawn(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows)


def declared(kind: type) -> dict[str, tuple[str, str]]:
    """Type and words of each field, as the source has them; those of a section's bases first."""
    found: dict[str, tuple[str, str]] = {}
    for base in kind.__bases__:
        found |= declared(base) if is_dataclass(base) else {}
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    for statement in body.body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if not statement.target.id.startswith("_"):
            words = field_texts(kind).get(statement.target.id, "")
            found[statement.target.id] = (plain(statement.annotation), words)
    for field in fields(kind) if is_dataclass(kind) else ():
        if table := field.metadata.get(PARTS):
            found[field.name] = (f"Literal[{', '.join(map(repr, table))}]", found[field.name][1])
    return found


def plain(annotation: ast.expr) -> str:
    """A type without what is only for the command line."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        annotation = annotation.slice.elts[0]
    return ast.unparse(annotation)


def defaults(kind: Any) -> dict[str, Any]:
    """Each field's default; MISSING where it must be given."""
    return {field.name: field.default for field in fields(kind)}


def values(made: Any) -> dict[str, Any]:
    """What an object holds; of a part that is one of several, its name."""
    found = {field.name: getattr(made, field.name) for field in fields(made)}
    for field in fields(made):
        for name, kind in field.metadata.get(PARTS, {}).items():
            if type(found[field.name]) is kind:
                found[field.name] = name
    return found


def cell(value: Any) -> str:
    """A value as it is written in Python."""
    return "" if value is MISSING else f"`{value!r}`"


if __name__ == "__main__":
    main()
