"""The GPU benchmark runs anywhere: here with a tiny shape on the CPU."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
TINY = (
    "--hidden 32 --layers 2 --heads 4 --kv-heads 2 --head-dim 8 --intermediate 64 --vocabulary 512 --num-prompts 2 "
    "--num-generations 2 --turn-tokens 8 --slots 4 --steps 2 --device cpu"
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_measures_generation_and_training_and_writes_them_down(dtype, tmp_path, capsys):
    out = tmp_path / "results" / "gpu.json"
    status = runpy.run_path(str(SCRIPT))["main"]([*TINY.split(), "--dtype", dtype, "--out", str(out)])
    assert status == 0
    figures = json.loads(out.read_text())
    assert figures["generation_tokens_per_second"] > 0
    assert figures["training_tokens_per_second"] > 0
    assert figures["versions"]["torch"]
    assert "generation_tokens_per_second" in capsys.readouterr().out
