"""Two ranks over gloo feed one fleet of servers: the contract of engines, and who sent what to whom."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from serving_vllm import ServingVllm
from test_engine_contract import contract_model

CONTRACT = Path(__file__).with_name("rank_contract.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.prove
def test_ranks_keep_the_contract_and_each_server_gets_each_version_once_from_one_rank():
    fleet = [ServingVllm(contract_model(), longest=128) for _ in range(3)]
    with ExitStack() as stack:
        for serving in fleet:
            stack.enter_context(serving.server)
        path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": path, "URLS": " ".join(serving.url for serving in fleet)}
        ran = subprocess.run([*TORCHRUN, str(CONTRACT)], env=environment, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    versions = int(re.search(r"(\d+) versions", ran.stdout)[1])
    assert versions > 10
    for serving in fleet:
        senders, _, numbers = zip(*(tag.rpartition("-") for tag in serving.tags[1:]), strict=True)
        assert len(set(senders)) == 1
        assert len(set(numbers)) == len(numbers)
        assert versions <= len(numbers) <= versions + 1, "each version, and the weights of the beginning"
        assert [Path(folder).name for folder in serving.folders] == list(numbers), "each is read once"
        for name, weight in fleet[0].model.named_parameters():
            assert torch.equal(weight, serving.model.get_parameter(name)), "all servers have the same weights"
