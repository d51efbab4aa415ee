"""An MCP server of the older protocol on standard input and output, without the SDK: it starts in no time.

With an argument it also starts a child that ignores every wish to end, and writes both process numbers there.
"""

import json
import os
import signal
import subprocess
import sys
import time

TEXT = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}, "required": ["text"]}
TOOLS = {
    "echo": TEXT, "count": {"type": "object"}, "die": {"type": "object"}, "hang": {"type": "object"},
    "fail": {"type": "object"}, "flood": {"type": "object"}, "picture": {"type": "object"}, "data": {"type": "object"},
}  # fmt: skip
DESCRIPTIONS = {}
HOSTILE = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
"""A schema of results, which whoever checks them by it never comes to an end with."""
STUBBORN = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(600)"
count = 0


def called(name, arguments):
    global count
    count += 1
    if name == "die":
        sys.stderr.write("the disk is full\n" * 10_000)
        sys.stderr.flush()
        os._exit(3)
    if name == "hang":
        time.sleep(600)
    if name == "picture":
        data = "QUJD" * 100
        return [{"type": "image", "data": data, "mimeType": "image/png"}, {"type": "text", "text": "a cat"}]
    text = {"count": str(count), "flood": "x" * 10**6, "fail": "no such thing"}.get(name) or arguments["text"]
    return [{"type": "text", "text": text}]


def answer(method, params):
    if method == "initialize":
        about = {"name": "plain", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        tools = [
            {"name": name, "description": DESCRIPTIONS.get(name, ""), "inputSchema": TOOLS[name]} for name in TOOLS
        ]
        return {"tools": [tool | ({"outputSchema": HOSTILE} if tool["name"] == "data" else {}) for tool in tools]}
    if method == "tools/call":
        if params["name"] == "data":
            return {"content": [], "structuredContent": {"a": "a" * 40 + "!"}}
        try:
            content = called(params["name"], params.get("arguments") or {})
        except ValueError as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        return {"content": content, "isError": params["name"] == "fail"}
    return None


def main():
    if len(sys.argv) > 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-S", "-c", STUBBORN])
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        found = answer(message["method"], message.get("params") or {})
        reply = {"result": found} if found else {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
    while len(sys.argv) > 1:  # It ignores the end of its input, too.
        time.sleep(600)


if __name__ == "__main__":
    main()
