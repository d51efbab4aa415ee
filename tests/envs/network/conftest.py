"""The servers of these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import asyncio

import httpcore
import pytest

PUBLIC = "93.184.216.34"
SECOND = "93.184.216.35"


@pytest.fixture
def internet(monkeypatch):
    """Connections to public addresses lead to local ports: `internet[PUBLIC] = port`, 0 for one that never answers.

    Its `dialled` are the addresses that were connected to, in order.
    """
    plain_tcp, plain_open = httpcore.AnyIOBackend.connect_tcp, asyncio.open_connection

    class Internet(dict):
        dialled: list[str] = []  # noqa: RUF012  One an object: the class is made for each test.

        async def place(self, address, port):
            self.dialled.append(address)
            if address not in self:
                return address, port
            if not self[address]:
                await asyncio.sleep(60)
            return "127.0.0.1", self[address]

    found = Internet()

    async def connect_tcp(self, host, port, *more, **options):
        timeout = more[0] if more else options.get("timeout")
        try:
            async with asyncio.timeout(timeout):
                host, port = await found.place(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout("no answer") from None
        return await plain_tcp(self, host, port, *more, **options)

    async def open_connection(host=None, port=None, **options):
        return await plain_open(*await found.place(host, port), **options)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
    monkeypatch.setattr("palaestra.envs.browser.network.way.asyncio.open_connection", open_connection)
    return found
