"""The contract of engines, kept by a real vLLM server whose output head is tied, which is the harder case."""

import pytest
from engine_contract import EngineContract, Served
from small_model import LONGEST, STOPS
from transformers import AutoModelForCausalLM

from palaestra import Request, Start
from palaestra.agents.engines.vllm.engine import VllmEngine


@pytest.fixture(scope="module")
def served(server, models):
    model = AutoModelForCausalLM.from_pretrained(models / "tied", dtype="float32").eval()
    engine = VllmEngine(model, STOPS, urls=[server.url])
    yield Served(engine, model, STOPS, LONGEST, seconds=120.0)
    engine.close()


class TestVllm(EngineContract):
    def test_weights_may_change_under_load_without_a_pause(self, served):
        asked, done = served.turns(12, max_tokens=200), {}
        asked |= dict([served.ask(served.prompt(4), max_tokens=1)])
        while not done:  # When the short turn has ended, the long ones have begun.
            served.look(asked, done, 0.2)
        old = served.engine.version
        new = served.change()
        late = served.turns(4)
        found = served.answers(asked | late, done)
        assert {version for completion in found.values() for version in completion.versions} == {old, new}
        for ticket, completion in found.items():
            assert served.gap((asked | late)[ticket], completion, of_version=new) < served.tolerance
            assert ticket in asked or set(completion.versions) == {new}

    def test_the_same_turn_is_answered_alike(self, served):
        request, twice = Request(0, Start(3, 5), 0, (), (), served.prompt(9), 40), []
        for _ in range(2):
            ticket = served.engine.submit(request)
            twice.append(list(served.answers({ticket: request})[ticket].ids))
        assert twice[0] == twice[1]

    def test_it_sleeps_and_wakes_by_vllms_own_routes(self, served, server):
        """On a CPU vLLM frees nothing in its sleep, but its scheduler and its tags are those of a GPU."""

        def sleeps():
            return server.ask("/is_sleeping", None, 10)["is_sleeping"]

        assert not sleeps()
        served.engine.release()
        assert sleeps()
        version = served.change()
        assert sleeps(), "its cache waits until it is reclaimed"
        served.engine.reclaim()
        assert not sleeps()
        ticket, request = served.ask(served.prompt(6))
        completion = served.answers({ticket: request})[ticket]
        assert set(completion.versions) == {version}
        assert served.gap(request, completion) < served.tolerance
