"""Harnesses for the tests, and a small client that they ask with: no test needs the `openai` package."""

import asyncio
import json
import threading
from urllib.parse import urlsplit

import palaestra
from palaestra.envs import Harness, Task
from palaestra.envs.suite.two_hop import TwoHop

hold = threading.Event()
"""Lets threads that hang go."""


class Client:
    """A keep-alive client of one episode, for one request at a time."""

    def __init__(self, model):
        address = urlsplit(model.base_url)
        self.host, self.port, self.path = address.hostname, address.port, address.path
        self.model, self.reader, self.writer = model, None, None

    async def send(self, body, route="/chat/completions", method="POST"):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} {self.path}{route} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)

    async def receive(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        size = next(int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length"))
        return int(head.split()[1]), await self.reader.readexactly(size)

    async def raw(self, body, **how):
        await self.send(body, **how)
        return await self.receive()

    async def ask(self, messages, **more):
        """The first choice's message."""
        status, body = await self.raw({"model": "any", "messages": messages, **more})
        answer = json.loads(body)
        if status != 200:
            raise Answered(status, answer)
        return answer["choices"][0]["message"]

    def close(self):
        if self.writer is not None:
            self.writer.transport.abort()
            self.writer = None


class Answered(Exception):
    """An error of the API."""

    def __init__(self, status, body):
        super().__init__(status, body)
        self.status, self.error = status, body.get("error", {})


class Plain(Harness):
    """Wants a yes; its `play` is the harness."""

    max_turns = 6

    def task(self, rng):
        return Task(prompt=f"Say {rng.integers(1000)}.", answer="yes")

    def reward(self, attempt):
        return float(attempt.answer == "yes")

    async def run(self, task, model):
        client = Client(model)
        try:
            return await self.play(task, client)
        finally:
            client.close()

    async def play(self, task, client):
        return (await client.ask([{"role": "user", "content": task.prompt}]))["content"]


class Hops(Harness):
    """TwoHop, played by a loop as everybody writes one."""

    max_turns = 4
    rewrites = False

    def __init__(self, rewrites=False, **more):
        super().__init__(**more)
        self.rewrites = rewrites
        self.twin = TwoHop(split=self.split)

    def task_set(self, split):
        return self.twin.task_set(split)

    def reward(self, attempt):
        return self.twin.reward(attempt)

    async def run(self, task, model):
        client, world = Client(model), object.__new__(TwoHop)
        world.__dict__.update(self.twin.__dict__, problem=task)
        messages = [{"role": "system", "content": TwoHop.system}, {"role": "user", "content": task.prompt}]
        try:
            while True:
                said = await client.ask(messages, tools=[t.schema for t in TwoHop._tools.values()])
                if not said.get("tool_calls"):
                    return said["content"]
                messages.append({key: value for key, value in said.items() if value is not None})
                for call in said["tool_calls"]:
                    try:
                        text = world.search(**json.loads(call["function"]["arguments"]))
                    except palaestra.ToolError as error:
                        text = f"Error: {error}"
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
                if self.rewrites:
                    messages[0] = {**messages[0], "content": messages[0]["content"] + "!"}
        finally:
            client.close()


class Silent(Plain):
    async def run(self, task, model):
        return "yes"


class Nothing(Plain):
    async def play(self, task, client):
        await client.ask([{"role": "user", "content": task.prompt}])


class FallsAtOnce(Plain):
    async def run(self, task, model):
        raise ValueError("no route")


class FallsLater(Nothing):
    async def play(self, task, client):
        await super().play(task, client)
        raise ValueError("no such tool")


class Unplugged(Nothing):
    async def play(self, task, client):
        await super().play(task, client)
        raise palaestra.Broken("the database is gone")


class Hangs(Plain):
    deadlines = {"run": 3.0}  # noqa: RUF012
    cancelled = []  # noqa: RUF012

    async def play(self, task, client):
        await super().play(task, client)
        try:
            await asyncio.sleep(600)
        finally:
            self.cancelled.append(task.id)


class HangsInAThread(Plain):
    deadlines = {"run": 0.4}  # noqa: RUF012

    def run(self, task, model):
        hold.wait(60)


class Floods(Plain):
    refused = []  # noqa: RUF012

    async def play(self, task, client):
        while True:
            await super().play(task, client)


class GoesOn(Plain):
    """Its own task asks on after it has returned."""

    tasks = []  # noqa: RUF012
    met = []  # noqa: RUF012

    async def run(self, task, model):
        client = Client(model)
        await client.ask([{"role": "user", "content": task.prompt}])

        async def later():
            try:
                while True:
                    await client.ask([{"role": "user", "content": "more?"}])
            except Answered as error:
                self.met.append((error.status, error.error["code"]))
            finally:
                client.close()

        self.tasks.append(asyncio.create_task(later()))
        return "yes"


class HangsUp(Plain):
    """Hangs up before the model has answered, and asks the same again."""

    asked, deserted, go = threading.Event(), threading.Event(), threading.Event()
    """What its server has noticed, and whether the model may answer."""

    async def play(self, task, client):
        body = {"messages": [{"role": "user", "content": task.prompt}]}
        await client.send(body)
        await asyncio.to_thread(self.asked.wait, 30)
        client.close()
        await asyncio.to_thread(self.deserted.wait, 30)
        self.asked.clear()
        await client.send(body)
        await asyncio.to_thread(self.asked.wait, 30)
        self.go.set()
        _, answer = await client.receive()
        return json.loads(answer)["choices"][0]["message"]["content"]


class Threads(Plain):
    """A plain `run`, which waits in its thread."""

    def run(self, task, model):
        return asyncio.run(super().run(task, model))


class Choices(Plain):
    async def play(self, task, client):
        body = {"messages": [{"role": "user", "content": task.prompt}], "n": 3, "stop": ["es"]}
        _, answer = await client.raw(body)
        return "/".join(choice["message"]["content"] for choice in json.loads(answer)["choices"])


class Streams(Plain):
    async def play(self, task, client):
        body = {"messages": [{"role": "user", "content": task.prompt}], "stream": True}
        _, answer = await client.raw(body | {"stream_options": {"include_usage": True}})
        lines = [line.removeprefix("data: ") for line in answer.decode().split("\n\n") if line]
        parts = [json.loads(line) for line in lines[:-1]]
        assert lines[-1] == "[DONE]"
        assert parts[-1]["usage"]["total_tokens"] > 0
        assert {part["object"] for part in parts} == {"chat.completion.chunk"}
        return "".join(part["choices"][0]["delta"].get("content", "") for part in parts[:-1])


class Team(Plain):
    """A planner, and a helper with tools of its own that is asked in between."""

    async def play(self, task, client):
        plan = [{"role": "user", "content": task.prompt}]
        for number in range(2):
            said = await client.ask(plan, tools=[schema("delegate")])
            helped = await client.ask([{"role": "user", "content": f"help {number}"}], tools=[schema("look")])
            plan += [
                {"role": "assistant", "content": said["content"]},
                {"role": "user", "content": helped["content"]},
            ]
        return (await client.ask(plan, tools=[schema("delegate")]))["content"]


class Crowd(Plain):
    """Three helpers with two turns each, all at once; then a last turn with what they said."""

    max_turns = 7

    async def play(self, task, client):
        async def helper(number):
            own = Client(client.model)
            try:
                told = [{"role": "user", "content": f"help {number}"}]
                for _ in range(2):
                    said = await own.ask(told)
                    told += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "again"}]
                return said["content"]
            finally:
                own.close()

        helped = await asyncio.gather(*map(helper, range(3)))
        return (await client.ask([{"role": "user", "content": "/".join(sorted(helped))}]))["content"]


