"""A vLLM server on loopback that tells the truth, or lies where a test says so; no model is behind it."""

import asyncio
import json
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fake_server import FakeServer, Reply, error
from families import TOKENIZERS

TOKENIZER = TOKENIZERS["tiny"]


class FakeVllm:
    """`lies` maps a path to a function of the request and the true answer; what it returns is answered instead."""

    def __init__(self, config: Any, port: int = 0, **lies: Callable[[Any, Any], Any]) -> None:
        inner = config.get_text_config()
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")
        self.shape = {name: getattr(inner, name) for name in names}
        self.shape |= {"max_model_len": 64, "logprobs_mode": "processed_logprobs", "dtype": "float32"}
        self.lies = lies
        self.tag, self.loaded = "default", ""
        self.asked: list[dict[str, Any]] = []
        """The turns that it was asked for."""
        self.aborted: list[str] = []
        self.running: asyncio.Event | None = None
        self.server = FakeServer(self.behave, port)

    @property
    def url(self) -> str:
        return self.server.url.removesuffix("/v1")

    async def behave(self, seen: Any) -> Any:
        self.running = self.running or _set()
        parts = urlsplit(seen.path)
        name = parts.path.strip("/").rpartition("/")[2]
        body = dict(parse_qsl(parts.query)) | (json.loads(seen.data) if seen.data else {})
        if name == "collective_rpc":
            name = body["method"]
        truth = await getattr(self, f"_{name}", self._nothing)(body)
        lie = self.lies.get(name)
        answer = truth if lie is None else lie(body, truth)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return answer if isinstance(answer, Reply) or callable(answer) else Reply(answer)

    def restart(self) -> None:
        """As it is when somebody has started it again: with weights of its own."""
        self.tag, self.loaded = "default", ""

    async def _nothing(self, body: Any) -> Any:
        return Reply(b"")

    async def _version(self, body: Any) -> Any:
        return {"version": "0.32.0"}

    async def _palaestra_describe(self, body: Any) -> Any:
        return {"results": [self.shape]}

    async def _palaestra_load(self, body: Any) -> Any:
        self.loaded = body["kwargs"]["folder"]
        return {"results": [{"head_gap": 0.0}]}

    async def _update_weight_version(self, body: Any) -> Any:
        self.tag = body["new_version"]
        return {"success": True}

    async def _reset_prefix_cache(self, body: Any) -> Any:
        return {"success": True}

    async def _pause(self, body: Any) -> Any:
        assert self.running is not None
        self.running.clear()
        return {"status": "paused"}

    async def _resume(self, body: Any) -> Any:
        assert self.running is not None
        self.running.set()
        return {"status": "resumed"}

    async def _abort_requests(self, body: Any) -> Any:
        self.aborted += body["request_ids"]
        return {"status": "aborted"}

    async def _tokenize(self, body: Any) -> Any:
        return {"tokens": TOKENIZER.encode(body["prompt"], add_special_tokens=False)}

    async def _generate(self, body: Any) -> Any:
        assert self.running is not None
        self.asked.append(body)
        await self.running.wait()
        return said([7] * body["sampling_params"]["max_tokens"], self.tag)


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def said(ids: list[int], tag: str, finish: str = "length", **more: Any) -> dict[str, Any]:
    """An answer of `/inference/v1/generate`."""
    content = [{"token_id": word, "logprob": -1.5, "rank": 1, "top_logprobs": []} for word in ids]
    choice = {
        "index": 0,
        "finish_reason": finish,
        "token_ids": ids,
        "logprobs": {"content": content},
        "weight_versions": [{"version": tag, "start": 0, "end": len(ids)}],
    }
    return {"request_id": "x", "choices": [choice | more]}


def hang_up(body: Any, truth: Any) -> Any:
    """Close the connection without an answer."""

    async def close(writer: Any) -> None:
        writer.close()

    return close


async def _never() -> None:
    await asyncio.sleep(60)


def silence(body: Any, truth: Any) -> Any:
    """Answer nothing for a long time."""
    return _never()


def broken(body: Any, truth: Any) -> Any:
    """A fault of the server's own."""
    return error(500, "EngineCore encountered an issue")


def changed(**values: Any) -> Callable[[Any, Any], Any]:
    """The true choice with other values."""
    return lambda body, truth: {"choices": [truth["choices"][0] | values]}


@contextmanager
def vllm(config: Any, **lies: Callable[[Any, Any], Any]) -> Any:
    """A server while the block lasts."""
    fake = FakeVllm(config, **lies)
    with fake.server:
        yield fake
