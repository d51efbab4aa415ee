"""The tiny agent: a stock Qwen3 of about 130,000 parameters with a tokenizer of its own, made in seconds on a CPU.

Its weights are random until it is trained (`trainers.setup.cold_start`). Its chat template is compact: one token opens
a message and one token closes it. It shows no tool schemas, because so small a model learns its tools from
demonstrations. Classes, call format, engine and trainer are the same as for a large model.
"""

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
CONTROL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<tool_call>", "</tool_call>"]


def tiny_tokenizer(texts: Iterable[str], vocabulary: int = 512) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer learned from `texts`.

    A word's token holds no space, so that a name has the same tokens wherever it is copied to. Exception: the token of
    a word before a number ends with the space between them. Digits are grouped in pairs.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[A-Za-z]+ (?=[0-9])|[A-Za-z]+|[0-9]{1,2}|[^A-Za-z0-9]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=CONTROL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>", chat_template=TEMPLATE
    )


def tiny_model(vocabulary: int, *, layers: int = 2, seed: int = 0) -> Any:
    """Return a Qwen3 with random weights: width 64, four heads, tied embeddings.

    The rotary base is 100 instead of 10,000, because rows are short, and copying needs to tell near positions apart.
    """
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name:
                parameter.normal_(0.0, 0.05, generator=generator)
            elif parameter.ndim == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
    return model.eval()
