"""vLLM servers on one machine: each has GPUs of its own."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from palaestra import UsageError
from palaestra.agents.engines.vllm.environment import visible_cards
from palaestra.agents.engines.vllm.launch import Launch, Server
from palaestra.agents.engines.vllm.own_servers import OwnServers
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


def test_the_port_of_a_server_is_given_to_nobody_else_before_it_listens(tmp_path):
    servers = [Server(Launch(Path("python"), "model", "cuda"), 0, tmp_path / str(number)) for number in range(2)]
    assert servers[0].port != servers[1].port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", servers[0].port))
    address = ("127.0.0.1", servers[0].port)
    with socket.create_server(address) as listener, socket.create_connection(address, 60):  # With SO_REUSEADDR.
        listener.accept()[0].close()
    port = servers.pop().port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_the_next_start_removes_the_folder_of_a_killed_process_and_no_other(tmp_path, monkeypatch):
    program = f"from {OwnServers.__module__} import OwnServers; own = OwnServers([]); print(flush=True); input()"
    folders = []
    (tmp_path / "palaestra-vllm-without-a-lock").mkdir()
    known = set(tmp_path.iterdir())

    def begin():
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        process.stdout.readline()
        folders.extend(set(tmp_path.iterdir()) - known - set(folders))
        return process

    with begin() as killed, begin() as alive:
        killed.kill()
        killed.wait()
        assert folders[0].is_dir(), "nobody could remove it"
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        own = OwnServers([])
        assert not folders[0].exists()
        assert folders[1].is_dir() and all(folder.is_dir() for folder in known)
        own.stop()
        alive.communicate(b"\n")
    assert set(tmp_path.iterdir()) == known
