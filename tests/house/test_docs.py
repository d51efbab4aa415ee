"""What the pages say is so: blocks run, links lead somewhere, options exist, the table of settings is current."""

import ast
import json
import re
from contextlib import redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from io import StringIO
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, Reader, blocks, same

from palaestra.cli import COMMANDS, main
from palaestra.envs import ToolEnv
from palaestra.registry import author_class, registered
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.config.recipes import CORRECTIONS, Recipe
from palaestra.trainers.validation import PARTS, flat, plain

CLI = ROOT / "palaestra" / "cli"
LONG_HELP = ("train", "sweep", "demo", "sft")
"""Commands whose `--help` shows only their main options, and `--help-all` every one."""
SUBCOMMANDS = {
    "serve": (
        *CLI.glob("serve_*.py"),
        CLI / "shared_options.py",
        ROOT / "envs" / "sandboxes" / "remote" / "admission.py",
    ),
    "index": (CLI / "index.py", ROOT / "envs" / "search" / "corpus.py"),
}
"""Where commands of two words declare their options."""
OF_PAGES = ("advantage.scale",)
"""Settings of parts that a page defines (`your_own_parts.md`)."""
WALKED = [page for page in PAGES if page.name != "README.md" and blocks(page.read_text("utf-8"))]


@pytest.mark.prove
@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, shared_runs: Path) -> None:
    reader = Reader(tmp_path, shared_runs)
    if "runs/first" in page.read_text("utf-8"):
        assert any("--run runs/first" in block.text for block in blocks(page.read_text("utf-8"))), "it trains none"
    reader.follow(page)


def test_every_block_is_run_kept_compared_or_excused() -> None:
    for page in PAGES:
        before: Block | None = None
        for block in blocks(page.read_text("utf-8")):
            known = block.runs or block.name or block.excuse or (block.language == "text" and before and before.runs)
            where = f"{page.name}, line {block.line}"
            assert known, f"{where}: say 'Save this as `NAME`', or excuse it with <!-- not run: REASON -->"
            assert block.excuse is None or len(block.excuse.split()) >= 3, f"{where}: for what reason?"
            before = block
        outside = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        hidden = re.findall(r"^ {4}palaestra [a-z]+ .*$", outside, re.MULTILINE)
        assert not hidden, f"{page.name}: a command hides in an indented block"


def test_the_examples_of_own_parts_are_short() -> None:
    page = (ROOT / "docs" / "your_own_parts.md").read_text("utf-8")
    sizes = [sum(map(bool, block.text.split("\n"))) for block in blocks(page) if block.language == "python"]
    assert len(sizes) == 5
    assert max(sizes) <= 20


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            if not re.match(r"https?:", target):
                name, _, section = target.partition("#")
                found = page.parent / name if name else page
                assert found.exists(), (page.name, target)
                assert not section or section in sections(found), (page.name, target)


def sections(page: Path) -> list[str]:
    """What the headings of a page are called in links to them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
        if (page.parent / target.partition("#")[0]).resolve() != page
    }
    assert [page.name for page in PAGES if page.name != "README.md" and page not in linked] == []


def test_a_page_begins_with_what_it_is_for_and_who_can_skip_it() -> None:
    for page in PAGES[1:]:
        if page.name != "configuration.md":  # It is generated, and is searched, not read.
            opening = page.read_text("utf-8").split("\n\n")[1]
            assert "skip it" in " ".join(opening.lower().split()[:65]), page.name


def test_the_index_answers_each_question_with_a_section() -> None:
    entries = re.findall(r"^- (.*(?:\n  .*)*)", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE)
    assert len(entries) >= 60
    assert len({entry.partition("?")[0] for entry in entries}) == len(entries)
    whole = ("configuration.md", "reference/palaestra.md", "dependencies.md", "papers.md", "trust.md", "results.md")
    for entry in entries:
        targets = re.findall(r"\]\(([^)\s]+)\)", entry.partition("?")[2])
        assert targets, f"no answer: {entry}"
        assert all("#" in target or target in whole for target in targets), (
            entry
        )  # test_links_lead_somewhere follows them.


def test_every_make_target_is_a_habit_that_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    assert [name for name in targets if f"`make {name}`" not in page and name not in ("help", "clean")] == []


OPTION = r"--[a-z][a-z0-9-]*(?:\.(?:[a-z][a-z0-9-]*)?)*"


@cache
def options(command: str) -> frozenset[str]:
    """The options that a command's help shows, read from where they are declared."""
    shown = StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        main([command, "--help-all" if command in LONG_HELP else "--help"])
    shown.write("--help-all" * (command in LONG_HELP))
    # Those of a part are in the help only where a recipe has it.
    return frozenset(re.findall(OPTION, shown.getvalue())) | (of_parts() if command == "train" else frozenset())


@cache
def of_parts() -> frozenset[str]:
    """The options of all parts that a recipe may have."""
    parts = ((part.name, kind) for part in fields(Recipe) for kind in part.metadata.get(PARTS, {}).values())
    named = [f"{name}.{one.name}" for name, kind in parts if is_dataclass(kind) for one in fields(kind)]
    named += [*(part.name for part in fields(Recipe) if PARTS in part.metadata), *OF_PAGES]
    switched = [name.replace(".", ".no-", 1) for name in named]
    return frozenset(f"--recipe.{name.replace('_', '-')}" for name in (*named, *switched))


