"""On a GPU vLLM is the engine of a run if its environment is there, and the run starts the servers itself.

Left out: a real server, which `make test-vllm` starts on a CPU.
"""

import gc
from pathlib import Path
from unittest.mock import Mock

import families
import pytest
import torch

from palaestra import ConfigError, UsageError
from palaestra.agents.engines.vllm import own_servers
from palaestra.agents.engines.vllm.launch import Server
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.learn import learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.scale.memory_estimate import estimate, outline
from palaestra.trainers.setup import choose_engine
from palaestra.trainers.setup.choose_engine import chosen_engine, own_launches, vllm_engine
from palaestra.trainers.validation import changed

MODEL = families.stock_model("qwen3", 60)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU."""
    monkeypatch.setattr(choose_engine, "find_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(choose_engine, "kind_here", lambda: "cuda")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment with vLLM, as `palaestra serve vllm` makes it."""
    python = tmp_path / "vllm-cuda" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(choose_engine, "default_folder", lambda kind: tmp_path / f"vllm-{kind}")
    return python


def a_run(**engine):
    run = grpo_config("two-hop", model=str(Path(__file__).parent), slots=4)
    return changed(run, {"engine": engine}) if engine else run


def test_vllm_is_the_engine_on_a_gpu_where_its_environment_is(gpu, environment):
    config, note = chosen_engine(a_run(), ranks=1)
    assert (config.engine.kind, config.engine.urls) == ("vllm", ())
    assert "on the same GPU, asleep while the learner learns" in note
    config, note = chosen_engine(a_run(gpus=("1", "2")), ranks=1)
    assert (config.engine.kind, config.engine.gpus) == ("vllm", ("1", "2"))
    assert "on GPUs 1, 2" in note


def test_elsewhere_the_built_in_engine_samples_and_on_a_gpu_it_says_what_is_missed(gpu, environment, monkeypatch):
    for config, ranks in ((grpo_config("two-hop"), 1), (a_run(), 2)):
        assert [chosen_engine(config, ranks)[0].engine.kind, chosen_engine(config, ranks)[1]] == ["torch", ""]
    environment.unlink()
    config, note = chosen_engine(a_run(), ranks=1)
    assert config.engine.kind == "torch"
    assert "several times slower than vLLM" in note
    monkeypatch.setattr(choose_engine, "find_device", lambda name: torch.device("cpu"))
    assert chosen_engine(a_run(), ranks=1)[1] == ""


def test_what_the_user_names_is_not_changed(gpu, environment):
    for kind in ("torch", "process", "vllm"):
        assert chosen_engine(a_run(kind=kind), ranks=1) == (a_run(kind=kind), "")
    with pytest.raises(ConfigError, match="is for servers that the run starts itself"):
        a_run(kind="torch", gpus=("1",))


def test_a_server_beside_the_learner_has_a_share_of_its_gpu_and_others_have_gpus_of_their_own(gpu, environment):
    (shared,) = own_launches(a_run(kind="vllm", memory_share=0.4))
    assert shared.options == ("--gpu-memory-utilization", "0.4")
    assert shared.cards == ()
    apart = own_launches(a_run(kind="vllm", gpus=("2", "3")))
    assert [(launch.cards, launch.options) for launch in apart] == [(("2",), ()), (("3",), ())]
    environment.unlink()
    with pytest.raises(UsageError, match="there is no vLLM to start"):
        own_launches(a_run(kind="vllm"))


def test_the_estimate_has_the_share_of_a_server_on_the_same_gpu_alone():
    shape = outline(MODEL.config)
    shared, apart = (estimate(shape, a_run(kind="vllm", gpus=gpus), on_gpu=True, device=1000) for gpus in ((), ("1",)))
    assert [(part.name, part.size) for part in shared.playing] == [("vLLM server", 300)]
    assert sum(part.size for part in shared.host) - sum(part.size for part in apart.host) == shape.weight_bytes
    assert apart.playing == ()


def test_engines_of_one_run_share_its_servers_which_end_with_the_last_engine(gpu, environment, monkeypatch):
    started, ended = [], []
    monkeypatch.setattr(Server, "start", lambda self: started.append(self))
    monkeypatch.setattr(Server, "wait", lambda self, seconds: None)
    monkeypatch.setattr(Server, "stop", lambda self: ended.append(self))
    monkeypatch.setattr(own_servers.Watch, "run", lambda self: None)
    first, second = (vllm_engine(a_run(kind="vllm"), MODEL, [3], slots=4, seed=0) for _ in range(2))
    assert first.own_servers is second.own_servers
    assert first.shares_memory
    assert len(started) == 1
    first.close()
    gc.collect()
    assert ended == []
    second.close()
    gc.collect()
    assert ended == started


def test_a_server_that_does_not_start_leaves_nothing_behind(gpu, environment, monkeypatch):
    folders = []

    def fail(self):
        folders.append(self.folder)
        raise UsageError("no room on this GPU")

    monkeypatch.setattr(Server, "start", fail)
    with pytest.raises(UsageError, match="no room"):
        vllm_engine(a_run(kind="vllm"), MODEL, [3])
    assert not folders[0].exists()


def test_memory_that_torch_keeps_for_later_is_free_before_a_server_on_the_same_gpu_wakes(monkeypatch):
    steps = Mock(version=0, shares_memory=True, shares_weights=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", steps.empty_cache)
    monkeypatch.setattr(learner, "trained_engines", lambda agent: [steps])
    Learner(None, MODEL, a_run()).publish()
    assert [call[0] for call in steps.method_calls] == ["empty_cache", "update_weights", "reclaim"]
