"""A service that the author named and that is gone is no mistake of the agent's."""

import asyncio

import pytest
from gone_services import gone_services

from palaestra.envs.browser.network.addresses import Unreached, system_lookup
from palaestra.envs.browser.network.allow import allow_list
from palaestra.envs.browser.network.transport import first_connected
from palaestra.errors import ToolError


def test_a_service_that_is_gone_is_broken_and_an_address_of_the_agents_is_told():
    gone_services("text")


def test_no_agent_makes_a_service_broken_with_the_last_moments_of_its_budget():
    service = allow_list(["shop.test:8000=127.0.0.1"])

    async def ending(seconds, connect):
        with pytest.raises(ToolError) as raised:
            await first_connected(service, "shop.test", 8000, seconds, system_lookup, connect)
        return type(raised.value)

    async def late(_, seconds):
        await asyncio.sleep(seconds)
        raise TimeoutError

    async def refused(*_):
        raise ConnectionRefusedError

    assert asyncio.run(ending(0.01, late)) is ToolError
    assert asyncio.run(ending(60.0, refused)) is asyncio.run(ending(1.0, refused)) is Unreached
