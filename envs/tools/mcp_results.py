"""Results of MCP servers as text for the agent, and as data for the final state. Left out: the calls (`mcp`)."""

import json
from typing import Any

from palaestra.errors import Broken

MAX_FINAL_CHARS = 1_000_000
"""Maximum characters of a final state, which the record of every episode holds."""


def content_text(result: Any) -> str:
    """Return a result as text: its texts, and kind and size of other blocks. Without blocks: its data as JSON."""
    parts = [_block(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
    if block.type == "resource_link":
        return f"[resource {block.uri} {block.name}]"
    resource = block.resource
    text = getattr(resource, "text", None)
    return str(text) if text is not None else f"[resource {resource.uri}, {len(resource.blob) * 3 // 4} bytes]"


def final_value(result: Any) -> Any:
    """Return the data of a result: its structured content, or its text, read as JSON if it is JSON.

    Servers put a value that is no object into an object with the one key "result"; the value is taken out of it.
    """
    value = result.structured_content
    if isinstance(value, dict) and value.keys() == {"result"}:
        value = value["result"]
    text = json.dumps(value) if value is not None and not isinstance(value, str) else value or content_text(result)
    if len(text) > MAX_FINAL_CHARS:
        raise Broken(f"the final state has {len(text):,} characters; at most {MAX_FINAL_CHARS:,} are recorded")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
