"""The contract of engines, kept by a real vLLM server: with a tied output head and with one of its own."""

import pytest
from engine_contract import EngineContract, Served
from small_model import LONGEST
from transformers import AutoModelForCausalLM

from palaestra.agents.engines.vllm.engine import VllmEngine

STOPS = frozenset(range(0, 512, 30))


@pytest.fixture(scope="module", params=["tied", "untied"])
def served(request, servers, models):
    model = AutoModelForCausalLM.from_pretrained(models / request.param, dtype="float32").eval()
    engine = VllmEngine(model, STOPS, urls=[servers(request.param).url])
    yield Served(engine, model, STOPS, LONGEST, seconds=120.0)
    engine.close()


class TestVllm(EngineContract):
    pass