def known(option: str, command: str) -> bool:
    """Whether a command has an option, or, for one that ends with a dot as in `--save.*`, one of the section."""
    field = f" {option.removeprefix('--').replace('-', '_')}: "
    if any(field in source.read_text("utf-8") for source in SUBCOMMANDS.get(command, ())):
        return True
    if command in ("doctor", "plan") and known(option, "train"):
        return True  # They describe a run as `train` does.
    return option in options(command) or (option.endswith(".") and any(o.startswith(option) for o in options(command)))


def test_commands_and_options_in_the_text_exist() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        shown = [*re.findall(r"`(palaestra [^`]+)`", text)]
        shown += [line for block in blocks(text) if block.language == "sh" for line in joined(block.text)]
        for line in shown:
            words = line.split()
            if words[0] != "palaestra" or not words[1].islower():
                continue
            assert words[1] in COMMANDS, (page.name, line)
            for option in re.findall(rf"(?<!\S){OPTION}", line):
                assert option in ("--help", "--version") or known(option, words[1]), (page.name, line)
        for option in re.findall(f"`({OPTION})", text):
            assert any(known(option, command) for command in COMMANDS), (page.name, option)


def joined(script: str) -> list[str]:
    """The commands of a script, those over several lines in one; what is fed to them is left out."""
    script = re.sub(r"<<'(\w+)'\n.*?^\1$", "", script.replace("\\\n", " "), flags=re.MULTILINE | re.DOTALL)
    return [line for line in script.splitlines() if line.strip()]


def test_the_table_of_settings_is_current() -> None:
    spec = spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert reference.page() == reference.PAGE.read_text("utf-8"), "docs/configuration.md is out of date: make docs"


def test_every_option_of_the_suite_has_a_row_and_words() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    section = page.partition("## Options of environments")[2].partition("\n## ")[0]
    rows = {cells[1].strip(" `"): cells for line in section.splitlines() if len(cells := line.split("|")) == 5}
    for env_id in registered():
        if not env_id.startswith("palaestra/"):
            continue
        cells = rows[env_id.removeprefix("palaestra/")]
        author = author_class(env_id)
        for name in signature(author).parameters:
            explained = section.replace(cells[2], "")
            assert re.search(rf"`{name}[`=]", explained), f"{env_id}: {name}"
            assert f"`{name}=" in cells[2] or name in ("split", "format"), f"{env_id}: {name}"


def test_every_setting_has_a_row_and_words() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    files = sorted((ROOT / "trainers" / "config").glob("*_config.py"))
    sources = [ast.parse(file.read_text("utf-8")) for file in files]
    configs = [node for source in sources for node in source.body if isinstance(node, ast.ClassDef)]
    sections = {"env", "play", "engine", "recipe", "optimizer", "scale", "save", "eval", "cold_start"}
    named = {ast.unparse(node.target) for one in configs for node in one.body if isinstance(node, ast.AnnAssign)}
    for name in sorted(named - sections - {"KIND", "LENGTH"}):
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert row.removesuffix(" |").rpartition(" | ")[2].strip(), name


def test_what_a_run_can_be_told_has_rows_of_settings_that_exist() -> None:
    page = (ROOT / "docs" / "coming_from.md").read_text("utf-8")
    section = page.partition("beside TRL and verl\n")[2].partition("\n## ")[0]
    rows = [cells[1:-1] for line in section.splitlines() if len(cells := line.split("|")) > 2]
    assert len(rows) > 30
    assert {len(cells) for cells in rows} == {4}
    plain_config = flat(plain(grpo_config("any")))
    settings = set(plain_config) | {"recipe.correction", "recipe.advantage", "recipe.loss", "recipe.sampler"}
    for part in CORRECTIONS:
        settings |= set(flat(plain(grpo_config("any", correction=part))))
    told = {name for cells in rows for name in re.findall(r"`([^`]+)`", cells[0])}
    of_environments = {name for name in told if hasattr(ToolEnv, name)}
    assert told - settings - of_environments == {"--resume"}
    sections = {name.partition(".")[0] for name in plain_config if "." in name}
    assert sections - {name.partition(".")[0] for name in told} == {"cold_start"}


@pytest.mark.prove  # The pages above have trained by then.
def test_every_metric_of_a_step_is_explained(shared_runs: Path) -> None:
    written = shared_runs / "first" / "metrics.jsonl"
    if not written.exists():
        pytest.skip("no page has trained its agent in this session")
    page = (ROOT / "docs" / "train.md").read_text("utf-8")
    names = json.loads(written.read_text("utf-8").splitlines()[-1])
    assert [name for name in names if f"`{name}`" not in page] == []


def test_what_a_block_printed_is_compared_with_gaps() -> None:
    assert same("one\n...\nfour\n", "zero\none  \ntwo\nfour\n")
    assert not same("one\n...\nfive\n", "one\ntwo\n")
    assert not same("ONE\n", "one\n")


def test_blocks_know_what_is_asked_of_them() -> None:
    page = "Save this as\n`a.py`:\n\n```python\nx\n```\n\nText.\n\n"
    page += "<!-- not run: needs a GPU here -->\n```sh\ny\n```\n\n```sh\nz\n```\n"
    first, second, third = blocks(page)
    assert (first.name, first.runs) == ("a.py", False)
    assert (second.excuse, second.runs) == ("needs a GPU here", False)
    assert (third.excuse, third.name, third.runs) == (None, "", True)


@pytest.mark.parametrize("block", ["false", "true | false | true", "echo $undefined"])
def test_a_block_that_fails_fails_the_page(block: str, tmp_path: Path, shared_runs: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```sh\n{block}\n```\n", "utf-8")
    folder = tmp_path / "reader"
    folder.mkdir()
    with pytest.raises(AssertionError, match=r"page\.md, line 1"):
        Reader(folder, shared_runs).follow(page)
