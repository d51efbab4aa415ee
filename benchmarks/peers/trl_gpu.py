"""TRL's side of `make bench-gpu`: whole steps of its GRPOTrainer in the shape that is asked for, as on one GPU.

Settings are TRL's own where it has any: weights in float32 that are computed with in bfloat16, checkpointed layers,
generation by transformers, for vLLM is not carried. Prompts, turns and the tool that waits are those of `trl_train`.
"""

from typing import Any

import torch
from datasets import Dataset
from line import answer_requests
from training import RESULT, Case, prompts, reward, wait
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl_train import Watch, pretend_calls, said, tokenizer

ROWS = 8
"""Of a micro-batch: all their logits are in memory at once."""


def step(asked: dict[str, Any], shape: dict[str, Any], steps: int) -> dict[str, float]:
    """Some steps, of which the last is reported."""
    case, on_gpu, counted = Case(**asked), torch.cuda.is_available(), list[int]()
    torch.manual_seed(0)
    with torch.device("cuda" if on_gpu else "cpu"):
        model = Qwen3ForCausalLM(Qwen3Config(**shape))

    def score(completion_ids: list[list[int]], **_: Any) -> list[float]:
        counted.append(sum(map(len, completion_ids)) - len(completion_ids) * RESULT * (case.turns - 1))
        return [reward(ids) for ids in completion_ids]

    def look_up() -> str:
        """Wait and answer."""
        return said(wait(case.latency))

    rows = min(ROWS, case.prompts * case.rollouts)
    config = GRPOConfig(
        output_dir="/tmp/unused",
        use_cpu=not on_gpu,
        bf16=on_gpu,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=case.prompts * case.rollouts // rows,
        num_generations=case.rollouts,
        max_completion_length=case.turns * case.turn_tokens + (case.turns - 1) * RESULT,
        generation_kwargs={"max_new_tokens": case.turn_tokens, "min_new_tokens": case.turn_tokens},
        max_steps=steps,
        learning_rate=1e-6,
        beta=0.0,
        temperature=1.0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        max_tool_calling_iterations=case.turns - 1,
    )
    given = [[{"role": "user", "content": said(ids)}] for number in range(steps) for ids in prompts(case, number)]
    watch = Watch()
    trainer = GRPOTrainer(
        model,
        score,
        config,
        Dataset.from_dict({"prompt": given}),
        processing_class=tokenizer(),
        callbacks=[watch],
        tools=[look_up],
    )
    trainer.train()
    peak = {"peak_bytes": float(torch.cuda.max_memory_allocated())} if on_gpu else {}
    seconds = watch.steps[-1]["wall_s"]
    return {
        "step_seconds": seconds,
        "sampled_tokens": counted[-1],
        "sampled_tokens_per_second": counted[-1] / seconds,
        "on_gpu": float(on_gpu),
        **peak,
    }


if __name__ == "__main__":
    pretend_calls()
    answer_requests(("trl", "torch", "transformers"), {"step": step})
