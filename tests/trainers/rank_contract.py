"""The contract of engines where two ranks divide the model; `test_rank_engines` has torchrun start it on both.

The first rank runs the suite. The other follows it: it takes its part of all new weights, and gives them to whatever
engine a run gives that rank. What an engine sends is gathered from the parts of both. URLS names the servers.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers")]

from engine_contract import EngineContract, Served  # noqa: E402
from going import run_of  # noqa: E402
from test_engine_contract import STOPS, contract_model  # noqa: E402

from palaestra.agents.engines.vllm import fleet  # noqa: E402
from palaestra.trainers.scale.fsdp import divided, own_part, part_like, whole_weights  # noqa: E402
from palaestra.trainers.scale.ranks import here, joined  # noqa: E402
from palaestra.trainers.setup.rank_engines import engine_maker  # noqa: E402

OPTIONS = ("-xqs", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Of pytest; the process has imported plugins of it already."""


def opened(model):
    """The engine that a run gives this rank, and this rank's part of the model."""
    config = run_of("", engine={"kind": "vllm", "urls": tuple(os.environ["URLS"].split())}, device="cpu")
    return engine_maker(config)(model, STOPS, slots=8, seed=0), divided(model, here())


def whole(learning, weights):
    """Take this rank's part of these weights; return those that are gathered from all ranks."""
    with torch.no_grad():
        for name, shard in learning.named_parameters():
            own_part(shard).copy_(part_like(weights[name], shard))
    return whole_weights(learning)


@dataclass
class ServedByRanks(Served):
    learning: Any = None

    def tensors(self):
        """What the model has become, by way of both ranks."""
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        here().broadcast(lambda: (self.engine.version + 1, weights))
        return whole(self.learning, weights)


def follow():
    """Be the other rank."""
    engine, learning = opened(contract_model())
    while (news := here().broadcast(lambda: None)) is not None:
        version, weights = news
        engine.update_weights(whole(learning, weights), version)
    engine.close()


@pytest.fixture(scope="module")
def served_of_module():
    model = contract_model()
    engine, learning = opened(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "_SETTLE_SECONDS", 0.3)
        yield ServedByRanks(engine, model, STOPS, 128, learning=learning)
    here().broadcast(lambda: None)
    print(f"\n{engine.version} versions")
    engine.close()


class TestOfTheFirstRank(EngineContract):
    @pytest.fixture
    def served(self, served_of_module):
        return served_of_module


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(60) as ranks:
        failed = pytest.main([*OPTIONS, __file__]) if ranks.first else follow()
        if not ranks.broadcast(lambda: failed):
            ranks.part()
    sys.exit(failed or 0)
