"""Reads PDF and the office formats as lines of text, page by page and row by row, and no more than is needed.

Left out: pictures, layout, comments, and formulas (a sheet shows the values that were computed last). `reading` limits
time and memory.
"""

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from palaestra.envs.files.limits import ReadLimits, UnreadableFile


def pdf_lines(data: bytes, limits: ReadLimits) -> Iterator[str]:
    """Yield the lines of a PDF's pages, each page after its number."""
    from pypdf import PdfReader

    reader = PdfReader(BytesIO(data), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableFile("is encrypted, and no password is known")
    for number, page in enumerate(limits.take(_pdf_pages(reader), "pages"), 1):
        if isinstance(page, str):
            yield page
            return
        yield f"[page {number}]"
        try:
            text = page.extract_text()
        except Exception as error:  # One broken page; the others may be fine.
            yield f"(this page cannot be read: {type(error).__name__})"
        else:
            yield from text.splitlines() or ["(no text: a picture, perhaps)"]


def _pdf_pages(reader: Any) -> Iterator[Any]:
    """Yield the pages one by one, because the library reads all of them before it returns the first."""
    from pypdf import PageObject

    inherited = ("/Resources", "/MediaBox", "/CropBox", "/Rotate")
    waiting: list[tuple[Any, dict[Any, Any]]] = [(reader.trailer["/Root"].raw_get("/Pages"), {})]
    visited = set()
    while waiting:
        reference, above = waiting.pop()
        node = reference.get_object()
        if id(node) in visited or not isinstance(node, dict):  # The tree is broken.
            continue
        visited.add(id(node))
        if "/Kids" in node:
            above = above | {name: node[name] for name in inherited if name in node}
            waiting += [(kid, above) for kid in reversed(node["/Kids"])]
            continue
        page = PageObject(reader, reference)
        page.update(above | dict(node))
        yield page


def docx_lines(data: bytes, limits: ReadLimits) -> Iterator[str]:
    """Yield the lines of paragraphs and tables of a Word document, in their order."""
    from docx import Document
    from docx.table import Table

    rows = limits.rows
    for block in Document(BytesIO(data)).iter_inner_content():
        if isinstance(block, Table):
            # Read the XML: the library's own cells take quadratic time.
            for row in block._tbl.tr_lst:
                if not rows:
                    yield limits.cut("rows")
                    return
                rows -= 1
                cells = ("".join(letters.text or "" for letters in cell.iter(_WORD + "t")) for cell in row.tc_lst)
                yield row_line(cells, limits)
            continue
        style = (block.style.name or "") if block.style is not None else ""
        level = style.removeprefix("Heading ")
        heading = "#" * int(level) + " " if style.startswith("Heading ") and level.isdigit() else ""
        if block.text:
            yield heading + ("- " if style.startswith("List") else "") + block.text


_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


def pptx_lines(data: bytes, limits: ReadLimits) -> Iterator[str]:
    """Yield the lines of a presentation's slides, each after its number, with the speaker's notes."""
    from pptx import Presentation

    for number, slide in enumerate(limits.take(Presentation(BytesIO(data)).slides, "pages"), 1):
        if isinstance(slide, str):
            yield slide
            return
        yield f"[slide {number}]"
        yield from _shape_lines(slide.shapes, limits)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            yield f"(notes) {slide.notes_slide.notes_text_frame.text}"


def _shape_lines(shapes: Iterable[Any], limits: ReadLimits) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _shape_lines(shape.shapes, limits)
        elif shape.has_text_frame:
            yield from shape.text_frame.text.splitlines()
        elif getattr(shape, "has_table", False):
            for row in limits.take(shape.table.rows, "rows"):
                yield row if isinstance(row, str) else row_line((cell.text for cell in row.cells), limits)


def xlsx_lines(data: bytes, limits: ReadLimits) -> Iterator[str]:
    """Yield the rows of every sheet that are not empty, with their numbers. The declared sheet size is ignored."""
    from openpyxl import load_workbook  # type: ignore[import-untyped]

    book = load_workbook(BytesIO(data), read_only=True, data_only=True, keep_links=False)
    left = limits.rows
    for sheet in book.worksheets:
        yield f"[sheet {sheet.title}]"
        sheet.reset_dimensions()
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            if not any(cell is not None for cell in row):
                continue
            if not left:
                yield limits.cut("rows")
                return
            left -= 1
            yield f"{number}: {row_line(row, limits)}"


def row_line(cells: Iterable[Any], limits: ReadLimits) -> str:
    """Return the cells of a row on one line, without the empty cells at its end."""
    texts = ["" if cell is None else " ".join(str(cell).split()) for cell in limits.take(cells, "cells")]
    while texts and not texts[-1]:
        texts.pop()
    return " | ".join(texts)
