"""Measure how fast the built-in engine plays multi-turn episodes, compared with `generate()`: `make bench-engine`

Each prompt is played by a group of episodes, with several turns and a tool's result after each turn. Both sides run the
same model, sample the same number of tokens in each turn of each row, and read the same results. `generate()` is called
as in the tool loop of TRL's GRPOTrainer: all rows in one left-padded batch; each turn prefills the conversation from
its first token; all rows are decoded until the longest turn of the batch has ended; no cache is kept between turns. The
lengths of turns are drawn uniformly between `shortest_turn` and `longest_turn`, because agents do not stop together;
`equal turns` has equal lengths and shows the effect of all else. There is no end-of-turn token, so no turn ends early.

Counted are the tokens that a trainer would keep, the same on both sides, without those that `generate()` decodes after
the end of a row. The engine also returns log-probs, which `generate()` is not asked for. Both run in one process on one
torch thread, in turn. The ratio is that of CPU seconds, the median over rounds. Tools take no time, and text is not
used. Two variants, measured in the first round only, explain the ratio: `no shared prompt` is the engine with a
different prompt for each episode, `full width` the engine whose decode steps always have as many rows as it has slots.

Exit status 1 when a target is missed.
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
"""Smallest ratio of tokens per CPU second to those of `generate()`, by the length of the prompt."""
_rows = count()


@dataclass(frozen=True)
class Options:
    """Play groups of multi-turn episodes with a random Qwen3 in float32, on one CPU thread."""

    prompt_tokens: tuple[int, ...] = (64, 256)
    """Lengths of the prompts; 64 and 256 have targets."""
    prompts: int = 8
    """Number of groups."""
    rollouts: int = 8
    """Episodes per group."""
    turns: int = 3
    """Turns per episode."""
    shortest_turn: int = 16
    """Minimum sampled tokens of a turn."""
    longest_turn: int = 64
    """Maximum sampled tokens of a turn."""
    result_tokens: int = 32
    """Tokens of a tool's result between two turns."""
    hidden: int = 256
    """Width of the model; each head has width 32."""
    layers: int = 4
    """Number of layers."""
    vocabulary: int = 1024
    """Size of the vocabulary."""
    rounds: int = 3
    """Number of rounds; all sides are measured in turn in each."""
    targets: bool = True
    """Exit with status 1 if a target is missed."""
    out: Path = RESULTS / "engine.json"
    """File for the figures."""


@dataclass(frozen=True)
class Work:
    """Input of both sides: prompts [row], lengths [turn, row], results [turn, row]."""

    prompts: list[list[int]]
    lengths: list[list[int]]
    results: list[list[list[int]]]

    @property
    def tokens(self) -> int:
        """Return the number of sampled tokens that a trainer would keep."""
        return sum(sum(turn) for turn in self.lengths)


@dataclass
class Side:
    """One way to play, with its seconds in each round."""

    name: str
    play: Callable[[], list[list[int]]]
    once: bool = True
    """True if it is measured in the first round only."""
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


class FullWidth(TorchEngine):
    """Engine that decodes all slots in each step, like an engine that cannot move its active rows together."""

    def _width(self, running: int) -> int:
        return len(self._slots)


def build(options: Options) -> Any:
    """Return a random model."""
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
    """Return random prompts, lengths and results."""
    rng = np.random.default_rng(prompt_tokens)
    rows, shortest = options.prompts * options.rollouts, options.longest_turn if equal else options.shortest_turn

    def ids(length: int) -> list[int]:
        return [int(token) for token in rng.integers(1, options.vocabulary, length)]

    lengths = rng.integers(shortest, options.longest_turn + 1, (options.turns, rows)).tolist()
    results = [[ids(options.result_tokens) for _ in range(rows)] for _ in range(options.turns)]
    prompts = [ids(prompt_tokens) for _ in range(options.prompts if shared else rows)]
    return Work([prompts[row * len(prompts) // rows] for row in range(rows)], lengths, results)


def play_engine(engine: TorchEngine, work: Work) -> list[list[int]]:
    """Play each row independently: its next turn is submitted as soon as the last one has ended."""
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
    """Play all rows together, as TRL's tool loop does."""
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
    """Measure all ways to play prompts of one length, in turn, in each round."""
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
    """Return the median ratio over the rounds in which both were measured."""
    return round(statistics.median(a / b for a, b in zip(slow.cpu, fast.cpu, strict=False)), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
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
