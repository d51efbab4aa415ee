"""The settings of a demo: what a pretrained model gets that was not named."""

import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import families
import pytest

from palaestra.cli import demo
from palaestra.trainers.config.grpo_config import laptop_config

SMALL = {"world": "plain", "kinds": "single", "format": "tags"}
BRIDGE = {"world": "plain", "kinds": "bridge", "format": "hermes"}


@pytest.mark.parametrize(
    ("model", "env_id", "named", "options"),
    [
        ("some", "palaestra/SearchQA-v0", (), SMALL),
        ("some", "palaestra/SearchQA-v0", ("kinds=bridge", "format=hermes"), BRIDGE),
        ("some", "palaestra/TwoHop-v0", (), {"format": "tags"}),
        ("some", "palaestra/TwoHop-v0=1,palaestra/SearchQA-v0=1", (), {}),
        ("tiny", "palaestra/SearchQA-v0", (), {}),
    ],
)  # fmt: skip
def test_a_pretrained_model_gets_small_tasks_and_short_calls_unless_others_are_named(
    monkeypatch, model, env_id, named, options
):
    monkeypatch.setattr(demo, "open_tokenizer", lambda name: families.TOKENIZERS["qwen2.5"])
    monkeypatch.setattr(demo, "template_format", lambda tokenizer: None)
    config = demo._for_pretrained(laptop_config(env_id, model=model, env_options=named))
    assert dict(config.env.options) == options
    assert (config.cold_start.demonstrations is None) == (model == "tiny")
    assert config.cold_start.max_greedy_tool_share == (None if model == "tiny" else 0.1)


class Model:
    """Stands for the model of a demo."""

    agent = None


def test_the_model_that_was_trained_is_freed_before_this_process_trains_controls(monkeypatch, tmp_path):
    report = SimpleNamespace(tool_share=0.1, success=0.1, success_with_tool=0.9)
    pupils, seen = [SimpleNamespace(local=Model(), steps=24, attempts=1)], []
    model = weakref.ref(pupils[0].local)
    background = SimpleNamespace(
        start=lambda *_: seen.append(model() is None), results=lambda: seen.append(model() is None)
    )
    monkeypatch.setattr(demo, "Background", lambda: nullcontext(background))
    monkeypatch.setattr(demo, "start_cold", lambda run, config, *_: (config, pupils.pop()))
    monkeypatch.setattr(demo, "measure", lambda *_: SimpleNamespace(sampled=report, greedy=report))
    monkeypatch.setattr(demo, "new_learner", lambda local, config: local)
    monkeypatch.setattr(demo, "train", lambda record, learner, on_progress: iter([learner]))
    monkeypatch.setattr(demo, "_show", lambda *shown: seen.append(shown[-1]))
    demo._play(SimpleNamespace(folder=tmp_path), laptop_config("palaestra/TwoHop-v0", model="some"))
    assert seen == [False, True, {"imitation_steps": 24, "initial_weights_tried": 1}]
