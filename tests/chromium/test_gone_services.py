"""A service that the author named and that is gone is no mistake of the agent's, in Chromium either."""

import pytest
from gone_services import gone_services

pytestmark = pytest.mark.chromium


def test_a_service_that_is_gone_is_broken_in_chromium_and_an_address_of_the_agents_is_told():
    gone_services("chromium")
