"""A server of chat completions that answers after 50 ms: first with a call of the calculator, then with its result.

`python chat_server.py SECONDS` prints its port. GET /flight returns the largest number of requests in flight since the
last call, and the average while there were any. Standard library only.
"""

import asyncio
import json
import re
import sys
import time

QUESTION = re.compile(r"[-+\d][-+*/\d ().]*[\d)]")


class Flight:
    """Requests that are not answered yet."""

    def __init__(self):
        self.clear()
        self.now = 0

    def clear(self):
        self.peak, self.area, self.seconds, self.at, self.requests = 0, 0.0, 0.0, time.perf_counter(), 0

    def change(self, by):
        now = time.perf_counter()
        if self.now:
            self.area, self.seconds = self.area + self.now * (now - self.at), self.seconds + now - self.at
        self.at, self.now = now, self.now + by
        self.peak, self.requests = max(self.peak, self.now), self.requests + (by > 0)

    def counts(self):
        mean = self.area / self.seconds if self.seconds else 0.0
        found = {"peak": self.peak, "mean": mean, "requests": self.requests}
        self.clear()
        return found


class Answers(asyncio.Protocol):
    """One connection, whose requests come one after another."""

    def __init__(self, flight, seconds):
        self.flight, self.seconds, self.data = flight, seconds, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        if not end:
            return
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if length and len(body) < int(length[1]):
            return
        self.data = b""
        path = head.split(b" ", 2)[1]
        if path.endswith(b"/flight"):
            self.send(self.flight.counts())
        elif head.startswith(b"GET"):
            self.send({"object": "list", "data": [{"id": "fake", "object": "model"}]})
        else:
            self.flight.change(1)
            loop = asyncio.get_running_loop()
            loop.call_later(self.seconds, self.answer, body)

    def answer(self, body):
        self.flight.change(-1)
        self.send(turn(json.loads(body)["messages"]))

    def send(self, document):
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


def text_of(message):
    """Return the text of a message, which some clients send in parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def turn(messages):
    """Return a call of the calculator after a question, or the calculator's result as the answer."""
    message, finish = {"role": "assistant", "content": None}, "stop"
    if messages[-1]["role"] == "tool":
        message["content"] = text_of(messages[-1])
    else:
        question = QUESTION.search(text_of(messages[-1]))
        arguments = json.dumps({"expression": question[0]})
        call = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
        message["tool_calls"], finish = [call], "tool_calls"
    return {
        "id": "chat",
        "object": "chat.completion",
        "created": 0,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


async def main():
    flight, seconds = Flight(), float(sys.argv[1])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answers(flight, seconds), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.connect_read_pipe(lambda: Ended(loop.stop), sys.stdin)  # It ends with whoever started it.
    await server.serve_forever()


class Ended(asyncio.Protocol):
    def __init__(self, stop):
        self.stop = stop

    def connection_lost(self, error):
        sys.exit(0)


if __name__ == "__main__":
    asyncio.run(main())
