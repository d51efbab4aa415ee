"""Tokenizers, templates, models and little worlds for the tests of agents and trainers.

The templates behave like those of the families they are named after, in what matters to appending: who closes a turn,
where tool results go, what happens to earlier thinking. The words are ours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from palaestra import Attempt, Call, Completion, Ending, Episode, Event, Start, Status, Task, TokenRow
from palaestra.agents import Chat
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer

TEXTS = (
    "What is the mayor of the city where Bado was born? question reply word musing Answer: Kemu",
    '{"name": "search", "arguments": {"query": "Bado born"}} no result, the tool said: 17 * 23 = 391.',
    "Be brief. system user assistant tool ipython\n\nfunction\n",
)
TOOLS = (
    {
        "type": "function",
        "function": {"name": "search", "description": "Look up.", "parameters": {"type": "object", "properties": {}}},
    },
)

_TOOL_LIST = (
    "{%- if tools -%}{{- '# Tools\\n' -}}"
    "{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}{%- endif -%}"
)
_CHATML_HEAD = (
    "{%- set first = messages[0] -%}{%- if tools or first.role == 'system' -%}"
    "{{- '<|im_start|>system\\n' + (first.content if first.role == 'system' else 'You help.') + '\\n' -}}"
    + _TOOL_LIST
    + "{{- '<|im_end|>\\n' -}}{%- endif -%}"
)
_CHATML_TOOL = (
    "{%- elif message.role == 'tool' -%}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}"
    "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}"
)
_CHATML_END = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
QWEN25 = (
    _CHATML_HEAD
    + "{%- for message in messages -%}"
    + "{%- if message.role in ('user', 'assistant') -%}"
    + "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    + _CHATML_TOOL
    + "{%- endif -%}{%- endfor -%}"
    + _CHATML_END
)
# Thinking before the last question is dropped; the turn that comes last gets a think block even if it has none.
QWEN3 = (
    _CHATML_HEAD
    + "{%- set seen = namespace(last=0) -%}"
    + "{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set seen.last = loop.index0 -%}"
    + "{%- endif -%}{%- endfor -%}"
    + "{%- for message in messages -%}"
    + "{%- if message.role == 'user' -%}{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' -}}"
    + "{%- elif message.role == 'assistant' -%}"
    + "{%- set thought, said = '', message.content -%}"
    + "{%- if '</think>' in said -%}"
    + "{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}"
    + "{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}"
    + "{%- endif -%}"
    + "{{- '<|im_start|>assistant\\n' -}}"
    + "{%- if loop.index0 > seen.last and (loop.last or thought) -%}"
    + "{{- '<think>\\n' + thought + '\\n</think>\\n\\n' -}}{%- endif -%}"
    + "{{- said + '<|im_end|>\\n' -}}"
    + _CHATML_TOOL
    + "{%- endif -%}{%- endfor -%}"
    + _CHATML_END
)
# Like a thinking-only model: the prompt opens the thinking itself, history loses it.
QWEN3_THINKING = QWEN3.replace(
    "'<|im_start|>assistant\\n' -}}{%- endif -%}", "'<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}"
)
# As templates made for training do: every turn is shown with a think block, an empty one where there was none.
QWEN3_TRAINING = QWEN3.replace("loop.index0 > seen.last and (loop.last or thought)", "true")
LLAMA3 = (
    "{{- '<|begin_of_text|>' -}}"
    + "{%- if tools or messages[0].role == 'system' -%}{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' -}}"
    + "{{- 'Environment: ipython\\n' if tools else '' -}}"
    + "{{- messages[0].content | trim if messages[0].role == 'system' else '' -}}"
    + _TOOL_LIST
    + "{{- '<|eot_id|>' -}}{%- endif -%}"
    + "{%- for message in messages -%}"
    + "{%- if message.role in ('user', 'assistant') -%}"
    + "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}"
    + "{%- elif message.role == 'tool' -%}"
    + "{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' -}}"
    + "{%- endif -%}{%- endfor -%}"
    + "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)
_CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CHATML_WORDS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
_LLAMA_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
]


def _tokenizer(template, special, words, end, *, extra=()):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in special], special_tokens=True)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*words, *extra)])
    tokenizer.eos_token = tokenizer.pad_token = end
    return tokenizer


def _build():
    def chatml(template, **more):
        return _tokenizer(template, _CHATML_TOKENS, _CHATML_WORDS, "<|im_end|>", **more)

    return {
        "qwen2.5": chatml(QWEN25),
        "qwen3": chatml(QWEN3),
        # The 2507 instruct models keep every turn as it was said.
        "qwen3-2507": chatml(QWEN25.replace("You help.", "")),
        "qwen3-thinking": chatml(QWEN3_THINKING),
        "qwen3-training": chatml(QWEN3_TRAINING),
        "llama3": _tokenizer(LLAMA3, _LLAMA_TOKENS, (), "<|eot_id|>"),
        "tiny": tiny_tokenizer(TEXTS, 300),
    }


TOKENIZERS = _build()
NESTED = _tokenizer(
    QWEN25,
    _CHATML_TOKENS,
    _CHATML_WORDS,
    "<|im_end|>",
    extra=("<<im>>", "<im>", "im>>ab", "abc", "bcd", "  ", "   ", "    "),
)
"""Added tokens inside one another, across one another, and runs of spaces as code models have them."""


def chat(family: str) -> Chat:
    return Chat(TOKENIZERS[family])


FOUR_BILLION = Qwen3Config(
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151_936,
    tie_word_embeddings=True,
)
"""The shape of Qwen3-4B, of which no weight is ever made."""
SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "pad_token_id": 0,
}


def stock_model(name: str, vocabulary: int, seed: int = 0):
    """A small random model of a stock class, weights large enough for its choices to differ."""
    torch.manual_seed(seed)
    if name == "llama":
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **SIZE))
    elif name == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, num_key_value_heads=4, **SIZE))
    else:
        model = Qwen3ForCausalLM(
            Qwen3Config(vocab_size=vocabulary, num_key_value_heads=2, head_dim=12, tie_word_embeddings=False, **SIZE)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    return model.eval()


def restless(every=6, layers=2):
    """A random model of the tiny agent with so many stops that its turns differ in length, and with a short limit its
    rewards.
    """
    model = tiny_model(len(TOKENIZERS["tiny"]), layers=layers, seed=7)
    model.generation_config.eos_token_id = list(range(20, 250, every))
    return model


def random_agent(folder, **made):
    """The folder of such a model."""
    export(restless(**made), TOKENIZERS["tiny"], folder)
    return folder


def fresh_logprobs(model, row, temperature=1.0):
    """What an ordinary forward pass over the whole row says of its sampled tokens."""
    ids = torch.tensor(row.ids, dtype=torch.long)[None]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, dim=-1)
    places = torch.tensor(row.sampled).nonzero()[:, 0]
    return logprobs[places - 1, ids[0, places]].numpy()


REPLIES = (
    "no result",
    "17 * 23 = 391",
    "Kemu",
    "naïve ünïcode — 東京 🙂",
    "the tool said: <|im_end|><|end|>",
    "x " * 9,
)


class Talk:
    """An arena that answers whatever the agent says, `task % (turns + 1)` times; then the episode is over.

    Reward is 1 for an odd length of the last turn. `broken(start, number of tries)` may break an episode, `late` keeps
    an answer back for that many calls of `recv`.
    """

    def __init__(self, slots, turns=3, *, broken=None, late=0, kind="tool", replies=REPLIES):
        self.slots, self.task_count, self.ordered = slots, 10_000, False
        self.turns, self.broken, self.late, self.kind, self.replies = turns, broken, late, kind, replies
        self.live, self.events, self.begun, self.finished = {}, deque(), [], []
        self.heard: dict[int, list[str]] = {}
        self.tries: dict[Start, int] = {}
        self.closed = False

    def begin(self, slot, start):
        assert 0 <= slot < self.slots
        self.events = deque(entry for entry in self.events if entry[1].slot != slot)
        self.begun.append(start)
        self.tries[start] = self.tries.get(start, 0) + 1
        self.live[slot] = [start, []]
        messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": f"question {start.task}?"})
        self._report(Event(slot, start, messages, TOOLS))

    def send(self, actions):
        for slot, text in actions.items():
            assert isinstance(text, str)
            start, said = self.live[slot]
            said.append(text)
            if self.broken and self.broken(start, self.tries[start]):
                self._end(slot, Ending.BROKEN)
            elif len(said) > start.task % (self.turns + 1):
                self._end(slot, Ending.ANSWERED)
            else:
                reply = self.replies[(start.task + len(said)) % len(self.replies)]
                self._report(Event(slot, start, ({"role": self.kind, "name": "search", "content": reply},), TOOLS))

    def recv(self, min_ready=1, timeout=None):
        ready, kept = [], deque()
        for wait, event in self.events:
            if wait > 0:
                kept.append((wait - 1, event))
            else:
                ready.append(event)
        self.events = kept
        return ready

    def finish(self, slot, ending, text=""):
        self.finished.append((self.live[slot][0], ending, text))
        if text:
            self.live[slot][1].append(text)
        self._end(slot, ending)

    def close(self):
        self.closed = True

    def _report(self, event):
        self.events.append((self.late, event))

    def _end(self, slot, ending):
        start, said = self.live.pop(slot)
        messages = tuple({"role": "assistant", "content": text} for text in said)
        calls = tuple(Call("search", {}, "found", Status.OK) for _ in said[1:])
        attempt = Attempt(Task("question", id=str(start.task)), messages, said[-1] if said else None, calls, len(said))
        lost = ending is Ending.BROKEN
        reward = None if lost else float(len(said[-1]) % 2) if said else 0.0
        parts = {} if reward is None else {"success": reward}
        self._report(Event(slot, start, (), TOOLS, ending, reward, parts, attempt, "it broke" if lost else ""))


class Echo:
    """An engine of text that says its turn's number after `delay` polls."""

    sampled = 0

    def __init__(self, delay=0):
        self.delay, self.waiting, self.cancelled, self.submitted, self.polls = delay, {}, [], [], 0

    def submit(self, request):
        ticket = len(self.submitted)
        self.submitted.append(replace(request, messages=tuple(request.messages)))
        self.waiting[ticket] = [self.delay, f"turn {request.turn}"]
        return ticket

    def poll(self, timeout=0.0):
        self.polls += 1
        done = [ticket for ticket, (left, _) in self.waiting.items() if left <= 0]
        completions = [Completion(ticket, text=self.waiting.pop(ticket)[1]) for ticket in done]
        for entry in self.waiting.values():
            entry[0] -= 1
        return completions

    def cancel(self, ticket):
        self.cancelled.append(ticket)
        self.waiting.pop(ticket, None)

    def update_weights(self, tensors, version):
        pass

    def close(self):
        pass


