"""The built-in engine meets the contract of engines."""

import copy

import pytest
import torch
from engine_contract import EngineContract, Served

from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.policies.tiny import tiny_model

STOPS = frozenset(range(7, 300, 30))


def contract_model(tied=True):
    """A small model for the suite; its rows may be as long as 128 tokens."""
    torch.manual_seed(0)
    model = tiny_model(300, layers=2, seed=1)
    model.config.max_position_embeddings = 128
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone().normal_(0, 0.3))
    return model


class TestTorchEngine(EngineContract):
    """In this process, from a copy of the model."""

    @pytest.fixture(params=["tied", "untied"])
    def served(self, request):
        model = contract_model(request.param == "tied")
        engine = TorchEngine(copy.deepcopy(model), STOPS, slots=5)
        yield Served(engine, model, STOPS, longest=128, held=lambda: engine.held_bytes)
        engine.close()
