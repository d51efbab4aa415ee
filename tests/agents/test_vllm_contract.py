"""vLLM as the child of a run, asleep while the learner learns: the contract of engines, over a stand-in server.

vLLM's own server keeps the contract in tests/vllm; on a CPU it frees nothing in its sleep.
"""

import os
import sys
from pathlib import Path

import pytest
from engine_contract import EngineContract, Served
from serving_vllm import stand_in
from test_engine_contract import STOPS, contract_model

from palaestra.agents.engines.vllm import fleet
from palaestra.agents.engines.vllm.engine import VllmEngine
from palaestra.agents.engines.vllm.launch import Launch
from palaestra.agents.engines.vllm.own_servers import OwnServers

LONGEST = 128


@pytest.fixture(scope="module")
def served_of_module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("child")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "_SETTLE_SECONDS", 0.3)
        patch.setenv("PYTHONPATH", str(stand_in(folder / "package")), prepend=os.pathsep)
        model = contract_model()
        model.save_pretrained(folder / "model")
        share = ("--gpu-memory-utilization", "0.3")
        launch = Launch(
            Path(sys.executable), str(folder / "model"), "cuda", dtype="float32", max_model_len=LONGEST, options=share
        )
        own = OwnServers([launch], start_seconds=300)
        own.start()
        engine = VllmEngine(model, STOPS, urls=own.urls, own_servers=own, shares_memory=True)
        (server,) = own.servers
        yield Served(engine, model, STOPS, LONGEST, held=lambda: server.ask("/held", None, 10)["held"])
        engine.close()
        assert server.runs
        own.stop()
        assert not server.runs


class TestVllmAsAChild(EngineContract):
    """The server is a process of its own, which is started as vLLM is on a GPU."""

    @pytest.fixture
    def served(self, served_of_module):
        return served_of_module
