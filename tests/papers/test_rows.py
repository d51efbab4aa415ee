"""Each mechanism of the three papers has a test in this folder that names its row: `pytest tests/papers -k f34`.

A row counts as working only through what a user can call. Left out: what each row does here and in its source
(docs/papers.md); further tests of a mechanism, beside its others, may name its row too.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PAPERS = HERE.parents[1] / "docs" / "papers.md"
ROWS = [f"f{number:02d}" for number in range(1, 57)]


@pytest.fixture(scope="module")
def tests_by_row():
    found = defaultdict(list)
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_f"):
                for row in re.findall(r"f\d\d(?=_)", node.name):
                    found[row].append(f"{path.name}::{node.name}")
    return found


def test_every_row_of_the_papers_has_a_test_that_names_it_and_no_test_names_another(tests_by_row):
    assert sorted(tests_by_row) == ROWS


def test_the_page_says_what_every_row_is():
    listed = re.findall(r"\bF(\d\d)\b", PAPERS.read_text("utf-8").partition("## The rows")[2])
    assert sorted(f"f{row}" for row in listed) == ROWS
