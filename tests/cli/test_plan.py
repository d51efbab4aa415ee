"""`palaestra plan`: what it prints of a small model, what it says its figures rest on, and what it refuses."""

import json

import families
import pytest
from commands import refused, run
from transformers import Qwen3Config

from palaestra.agents.model_folder import export
from palaestra.record import Record, write

SMALL = ("--play.num-prompts", 4, "--play.num-generations", 4, "--play.max-episode-tokens", 4096)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model's folder."""
    folder, tokenizer = tmp_path_factory.mktemp("plan") / "small", families.TOKENIZERS["qwen2.5"]
    export(families.stock_model("qwen3", len(tokenizer)), tokenizer, folder)
    return folder


def test_it_prints_a_row_for_each_way_and_what_the_figures_rest_on(capsys, model):
    status, out, _ = run(capsys, "plan", model, "--env", "two-hop", "--gpus", 1, 4, "--price", 2, *SMALL)
    assert status == 0
    assert "Nothing was measured on a GPU" in out
    assert "3.35 TB/s, 989 TFLOP/s" in out
    assert "none measured" in out
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows][:3] == ["1", "4", "4"]


def test_the_price_is_that_of_all_cards_for_a_step_and_many_cards_are_extrapolated(capsys, model):
    status, out, err = run(capsys, "plan", model, "--gpus", 2, 128, "--price", 3.6, "--json", "-", *SMALL)
    found = json.loads(out)
    assert status == 0
    assert "More than 64 cards: extrapolated" in err
    assert {plan["cards"] for plan in found["plans"]} == {2, 128}
    for plan in found["plans"]:
        assert plan["dollars"] == pytest.approx(plan["cards"] * plan["step"]["seconds"] / 1000)


def test_recorded_episodes_of_the_environment_are_taken(capsys, model, tmp_path):
    file = tmp_path / "recorded.jsonl"
    episode = families.an_episode(families.token_row(3, [4, 5], reply=6))
    write(file, [Record("palaestra/TwoHop-v0", episode)])
    _, out, _ = run(capsys, "plan", model, "--gpus", 1, "--episodes", file, *SMALL)
    assert "1 recorded; on average 2.0 turns, 9 sampled tokens of 18" in out
    refused(
        capsys,
        "environments of their episodes: palaestra/TwoHop-v0",
        "plan",
        model,
        "--env",
        "calculator",
        "--episodes",
        file,
    )


def test_a_run_that_fits_no_card_says_why_and_fails(capsys, model, tmp_path):
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    Qwen3Config(
        hidden_size=131_072, intermediate_size=524_288, num_hidden_layers=1, num_attention_heads=32, vocab_size=32_000
    ).save_pretrained(tmp_path)
    named = ("--scale.gradient-checkpointing", True, "--scale.optimizer-offload", False, "--scale.lora-r", 8)
    status, out, _ = run(capsys, "plan", tmp_path, "--gpus", 2, *named, *SMALL)
    assert status == 1
    assert "no split of 2 cards fits" in out


def test_a_wrong_request_is_refused(capsys, model):
    refused(capsys, "--price is -1", "plan", model, "--price", -1)
    refused(capsys, "--gpus expects", "plan", model, "--gpus", 0)
    refused(capsys, "leaves no room in a row of 500", "plan", model, "--play.max-episode-tokens", 500)
