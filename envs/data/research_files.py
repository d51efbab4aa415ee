"""Reads research questions in their published columns, from JSON lines, a JSON list, CSV or parquet.

    GAIA                  Question, Final answer; Level, file_name and task_id may be missing
    HLE                   question, answer, answer_type (multipleChoice or exactMatch), image (a data: address)
    xbench-DeepSearch     prompt, answer, canary: published encrypted (base64 of the text, each byte xor a byte of the
                          repeated `canary` of the row) and decrypted by this module; a row of plain text is read too
    WebWalkerQA           question, answer, root_url

The columns decide the format. All of these are tests: without a column `split` every row is eval. A question's file is
read from a folder; an image of the row counts as a file too. All rows are checked before one is used. Left out:
fetching files.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from typing import Any

from palaestra.envs.data.problem_files import cell_text, published
from palaestra.envs.data.rows import Row, describe, list_names, read_rows
from palaestra.envs.data.task_rows import first_of
from palaestra.episode import Task

MAX_FILE_BYTES = 64 * 2**20
"""Largest file of a question, in bytes."""
_EXPECTED = (
    "those of GAIA (Question, Final answer), HLE (question, answer, answer_type), "
    "xbench (prompt, answer, canary) or WebWalkerQA (question, answer, root_url)"
)
_OPTION = re.compile(r"^[ \t]*\(?([A-Z])[).:][ \t]+\S", re.MULTILINE)
_IMAGE = re.compile(r"data:image/(\w+)[^,]*;base64,")
_SUFFIXES = {"jpeg": "jpg"}


def holds_research(path: str) -> bool:
    """Return whether a file has one of these formats, by the columns of its first row or a `canary` in any row."""
    rows = read_rows(path)[1]
    first = next(rows, None)
    if first is None or {"Question", "question", "canary"} & first.columns.keys():
        return first is not None
    return any("canary" in row.columns for row in rows)


def read_research(path: str, split: str, folder: str) -> list[Task]:
    """Return the questions of one split, or of `all`.

    `data` has `benchmark`, and `file` or `image` if the question has one.

    `folder` holds the files of the questions.
    """
    return published(path, split, lambda row: ("eval", _task(row, folder)))


def image_bytes(image: str) -> tuple[str, bytes]:
    """Return the name and the content of an image that is written as a data: address."""
    match = _IMAGE.match(image)
    if match is None:
        raise ValueError(f"has {describe(image)} in 'image'; expected data:image/...;base64,...")
    try:
        content = base64.b64decode(image[match.end() :], validate=True)
    except binascii.Error as error:
        raise ValueError(f"has an image that is no base64: {error}") from None
    return f"image.{_SUFFIXES.get(match[1], match[1])}", content


def _task(row: Row, folder: str) -> Task:
    """Return the task of a row; raise ValueError if the row is wrong."""
    cells, data = row.columns, dict[str, Any]()
    if "Final answer" in cells:
        data |= {"benchmark": "GAIA", "level": str(cells.get("Level") or "")}
        prompt, answer = cell_text(cells, "Question"), cell_text(cells, "Final answer")
        if answer == "?":
            raise ValueError("has the answer '?': GAIA keeps those of its test; expected rows of its validation set")
        if cells.get("file_name"):
            data["file"] = _file(cell_text(cells, "file_name"), folder)
    elif "prompt" in cells and "answer" in cells:
        data["benchmark"] = "xbench"
        prompt, answer = (decrypted(cells, column) for column in ("prompt", "answer"))
    elif "root_url" in cells or "Root_Url" in cells:
        data["benchmark"] = "WebWalkerQA"
        root = first_of(cells, ("root_url", "Root_Url"))[1]
        prompt, answer = (cell_text(cells, first_of(cells, names)[0] or names[0]) for names in _EITHER)
        prompt = f"{prompt}\n\nThe answer is on the site {root} or on a page that it leads to."
    elif "answer_type" in cells:
        data["benchmark"] = "HLE"
        prompt, answer = cell_text(cells, "question"), cell_text(cells, "answer")
        if cells["answer_type"] == "multipleChoice":
            letters = "".join(dict.fromkeys(_OPTION.findall(prompt))) or "ABCDE"
            if answer not in tuple(letters):
                raise ValueError(f"has the answer {answer!r:.50}; expected one of its options, {', '.join(letters)}")
            data["letters"] = letters
        if cells.get("image"):
            image_bytes(cell_text(cells, "image"))  # Refused here rather than in an episode.
            data["image"] = cells["image"]
    else:
        raise ValueError(f"has the columns {list_names(cells)}; expected {_EXPECTED}")
    name = data.get("file") or (image_bytes(data["image"])[0] if "image" in data else "")
    prompt += f"\n\nA file comes with it: {name}" if name else ""
    return Task(prompt, answer, str(first_of(cells, ("task_id", "id"))[1] or ""), data)


_EITHER = (("question", "Question"), ("answer", "Answer"))


def _file(name: str, folder: str) -> str:
    path = os.path.join(folder, name)
    if os.path.basename(name) != name or not os.path.isfile(path):
        raise ValueError(f"comes with the file {name!r:.80}, which is not in {folder!r}; say where: files=FOLDER")
    if os.path.getsize(path) > MAX_FILE_BYTES:
        raise ValueError(f"comes with the file {name!r}, which is larger than MAX_FILE_BYTES, {MAX_FILE_BYTES:,}")
    return name


def decrypted(cells: Mapping[str, Any], column: str) -> str:
    """Return a cell of an xbench row as plain text.

    A row counts as encrypted if its prompt is valid base64. An answer such as 1949 may be base64 by chance, a question
    never is.
    """
    text, key = cell_text(cells, column), str(cells.get("canary") or "").encode()
    try:
        base64.b64decode(cell_text(cells, "prompt"), validate=True)
    except ValueError:
        return text
    try:
        coded = base64.b64decode(text, validate=True)
        return bytes(byte ^ key[index % len(key)] for index, byte in enumerate(coded)).decode() if key else text
    except ValueError:
        raise ValueError(
            f"has text in {column!r} that its 'canary' does not decrypt; expected what xbench publishes: base64 of the "
            "text, each byte xor the canary's; or prompt and answer as plain text"
        ) from None
