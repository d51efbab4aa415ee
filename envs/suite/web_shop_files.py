"""WebShop's published files: its catalogue, and the goals that people wrote for it.

    catalogue   items_shuffle.json and parts of it: asin, name, query, product_category, pricing ("$9.99" or "$9 to
                $12"), small_description, full_description, customization_options ({"size": [{"value": "large"}, ...]});
                `attributes`, which WebShop has in items_ins_v2.json, may be one more column
    goals       the entries of items_human_ins.json, one in each row: asin, instruction, instruction_attributes,
                instruction_options; or the goals of the released code: instruction_text, attributes, goal_options,
                price_upper

The upper end of a price range is the price; without a price it is $100, as in the released code. Left out: files that
do not fit into memory, images, reviews.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import published
from palaestra.envs.data.rows import Row, describe, list_names, read_rows
from palaestra.envs.data.task_rows import first_of
from palaestra.envs.suite.web_shop_goods import Catalogue, Product
from palaestra.episode import Task
from palaestra.errors import TaskFileError

INSTRUCTIONS = ("instruction_text", "instruction")
_ATTRIBUTES = ("instruction_attributes", "attributes")
_OPTIONS = ("instruction_options", "goal_options", "options")
_ANY_PRICE = 10_000
_NO_BOUND = 1_000_000
"""Value of `price_upper`, in dollars, that means no price limit in the released code."""


def holds_goals(path: str) -> bool:
    """Return whether a file holds goals, judged by its first row."""
    first = next(read_rows(path)[1], None)
    return first is not None and any(name in first.columns for name in INSTRUCTIONS)


@lru_cache(maxsize=4)
def read_catalogue(path: str) -> Catalogue:
    """Read the products of a file. Raise `TaskFileError` for the first invalid row."""
    unit, rows = read_rows(path)
    return Catalogue(_products(path, unit, rows))


def _products(path: str, unit: str, rows: Iterator[Row]) -> Iterator[Product]:
    for row in rows:
        try:
            if row.fault:
                raise ValueError(row.fault)
            yield _product(row.columns)
        except ValueError as error:
            raise TaskFileError(path, f"{unit} {row.number} {error}") from None


def _product(cells: Mapping[str, Any]) -> Product:
    key, title = cells.get("asin"), cells.get("name")
    if not isinstance(key, str) or not key or not isinstance(title, str) or not title:
        raise ValueError(f"has the columns {list_names(cells)}; expected a text in 'asin' and in 'name'")
    prices = re.findall(r"\d[\d,]*(?:\.\d+)?", str(cells.get("pricing") or ""))
    choices = cells.get("customization_options") or {}
    if not isinstance(choices, Mapping) or not all(map(_are_choices, choices.values())):
        raise ValueError(
            f"has {describe(choices)} in 'customization_options'; expected lists of entries with a 'value'"
        )
    return Product(
        key, title, str(cells.get("query") or "").lower().strip(),
        round(float(prices[-1].replace(",", "")) * 100) if prices else _ANY_PRICE,
        _texts(cells.get("attributes") or []), _texts(cells.get("small_description") or []),
        {name.lower(): _texts([choice["value"] for choice in values]) for name, values in choices.items() if values},
        str(cells.get("product_category") or ""), str(cells.get("full_description") or ""),
    )  # fmt: skip


def _are_choices(values: object) -> bool:
    entries = values or []
    return isinstance(entries, list) and all(isinstance(entry, Mapping) and "value" in entry for entry in entries)


def _texts(cell: object) -> tuple[str, ...]:
    """Return the texts of a list, of the values of an object, or of a single text."""
    values = [cell] if isinstance(cell, str) else list(cell.values()) if isinstance(cell, Mapping) else cell
    if not isinstance(values, Sequence) or not all(isinstance(text, str) for text in values):
        raise ValueError(f"has {describe(cell)}; expected a list of texts")
    return tuple(text.strip() for text in values)


def read_goals(path: str, split: str, products: str) -> list[Task]:
    """Read the goals of a split, or of `all`, as tasks about the catalogue in the file `products`."""
    catalogue = read_catalogue(products)

    def read(row: Row) -> tuple[str, Task]:
        cells = row.columns
        text, product = first_of(cells, INSTRUCTIONS)[1], catalogue.products.get(str(cells.get("asin")))
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"has no instruction; expected one of the columns {list_names(INSTRUCTIONS)}")
        if product is None:
            raise ValueError(f"asks for {cells.get('asin')!r:.40}, which the catalogue does not hold")
        bound = cells.get("price_upper")
        if bound is not None and not isinstance(bound, int | float):
            raise ValueError(f"has {describe(bound)} in 'price_upper'; expected a number")
        goal = {
            "title": product.title, "query": product.query, "category": product.category,
            "attributes": list(_texts(first_of(cells, _ATTRIBUTES)[1] or [])),
            "options": list(_texts(first_of(cells, _OPTIONS)[1] or [])),
            "most": None if bound is None or bound >= _NO_BOUND else round(bound * 100),
        }  # fmt: skip
        return split_of(text), Task(text.strip(), id=str(row.number), data={"goal": goal, "products": products})

    return published(path, split, read, lambda task: task)