class Misfits(Plain):
    """Four of five episodes are well; each fifth misbehaves in its own way."""

    max_turns = 3
    deadlines = {"run": 3.0}  # noqa: RUF012
    closed = []  # noqa: RUF012

    async def play(self, task, client):
        number = int(task.id.rpartition("/")[2])
        ways = (self.fall, self.hang, self.flood, self.hang_up)
        try:
            return await (ways[number // 5 % len(ways)] if number % 5 == 0 else super().play)(task, client)
        finally:
            self.closed.append(number)

    async def fall(self, task, client):
        await super().play(task, client)
        raise ValueError("fell")

    async def hang(self, task, client):
        await super().play(task, client)
        await asyncio.sleep(600)

    async def flood(self, task, client):
        others = [Client(client.model) for _ in range(8)]
        try:
            await asyncio.gather(*(super(Misfits, self).play(task, other) for other in others))
        finally:
            for other in others:
                other.close()

    async def hang_up(self, task, client):
        await client.send({"messages": [{"role": "user", "content": task.prompt}]})
        client.close()
        return await super().play(task, client)


class Compacts(Plain):
    """Goes on with a story; where it is too long for the model, it keeps its last message alone."""

    met = []  # noqa: RUF012

    async def play(self, task, client):
        told = [{"role": "user", "content": task.prompt}]
        for number in range(4):
            try:
                said = await client.ask(told)
            except Answered as error:
                self.met.append((error.status, error.error["code"], error.error["param"]))
                told = told[-1:]
                said = await client.ask(told)
            told += [
                {"role": "assistant", "content": said["content"]},
                {"role": "user", "content": f"go on {number} " * 9},
            ]
        return said["content"]


class Shortens(Plain):
    """Shortens the one message that is too long, and goes on."""

    async def play(self, task, client):
        told = [{"role": "user", "content": task.prompt}]
        told += [await client.ask(told), {"role": "user", "content": "long " * 200}]
        try:
            await client.ask(told)
        except Answered:
            told[-1] = {"role": "user", "content": "short"}
        return (await client.ask(told))["content"]


class TooMuch(Plain):
    """Asks for more than fits, and says that it could not."""

    asked = ("hello", "long " * 200)

    async def play(self, task, client):
        told = []
        try:
            for words in self.asked:
                told.append({"role": "user", "content": words})
                told.append(await client.ask(told))
        except Answered as error:
            return f"I could not: {error}"


class TooMuchAtOnce(TooMuch):
    asked = ("long " * 200,)


class Repeats(Plain):
    """Asks for three choices of what does not fit, again and again."""

    async def play(self, task, client):
        while True:
            status, _ = await client.raw({"messages": [{"role": "user", "content": "long " * 200}], "n": 3})
            assert status == 400


class Wishes(Plain):
    """Asks for three turns; two of the requests have wishes that no model here follows."""

    async def play(self, task, client):
        told = [{"role": "user", "content": task.prompt}]
        for wish in ({}, {"top_p": 0.5, "seed": 3}, {"tool_choice": "required", "n": 2}):
            said = await client.ask(told, tools=[schema("look")], **wish)
            told += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "more"}]
        return said["content"]


def schema(name):
    """A tool without arguments."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
