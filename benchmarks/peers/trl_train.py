"""TRL's side of `make bench-train`: its GRPOTrainer with transformers' own generation, as its users run it on a CPU.

A model with random weights calls no tool. So in the case with a tool, the function that parses a turn is replaced:
every turn is a call, and the second one is the last. The rest, with the loop that runs the calls, is TRL's.
"""

from typing import Any

import torch
from datasets import Dataset
from line import answer_requests
from tokenizers import Tokenizer, models, pre_tokenizers
from training import RESULT, WORDS, Case, Clock, build, peak_gb, prompts, reward, wait
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

TEMPLATE = "{%- for message in messages -%}{{- ' ' + (message['content'] or 'w3') -}}{%- endfor -%}"
"""Tokenizer with one token per word."""


def tokenizer(size: int = WORDS) -> PreTrainedTokenizerFast:
    """Return a tokenizer of `size` words: `w17` is token 17. No special token may be a part of a word, or it would be
    found there.
    """
    special = {"<pad>": 0, "<end>": 1, "<unknown>": 2}
    words = {f"w{n}": n for n in range(len(special), size)}
    made = Tokenizer(models.WordLevel(special | words, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>", chat_template=TEMPLATE
    )


def words_of(ids: list[int]) -> str:
    """Return ids as words."""
    return " ".join(f"w{n}" for n in ids)


class Watch(TrainerCallback):
    """Measures the time of each step."""

    def __init__(self) -> None:
        self.clock, self.steps = Clock(), list[dict[str, float]]()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin to measure before the batch is made."""
        self.clock.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End after the optimizer step."""
        self.steps.append(self.clock.end())


def train(case_values: dict[str, Any], begin: int, rows: int) -> dict[str, float]:
    """Take two steps, of which the first is not measured."""
    case, counted = Case(**case_values), []
    model = build(case.model)

    def score(completion_ids: list[list[int]], **_: Any) -> list[float]:
        counted.append(sum(map(len, completion_ids)) - len(completion_ids) * RESULT * (case.turns - 1))
        return [reward(ids) for ids in completion_ids]

    def look_up() -> str:
        """Wait and answer."""
        return words_of(wait(case.latency))

    words = tokenizer(model.config.vocab_size)
    steps = [words_of(ids) for step in range(begin, begin + 2) for ids in prompts(case, step)]
    total = case.turns * case.turn_tokens + (case.turns - 1) * RESULT
    config = GRPOConfig(
        output_dir="/tmp/unused",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=case.prompts * case.rollouts // rows,
        num_generations=case.rollouts,
        max_completion_length=total,
        generation_kwargs={"max_new_tokens": case.turn_tokens, "min_new_tokens": case.turn_tokens},
        max_steps=2,
        learning_rate=1e-6,
        beta=0.0,
        temperature=1.0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        max_tool_calling_iterations=1,
    )
    if any(len(words(text)["input_ids"]) != case.prompt_tokens for text in steps):
        raise RuntimeError(f"a prompt has not {case.prompt_tokens} tokens")
    given = [[{"role": "user", "content": text}] for text in steps] if case.latency else steps
    watch = Watch()
    trainer = GRPOTrainer(
        model,
        score,
        config,
        Dataset.from_dict({"prompt": given}),
        processing_class=words,
        callbacks=[watch],
        tools=[look_up] if case.latency else None,
    )
    trainer.train()
    expected = case.prompts * case.rollouts * case.turns * case.turn_tokens
    if counted[-1] != expected:
        raise RuntimeError(f"{counted[-1]} tokens were sampled; expected {expected}")
    return watch.steps[-1] | {"peak_gb": peak_gb()}


def a_call(*_: Any, **__: Any) -> dict[str, Any]:
    """Return the call that each turn is parsed as."""
    call = {"type": "function", "function": {"name": "look_up", "arguments": {}}}
    return {"role": "assistant", "content": "w3", "tool_calls": [call]}


def pretend_calls() -> None:
    """Make TRL's loop parse every turn as a call."""
    grpo_trainer.supports_tool_calling = lambda _: True
    grpo_trainer.is_chat_template_prefix_preserving = lambda _: True
    grpo_trainer.add_response_schema = lambda given: setattr(given, "response_template", {}) or given
    grpo_trainer.parse_response = a_call


def main() -> None:
    """Answer requests until the benchmark ends."""
    torch.set_num_threads(1)
    pretend_calls()
    answer_requests(("trl", "torch", "transformers"), {"train": train})


if __name__ == "__main__":
    main()
