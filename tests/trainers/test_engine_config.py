"""Which engine a run samples from is settled when it is asked for, and may change when it is gone on with."""

from functools import partial

import pytest

from palaestra import ConfigError
from palaestra.agents.engines.process import ProcessEngine
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.config.sections_config import EngineConfig
from palaestra.trainers.run.saved_config import refused, settled
from palaestra.trainers.setup.choose_engine import vllm_engine
from palaestra.trainers.setup.open_run import engine_maker
from palaestra.trainers.validation import changed

URL = "http://127.0.0.1:8000"


def test_servers_are_named_for_vllm_and_for_vllm_alone():
    for kind in ("auto", "torch", "process"):
        with pytest.raises(ConfigError, match="servers are named for vllm"):
            EngineConfig(kind, urls=(URL,))
    with pytest.raises(ConfigError, match="heads are 16 wide"):
        grpo_config("two-hop", engine={"kind": "vllm", "urls": [URL]})


def test_the_config_names_the_engine():
    config = grpo_config("two-hop", model="m", cache_tokens=500)
    assert engine_maker(config).func is TorchEngine
    process = engine_maker(changed(config, {"kind": "process"}))
    assert process.func is ProcessEngine
    assert process.keywords["cache_tokens"] == 500
    maker = engine_maker(changed(config, {"kind": "vllm", "urls": (URL,), "restart_seconds": 7.0}))
    assert isinstance(maker, partial)
    assert maker.func is vllm_engine
    (mine,) = maker.args
    assert (mine.engine.urls, mine.engine.restart_seconds) == ((URL,), 7)


def test_a_run_may_go_on_with_another_engine():
    saved = grpo_config("two-hop", model="m")
    assert refused(saved, grpo_config("two-hop", model="m", engine={"kind": "vllm", "urls": [URL]})) == ""


def test_a_run_that_goes_on_keeps_the_engine_that_was_chosen_when_it_began():
    saved = grpo_config("two-hop", model="m", engine={"kind": "vllm"})
    assert settled(saved, grpo_config("two-hop", model="m")).engine.kind == "vllm"
    assert settled(saved, grpo_config("two-hop", model="m", engine={"kind": "torch"})).engine.kind == "torch"


def test_a_precision_of_sampling_is_refused_where_servers_sample():
    with pytest.raises(ConfigError, match="setting of the built-in engine"):
        EngineConfig("vllm", urls=("http://127.0.0.1:8000",), sampling_precision="bfloat16")
