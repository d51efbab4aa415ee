"""OpenAI clients for harnesses, over connections that all episodes share.

A client with connections of its own costs 28 ms of CPU, most of it for a TLS context that an address on this machine
never uses; one over shared connections costs next to none. Left out: the address itself (`author.Model`).
"""

import asyncio
import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary

from palaestra.errors import MissingExtra

_IDLE_CONNECTIONS = 100
_async_pools: "WeakKeyDictionary[asyncio.AbstractEventLoop, Any]" = WeakKeyDictionary()
"""Connections of async clients, by their event loop."""
_pools: dict[str, Any] = {}
"""Connections of the clients in threads, by the server that they ask."""
_lock = threading.Lock()


def client(base_url: str, api_key: str) -> Any:
    """Return an `AsyncOpenAI`; outside an event loop an `OpenAI`. Closing it leaves the shared connections open."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("openai", "openai", "model.client()") from error
    address = {"base_url": base_url, "api_key": api_key}
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        with _lock:
            if (server := _server_of(base_url)) not in _pools:
                _pools[server] = _pool(openai.DefaultHttpxClient, "close")
        return openai.OpenAI(**address, http_client=_pools[server])
    if loop not in _async_pools:
        _async_pools[loop] = _pool(openai.DefaultAsyncHttpxClient, "aclose")
    return openai.AsyncOpenAI(**address, http_client=_async_pools[loop])


def close_pool(base_url: str) -> None:
    """Close the connections to a server that the clients in threads share."""
    with _lock:
        pool = _pools.pop(_server_of(base_url), None)
    if pool is not None:
        super(type(pool), pool).close()


def _server_of(base_url: str) -> str:
    return "/".join(base_url.split("/", 3)[:3])


def _pool(kind: Any, closing: str) -> Any:
    """Return an HTTP client of openai's own kind, which does not end with the first `OpenAI` that is closed.

    It is one of httpx or httpx2, as the version of openai has it; openai's limit of 1,000 connections is lifted.
    """

    async def stay_open_async(self: Any) -> None: ...
    def stay_open(self: Any) -> None: ...

    lasting = type("SharedPool", (kind,), {closing: stay_open_async if closing == "aclose" else stay_open})
    library = next(base.__module__.partition(".")[0] for base in kind.__mro__ if base.__module__.startswith("httpx"))
    limits = sys.modules[library].Limits(max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS)
    return lasting(trust_env=False, limits=limits)  # A proxy does not know this address.
