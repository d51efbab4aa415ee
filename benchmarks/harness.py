"""What a turn of a harness costs this process beside the ordinary path: `make bench-harness`

Three sides play in turn: TwoHop as it is (`ordinary`); TwoHop by a loop over HTTP with a client of a few lines
(`harness`); and that client alone, with as many requests of the same size, against a server in a process of its own
(`client`). A script plays, so no model computes. What a harness costs of ours is `harness` less `client`.

Left out: clients of other packages, which cost more than all of this (docs/bring_your_agent.md).
"""

import asyncio
import json
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from urllib.parse import urlsplit

import tyro
from evaluation import server

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs import Harness, Model, ToolEnv, ToolVectorEnv
from palaestra.envs.suite.two_hop import TwoHop, demonstrate

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Look up a fact.", "parameters": QUERY}}
TURNS = 3
"""Turns of an episode: two searches and the answer."""


@dataclass(frozen=True)
class Options:
    """The CPU of a turn of a harness."""

    at_once: tuple[int, ...] = (64, 256)
    """Episodes at once."""
    episodes: int = 8
    """Episodes of a measurement, by the number at once."""
    rounds: int = 5
    """Times that everything is measured, in turn."""


async def ask(address: str, bodies: "asyncio.Queue[bytes | None]", replies: "asyncio.Queue[bytes]") -> None:
    """Send each body over one connection, and put its reply, until a body is None."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    while (body := await bodies.get()) is not None:
        head = f"POST {place.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(answered.partition(b"content-length:")[2].partition(b"\r\n")[0])
        await replies.put(await reader.readexactly(size))
    writer.transport.abort()


class Hops(Harness):
    """TwoHop by a loop that asks over HTTP."""

    task, reward = TwoHop.task, TwoHop.reward

    async def run(self, task: palaestra.Task, model: Model) -> str:
        bodies, replies = asyncio.Queue[bytes | None](), asyncio.Queue[bytes]()
        asking = asyncio.create_task(ask(model.base_url, bodies, replies))
        messages = [{"role": "system", "content": TwoHop.system}, {"role": "user", "content": task.prompt}]
        try:
            while True:
                await bodies.put(json.dumps({"messages": messages, "tools": [SEARCH]}).encode())
                messages.append(json.loads(await replies.get())["choices"][0]["message"])
                if not messages[-1].get("tool_calls"):
                    return messages[-1]["content"]
                for call in messages[-1]["tool_calls"]:
                    result = task.data["facts"].get(json.loads(call["function"]["arguments"])["query"], "no result")
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        finally:
            await bodies.put(None)
            await asking


def played(author: ToolEnv, slots: int, count: int) -> float:
    """CPU seconds a turn of so many episodes."""
    with closing(ToolVectorEnv(author, slots)) as arena:
        began = time.process_time()
        starts = [palaestra.Start(number, number) for number in range(count)]
        episodes = list(play(Agent(ScriptedPolicy(demonstrate)), arena, starts))
        seconds = time.process_time() - began
    assert {(each.reward, each.attempt.turns) for each in episodes} == {(1.0, TURNS)}
    return seconds / (count * TURNS)


def asked(address: str, slots: int, count: int) -> float:
    """CPU seconds a request of the client alone."""
    padding = {"role": "system", "content": TwoHop.system}, {"role": "user", "content": "What is 3 + 4?"}
    body = json.dumps({"messages": padding, "tools": [SEARCH]}).encode()

    async def episode(free: asyncio.Semaphore) -> None:
        async with free:
            bodies, replies = asyncio.Queue[bytes | None](), asyncio.Queue[bytes]()
            asking = asyncio.create_task(ask(address, bodies, replies))
            for _ in range(TURNS):
                await bodies.put(body)
                json.loads(await replies.get())
            await bodies.put(None)
            await asking

    async def everything() -> None:
        free = asyncio.Semaphore(slots)
        await asyncio.gather(*(episode(free) for _ in range(count)))

    began = time.process_time()
    asyncio.run(everything())
    return (time.process_time() - began) / (count * TURNS)


def main(options: Options) -> int:
    """Print the milliseconds of CPU a turn of each side: the median of the rounds, the least and the most."""
    with server(0.0) as address:
        for slots in options.at_once:
            count = slots * options.episodes
            sides = {
                "ordinary": lambda: played(TwoHop(), slots, count),  # noqa: B023
                "client": lambda: asked(address, slots, count),  # noqa: B023
                "harness": lambda: played(Hops(), slots, count),  # noqa: B023
            }
            found: dict[str, list[float]] = {name: [] for name in (*sides, "ours")}
            for number in range(options.rounds + 1):
                measured = {name: 1000 * side() for name, side in sides.items()}
                measured["ours"] = measured["harness"] - measured["client"]
                for name, value in measured.items() if number else ():  # The first round warms up.
                    found[name].append(value)
            for name, values in found.items():
                print(f"{slots:>4} at once  {name:<9} {median(values):.3f} ms ({min(values):.3f} to {max(values):.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
