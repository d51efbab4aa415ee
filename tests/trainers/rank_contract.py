"""The contract of engines on one of two ranks that divide a model; `test_rank_engines` runs it by its path.

Both ranks run the same tests at the same time, each with servers of its own. New weights come from both: what an engine
sends is gathered from the parts of all ranks.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
from engine_contract import EngineContract, Served
from test_engine_contract import STOPS, contract_model
from torch import distributed

from palaestra.agents.engines.vllm import fleet
from palaestra.agents.engines.vllm.engine import VllmEngine
from palaestra.trainers.scale.fsdp import divided, own_part, part_like, whole_weights
from palaestra.trainers.scale.ranks import Ranks
from palaestra.trainers.setup.open_run import servers

COUNT = 2


@dataclass
class ServedByRanks(Served):
    """The weights of the model are learned in parts."""

    learning: Any = None

    def tensors(self):
        """Give this rank its part of the model's weights; return the whole weights of all parts."""
        weights = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, shard in self.learning.named_parameters():
                own_part(shard).copy_(part_like(weights[name], shard))
        return whole_weights(self.learning)


@pytest.fixture(scope="module")
def served_of_module(tmp_path_factory):
    rank, folder, urls = int(os.environ["RANK"]), os.environ["MEETING"], os.environ["URLS"].split()
    patience = timedelta(seconds=60)
    distributed.init_process_group("gloo", init_method=folder, rank=rank, world_size=COUNT, timeout=patience)
    ranks = Ranks(rank, COUNT, distributed.new_group(backend="gloo", timeout=patience))
    model = contract_model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "_SETTLE_SECONDS", 0.3)
        engine = VllmEngine(model, STOPS, urls=servers(urls, ranks))
        yield ServedByRanks(engine, model, STOPS, 128, learning=divided(model, ranks))
        ranks.part()
        engine.close()


class TestOneOfTwoRanks(EngineContract):
    @pytest.fixture
    def served(self, served_of_module):
        return served_of_module
