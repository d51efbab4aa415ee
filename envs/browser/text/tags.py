"""Names of tags, grouped by their effect on the text of a page (`reading`)."""

_LONE = "area base br col embed hr img input link meta param source track wbr"
VOID = frozenset(_LONE.split())
"""Tags without an end tag."""
DEAD = frozenset({"template", "noscript", "svg", "object", "math"})
"""Elements that are not shown, and whose controls are ignored."""
SENT = frozenset({"input", "select", "option", "textarea", "button", "form"})
"""Elements that count even if they are hidden."""
_BLOCKS = (
    "address article aside body br center dd details dialog div dl dt fieldset figcaption figure footer form header "
    "hgroup html legend main menu nav optgroup p search section summary"
)
SOFT = frozenset(_BLOCKS.split())
"""Blocks that become a blank inside a cell."""
HEADINGS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)}
STRONG = frozenset({*HEADINGS, "ul", "ol", "li", "table", "caption", "pre", "blockquote", "tr", "td", "th"})
KNOWN = SOFT | STRONG | SENT | {"a", "img", "hr", "label", "title", "base", "meta"}
