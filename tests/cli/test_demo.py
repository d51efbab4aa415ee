"""The settings of a demo: what a pretrained model gets that was not named."""

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
    assert config.cold_start.max_greedy_tool_share == (None if model == "tiny" else 0.5)
