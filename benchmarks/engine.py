"""How much faster the built-in engine plays groups of multi-turn episodes than `generate()`: `make bench-engine`

Every prompt is played by a group of rollouts, each of several turns with a tool's result between them. Both sides run
the same model, sample the same number of tokens in every turn of every row, and read the same results. `generate()` is
used as TRL's GRPOTrainer uses it in its tool loop: all rows in one left-padded batch, each turn prefilled from the
first token of the conversation on, every row decoded until the longest turn of the batch has ended, no cache kept
between turns. Lengths of turns are drawn evenly between `shortest_turn` and `longest_turn`, since agents do not stop
together; `equal turns` has none of that and shows what the rest is worth. Nothing ends early: there is no end-of-turn
token.

Tokens are those a trainer would keep, the same for both; what `generate()` decodes behind a row's end is not counted.
The engine also reports a log-prob for each, which `generate()` is not asked for. All run in one process on one torch
thread, in turn; the ratio is that of CPU seconds, the median over rounds. Tools cost nothing, and text is not touched.

What explains the ratio is measured in the first round alone: `no shared prompt` is the engine where every rollout has a
prompt of its own, `full width` the engine whose decode steps are always as wide as it has slots. Exit status 1 when a
target is missed.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import tyro
from peers.findings import Report, target
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from palaestra import Request, Start
from palaestra.agents.engines.torch_engine import TorchEngine

RESULTS = Path(__file__).parent / "results"
TARGETS = {64: 2.0, 256: 3.0}
"""Least ratio of tokens per CPU second to `generate()`, by tokens of the prompt."""
_rows = count()


@dataclass(frozen=True)
class Options:
    """Groups of multi-turn episodes with a random Qwen3 in float32, on one CPU thread."""

    prompt_tokens: tuple[int, ...] = (64, 256)
    """Lengths of prompts; 64 and 256 have targets."""
    prompts: int = 8
    """Groups."""
    rollouts: int = 8
    """Episodes a group."""
    turns: int = 3
    """Turns an episode."""
    shortest_turn: int = 16
    """Fewest sampled tokens a turn."""
    longest_turn: int = 64
    """Most sampled tokens a turn."""
    result_tokens: int = 32
    """Tokens of a tool's result, between turns."""
    hidden: int = 256
    """Width of the model; heads are 32 wide."""
    layers: int = 4
    """Depth."""
    vocabulary: int = 1024
    """Rows of the embedding."""
    rounds: int = 3
    """Times that everything is measured, in turn."""
    targets: bool = True
    """Fail when a target is missed."""
    out: Path = RESULTS / "engine.json"
    """Where the figures go."""


@dataclass(frozen=True)
class Work:
    """What both sides play: prompts [row], lengths [turn, row], results [turn, row]."""

    prompts: list[list[int]]
    lengths: list[list[int]]
    results: list[list[list[int]]]

    @property
    def tokens(self) -> int:
        """Sampled tokens that a trainer would keep."""
        return sum(sum(turn) for turn in self.lengths)


@dataclass
class Side:
    """One way to play, and what it took in each round."""

    name: str
    play: Callable[[], list[list[int]]]
    once: bool = True
    """Measured in the first round alone."""
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


class FullWidth(TorchEngine):
    """Decodes all slots, whoever runs: what an engine does that cannot move its rows together."""

    def _width(self, running: int) -> int:
        return len(self._slots)


def build(options: Options) -> Any:
    """The random model."""
    torch.manual_seed(0)
    heads = options.hidden // 32
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=options.vocabulary,
            hidden_size=options.hidden,
            intermediate_size=3 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=32,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def draw(options: Options, prompt_tokens: int, *, shared: bool = True, equal: bool = False) -> Work:
    """Random prompts, lengths and results."""
    rng = np.random.default_rng(prompt_tokens)
    rows, shortest = options.prompts * options.rollouts, options.longest_turn if equal else options.shortest_turn

    def ids(length: int) -> list[int]:
        return [int(token) for token in rng.integers(1, options.vocabulary, length)]

    lengths = rng.integers(shortest, options.longest_turn + 1, (options.turns, rows)).tolist()
    results = [[ids(options.result_tokens) for _ in range(rows)] for _ in range(options.turns)]
    prompts = [ids(prompt_tokens) for _ in range(options.prompts if shared else rows)]
    return Work([prompts[row * len(prompts) // rows] for row in range(rows)], lengths, results)


def play_engine(engine: TorchEngine, work: Work) -> list[list[int]]:
    """Every row by itself: its next turn is asked for as soon as the last has ended."""
    whole = [list(prompt) for prompt in work.prompts]
    numbers = [next(_rows) for _ in whole]
    running: dict[int, tuple[int, int]] = {}

    def ask(row: int, turn: int) -> None:
        start = Start(row, numbers[row])
        ticket = engine.submit(Request(numbers[row], start, turn, (), (), whole[row], work.lengths[turn][row]))
        running[ticket] = (row, turn)

    for row in range(len(whole)):
        ask(row, 0)
    while running:
        for completion in engine.poll():
            row, turn = running.pop(completion.ticket)
            whole[row] += completion.ids
            if turn + 1 < len(work.lengths):
                whole[row] += work.results[turn][row]
                ask(row, turn + 1)
    return whole


def play_generate(model: Any, work: Work) -> list[list[int]]:
    """All rows together, as TRL's tool loop does it."""
    whole = [list(prompt) for prompt in work.prompts]
    for turn, lengths in enumerate(work.lengths):
        longest = max(len(row) for row in whole)
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in whole])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in whole])
        config = GenerationConfig(
            max_new_tokens=max(lengths), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0
        )
        with torch.no_grad():
            sampled = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, longest:]
        for row, length in enumerate(lengths):
            whole[row] += sampled[row, :length].tolist()
            if turn + 1 < len(work.lengths):
                whole[row] += work.results[turn][row]
    return whole


