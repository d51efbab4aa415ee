"""An MCP server with a small world: hidden calls load orders and dump them. It starts in no time.

Arguments of the command and the variable REGION are part of what it dumps.
"""

import json
import os
import sys

import plain_mcp_server as plain

NAMED = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
plain.TOOLS = {
    "load": {"type": "object"}, "dump": {"type": "object"}, "list_orders": {"type": "object"}, "cancel": NAMED,
    "status": NAMED,
}  # fmt: skip
plain.DESCRIPTIONS = {"cancel": "Cancel an order. Call list_orders first, and `status` at the end."}
world = {"orders": {}, "region": os.environ.get("REGION"), "arguments": sys.argv[1:]}


def called(name, arguments):
    if name == "load":
        if "refused" in arguments["orders"]:
            raise ValueError("the database is locked")
        world["orders"] = dict.fromkeys(arguments["orders"], "open")
    elif name == "cancel":
        world["orders"][arguments["order"]] = "cancelled"
    text = {"dump": json.dumps(world), "list_orders": ", ".join(world["orders"])}.get(name, "done")
    return [{"type": "text", "text": text}]


plain.called = called
sys.argv[1:] = []
plain.main()
