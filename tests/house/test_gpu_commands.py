"""Commands for a GPU on the pages fit the machine that they name."""

import re
import shlex

import pages
import pytest
from transformers import Qwen3Config

from palaestra.cli.train import parse
from palaestra.trainers.scale.available_memory import gpu_room
from palaestra.trainers.scale.fit_memory import fitted

QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151_936, "tie_word_embeddings": True}
SHAPES = {
    "Qwen/Qwen3-0.6B": Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, **QWEN3
    ),
    "Qwen/Qwen3-4B-Instruct-2507": Qwen3Config(
        hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32, **QWEN3
    ),
}
"""As their config.json on the hub has them."""
MACHINE = re.compile(r"GPU of (\d+) GB")


@pytest.mark.prove
def test_every_command_of_the_pages_fits_the_gpu_that_it_names():
    found = []
    for page in pages.PAGES:
        for block in pages.blocks(page.read_text("utf-8")):
            machine = MACHINE.search(block.excuse or "")
            if machine is None:
                continue
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] != ["palaestra", "train"]:
                    continue
                config = parse(["two-hop", *words[3:]], "palaestra train").config
                found.append(fitted(config, SHAPES[config.model], gpu_room(float(machine[1]), 64 * 2**30)))
    assert len(found) >= 3, "the pages have commands for a GPU"
    assert any(one.config.longest_row == 8192 for one in found)