def measure(model: Any, options: Options, prompt_tokens: int) -> dict[str, Any]:
    """All ways to play prompts of one length, in turn, round after round."""
    work, own = draw(options, prompt_tokens), draw(options, prompt_tokens, shared=False)
    even = draw(options, prompt_tokens, equal=True)
    slots = len(work.prompts)
    sides = [
        Side("generate", lambda: play_generate(model, work), once=False),
        Side("engine", lambda: play_engine(TorchEngine(model, (), slots=slots), work), once=False),
        Side("engine, no shared prompt", lambda: play_engine(TorchEngine(model, (), slots=slots), own)),
        Side("engine, full width", lambda: play_engine(FullWidth(model, (), slots=slots), work)),
        Side("generate, equal turns", lambda: play_generate(model, even)),
        Side("engine, equal turns", lambda: play_engine(TorchEngine(model, (), slots=slots), even)),
    ]
    expected = work.tokens + (options.turns - 1) * slots * options.result_tokens + slots * prompt_tokens
    for number in range(options.rounds):
        for side in sides:
            if side.once and number:
                continue
            wall, cpu = time.perf_counter(), time.process_time()
            rows = side.play()
            side.cpu.append(time.process_time() - cpu)
            side.wall.append(time.perf_counter() - wall)
            assert "equal" in side.name or sum(map(len, rows)) == expected, "not the same work"
    tokens = {side.name: (even if "equal" in side.name else work).tokens for side in sides}
    by_name = {side.name: side for side in sides}
    return {
        "prompt_tokens": prompt_tokens,
        "sampled_tokens": work.tokens,
        "ratio": _ratio(by_name["generate"], by_name["engine"]),
        "ratio_equal_turns": _ratio(by_name["generate, equal turns"], by_name["engine, equal turns"]),
        "gain_of_shared_prompt": _ratio(by_name["engine, no shared prompt"], by_name["engine"]),
        "gain_of_width": _ratio(by_name["engine, full width"], by_name["engine"]),
        "sides": {
            name: {
                "cpu_seconds": round(statistics.median(side.cpu), 3),
                "wall_seconds": round(statistics.median(side.wall), 3),
                "tokens_per_cpu_second": round(tokens[name] / statistics.median(side.cpu)),
            }
            for name, side in by_name.items()
        },
    }


def _ratio(slow: Side, fast: Side) -> float:
    """Median over the rounds in which both were measured."""
    return round(statistics.median(a / b for a, b in zip(slow.cpu, fast.cpu, strict=False)), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    options = tyro.cli(Options, args=arguments)
    torch.set_num_threads(1)
    report, model = Report(options), build(options)
    warm = draw(Options(prompts=1, rollouts=2, turns=1, longest_turn=16, vocabulary=options.vocabulary), 16)
    play_generate(model, warm)
    play_engine(TorchEngine(model, (), slots=2), warm)
    figures, targets = [measure(model, options, length) for length in options.prompt_tokens], []
    for figure in figures:
        print(f"\nprompts of {figure['prompt_tokens']} tokens, {figure['sampled_tokens']} sampled tokens")
        for name, side in figure["sides"].items():
            print(
                f"  {name:<26}{side['cpu_seconds']:>8.2f} CPU s{side['wall_seconds']:>8.2f} s"
                f"{side['tokens_per_cpu_second']:>8,} tokens/CPU s"
            )
        print(f"  gained by shared prompts {figure['gain_of_shared_prompt']}, by width {figure['gain_of_width']}")
        name = f"prompts of {figure['prompt_tokens']} tokens: tokens per CPU second, by generate's"
        targets.append(target(name, figure["ratio"], least=TARGETS.get(figure["prompt_tokens"])))
        targets.append(target(f"{name}, equal turns", figure["ratio_equal_turns"]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return report.conclude({"figures": figures, "parameters": parameters}, targets)


if __name__ == "__main__":
    sys.exit(main())