def starts(count, first=0):
    return [Start(task=first + number, seed=number, group=number) for number in range(count)]


def token_row(prompt, said, *, reply=2, logprob=-1.0, version=0, vocabulary=40, seed=0):
    """A row of random ids: a prompt, then turns of the given lengths with a reply after each but the last."""
    rng = np.random.default_rng(seed)
    sampled = [False] * prompt
    for number, length in enumerate(said):
        sampled += [True] * length + [False] * (reply if number < len(said) - 1 else 0)
    mask = np.array(sampled, bool)
    return TokenRow(
        rng.integers(1, vocabulary, len(mask)).astype(np.int32),
        mask,
        np.where(mask, np.float32(logprob), np.float32(0)).astype(np.float32),
        np.where(mask, version, -1).astype(np.int32),
    )


def an_episode(*rows, reward=1.0, group=0, calls=(), ending=Ending.ANSWERED, task=0, seed=0, turns=1):
    """A finished episode of these rows; `calls` are statuses."""
    asked = tuple(Call("search", {}, "text", status) for status in calls)
    attempt = Attempt(Task("question", "Kemu"), ({"role": "user", "content": "question"},), "Kemu", asked, turns)
    parts = {} if reward is None else {"success": reward}
    return Episode(Start(task, seed, group), attempt, rows, ending, reward, parts, "" if parts else "it broke")
