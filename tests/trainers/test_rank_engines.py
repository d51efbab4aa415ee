"""Two ranks over gloo feed one fleet of servers: the contract of engines on each, and who sent what to whom."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving_vllm import ServingVllm
from test_engine_contract import contract_model

CONTRACT = Path(__file__).with_name("rank_contract.py")


@pytest.mark.prove
def test_ranks_keep_the_contract_and_each_server_gets_each_version_once_from_one_rank(tmp_path):
    fleet = [ServingVllm(contract_model(), longest=128) for _ in range(3)]
    with ExitStack() as stack:
        for serving in fleet:
            stack.enter_context(serving.server)
        shared = {"MEETING": f"file://{tmp_path / 'meeting'}", "URLS": " ".join(serving.url for serving in fleet)}
        command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", str(CONTRACT)]
        ranks = [
            subprocess.Popen(
                command, env={**os.environ, **shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
            )
            for rank in (0, 1)
        ]
        said = [process.communicate(timeout=400)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(said)
    sent = [[tag.rpartition("-") for tag in serving.tags[1:]] for serving in fleet]
    senders = [{sender for sender, _, _ in tags} for tags in sent]
    assert [len(names) for names in senders] == [1, 1, 1]
    assert len(set.union(*senders)) == 2
    updates = [[int(number) for _, _, number in tags] for tags in sent]
    assert updates[0] == updates[1] == updates[2] == list(range(len(updates[0])))
    assert len(updates[0]) > 10
    assert [[int(Path(folder).name) for folder in serving.folders] for serving in fleet] == updates
