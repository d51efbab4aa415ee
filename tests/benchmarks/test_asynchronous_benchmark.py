"""The benchmark of playing ahead, in miniature: with an engine on a copy of the model in place of a process."""

import copy
import json
from types import SimpleNamespace

import families
import pytest
from batches import TOKENIZER, restless

import palaestra
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.model_folder import export
from palaestra.episode import Start

SCRIPT = "asynchronous.py"


class Apart(TorchEngine):
    """On a copy of the model."""

    def __init__(self, model, stops, **options):
        super().__init__(copy.deepcopy(model), stops, **options)

    shares_weights = False


def test_it_measures_and_fails_when_a_target_is_missed(script, change, tmp_path, capsys):
    change("engine_maker", lambda: Apart)
    change("TARGET", 1e9)
    export(restless(layers=1), TOKENIZER, tmp_path / "model")
    flags = ["--steps", "4", "--num-prompts", "2", "--num-generations", "2", "--tool-ms", "5"]
    out = tmp_path / "found.json"
    assert script["main"]([*flags, "--model", str(tmp_path / "model"), "--out", str(out)]) == 1
    assert "MISSED gain by its bound" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["gain"] > 0
    assert found["bound"] >= 1
    assert found["at_once"]["staleness"] > 0


def test_tools_answer_later_and_endings_do_not(script, change):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    change("time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    arena = script["Slow"](families.Talk(2, turns=1), 0.15)
    assert isinstance(arena, palaestra.Arena)
    for slot in (0, 1):
        arena.begin(slot, Start(slot, slot))
    assert len(arena.recv(2, 1.0)) == 2
    began = now[0]
    arena.send({0: "over", 1: "ask"})
    (ended,) = arena.recv(1, 0.0)
    assert ended.slot == 0
    (asked,) = arena.recv(1, 1.0)
    assert asked.slot == 1
    assert now[0] - began == pytest.approx(0.15, abs=0.002)
