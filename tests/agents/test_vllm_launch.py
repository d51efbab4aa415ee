"""vLLM servers on one machine: each has GPUs of its own."""

from pathlib import Path

import pytest

from palaestra import UsageError
from palaestra.agents.engines.vllm.environment import visible_cards
from palaestra.agents.engines.vllm.launch import Launch
from palaestra.cli.serve_vllm import divided_cards


@pytest.fixture
def four_cards(tmp_path, monkeypatch):
    """A machine whose driver lists four GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n3\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_servers_divide_the_gpus_of_a_machine(four_cards, monkeypatch):
    assert divided_cards(visible_cards(), 4) == [("0",), ("1",), ("2",), ("3",)]
    assert divided_cards(visible_cards(), 2) == [("0", "1"), ("2", "3")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert divided_cards(visible_cards(), 2) == [("2",), ("3",)]
    with pytest.raises(UsageError, match="replicas is 3, and there are 2 GPUs"):
        divided_cards(visible_cards(), 3)


def test_a_server_sees_its_own_gpus_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    server = Launch(Path("python"), "model", "cuda", cards=("2", "3"))
    assert server.environment(tmp_path)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert Launch(Path("python"), "model", "cuda").environment(tmp_path)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
