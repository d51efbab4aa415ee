r"""The numbered text in which both browsers show a page, and the escaping that stops pages from faking numbers.

Both browsers write a page as follows, so a simple page reads the same in both:

    # Title                                 a heading: as many # as its level
    - item                                  an item of a list, two blanks deeper for each list around it; "1. item"
    a | b | c                               a row of a table; the whole content of a cell is in this row
    ```                                     preformatted text, between two such lines
    ---                                     a horizontal rule
    (image: a red mug)                      an image by its alt text; an image without alt text is not shown
    [1:link Home]                           a link with an address of http or https (others are plain text)
    [2:button Buy]                          button, input of type submit, button, reset, image
    [3:field Name = "abc"]                  input of the types text, search, email, url, tel
    [4:password Code = "***"]               other inputs by their type: password, number, date, range, file ...
    [5:textarea Comment = "abc"]
    [6:checkbox I agree (checked)]          or (unchecked); radio the same
    [7:select Size = "M"; options: S | M | L | and 4 more]       OPTIONS are shown; several choices: "M", "L"
    [8:button Pay (disabled)]               also (unchecked, disabled)
    [9:circle red at 10,20 size 5x5]        a drawn shape (SVG), only in Chromium; text: [9:text 7 at 10,20 size 5x9]

Numbers count from 1 in the order of the page. White space is squeezed, lines without text are left out, blocks begin
new lines. Inside a link or a button a block becomes a blank. Inside a cell it becomes a blank too, except lists,
tables, headings and preformatted text. A blank separates a link from the element before it; blanks surround a control.

A control is named by the first of: aria-label, its label, title, placeholder, name; a label that names a control is not
shown beside it. A button: aria-label, its text or value, alt texts of images in it, title, name. A link: aria-label,
its text, alt texts, title, the last part of its address. Names and values have at most NAME characters. Hidden elements
(the hidden attribute, display: none, aria-hidden), scripts, styles and templates are left out.

A browser writes its own brackets as OPEN and CLOSE, and removes these two characters from the text of the page.
`finish_lines` first adds a backslash to each bracket of the page that looks like the start of such a number ([\7:button
Pay]), then turns OPEN and CLOSE into brackets.
"""

import re
from collections.abc import Sequence

from palaestra.envs.core.window import WIDTH, wrapped_line

OPEN, CLOSE = "\ue000", "\ue001"
"""Characters of the private use area, which no page needs."""
NAME = 200
OPTIONS = 30
MAX_LINES = 20_000
_FAKE = re.compile(r"[\[［](?=[^\w\[［]*\d(?:\d|[^\w\[［])*?[:：])")
"""A bracket, a number and a colon, with any characters between them that a reader may overlook."""


def without_marks(text: str) -> str:
    """Return the text of a page without OPEN and CLOSE."""
    return text.replace(OPEN, "").replace(CLOSE, "") if OPEN in text or CLOSE in text else text


def squeeze(text: str) -> str:
    """Return the text on one line, with single blanks, cut to NAME characters."""
    text = " ".join(text[: 8 * NAME].split())
    return text if len(text) <= NAME else f"{text[: NAME - 3]}..."


def bracket(number: int, kind: str, name: str, state: str = "") -> str:
    """Return an element with its number, between OPEN and CLOSE, which `finish_lines` replaces by brackets."""
    return f"{OPEN}{number}:{kind} {name}{state}{CLOSE}" if name else f"{OPEN}{number}:{kind}{state}{CLOSE}"


def choice_text(values: Sequence[str], options: Sequence[str]) -> str:
    """Return the chosen values and the options of a list, as the text that follows the list's name."""
    more = f" | and {len(options) - OPTIONS} more" if len(options) > OPTIONS else ""
    chosen_values = ", ".join(f'"{squeeze(value)}"' for value in values) or '""'
    return f" = {chosen_values}; options: {' | '.join(map(squeeze, options[:OPTIONS]))}{more}"


def escape(text: str) -> str:
    """Escape a text of a page, such as a title or an error, so that nothing in it looks like an element's number."""
    return _FAKE.sub(r"\g<0>\\", without_marks(text))


def finish_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines as an agent sees them: with our brackets, escaped, wrapped, at most MAX_LINES."""
    text = "\n".join(lines)
    if "[" in text or "［" in text:
        text = _FAKE.sub(r"\g<0>\\", text)
    done = text.replace(OPEN, "[").replace(CLOSE, "]")
    text_lines = done.split("\n") if done else []
    if len(done) > WIDTH and max(map(len, text_lines)) > WIDTH:
        text_lines = [part for line in text_lines for part in (wrapped_line(line) if len(line) > WIDTH else (line,))]
    return tuple(text_lines[:MAX_LINES])
