"""Check whether a run can be trained with a vLLM server. If not, the reason is one sentence.

Left out: whether the server's answers are valid; `answer` checks every answer.
"""

import re
from collections.abc import Mapping
from typing import Any

from palaestra.agents.engines.vllm.replica import HEALTH_SECONDS, Lost, Replica, RequestRejected

FIRST, BEFORE = (0, 32), (0, 34)
"""Supported versions of vLLM: from the first, and below the second."""
LEAST_HEAD_ON_CPU = 32
_STARTED = "start it with 'palaestra serve vllm MODEL'"
_SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")
_TEXTS = ("What is 17 * 23? Answer: 391", "naïve ünïcode, 東京 🙂")


async def described(replica: Replica, config: Any) -> dict[str, Any]:
    """Return the server's description of its model. Raise `RequestRejected` if the model does not fit this config."""
    version_answer = await _ask(replica, "/version")
    version = version_answer.get("version") if isinstance(version_answer, Mapping) else None
    numbers = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if numbers is None:
        raise RequestRejected(f"{replica.url} is no vLLM server, for it does not say its version; {_STARTED}")
    if not FIRST <= (int(numbers[1]), int(numbers[2])) < BEFORE:
        supported = f"from {'.'.join(map(str, FIRST))} and below {'.'.join(map(str, BEFORE))}"
        raise RequestRejected(f"{replica.url} is vLLM {version}; expected a version {supported}")
    try:
        spec = (await replica.call("palaestra_describe", HEALTH_SECONDS))[0]
    except (Lost, RequestRejected) as error:
        raise RequestRejected(
            f"{replica.url} is vLLM {version} without what palaestra adds to it ({error}); {_STARTED}"
        ) from None
    if spec.get("logprobs_mode") != "processed_logprobs":
        raise RequestRejected(
            f"{replica.url} gives {spec.get('logprobs_mode')}, which are not of the distribution that it samples from; "
            f"{_STARTED}"
        )
    inner = config.get_text_config()
    for name in _SHAPE:
        if spec.get(name) != getattr(inner, name, None):
            raise RequestRejected(
                f"{replica.url} serves a model with {name} {spec.get(name)!r}; the one in training has "
                f"{getattr(inner, name, None)!r}: start it with the folder of that model"
            )
    if not isinstance(spec.get("max_model_len"), int):
        raise RequestRejected(f"{replica.url} does not say how long its rows may be; {_STARTED}")
    return spec


def refused_on_cpu(config: Any) -> str:
    """Return why vLLM's CPU build cannot serve a model, or "" if no reason is known."""
    inner = config.get_text_config()
    heads = getattr(inner, "num_attention_heads", None)
    width = getattr(inner, "head_dim", None) or (inner.hidden_size // heads if heads else 0)
    if width < LEAST_HEAD_ON_CPU:
        return (
            f"vLLM on CPU serves attention heads of {LEAST_HEAD_ON_CPU} and more; those of this model are {width} wide"
        )
    return ""


async def tokenizer_fault(replica: Replica, tokenizer: Any) -> str:
    """Return how the server's tokenizer differs from that of the model in training, or "" if they are equal."""
    control = "".join(sorted(tokenizer.get_added_vocab(), key=tokenizer.get_added_vocab().__getitem__))
    for text in (*_TEXTS, control):
        if not text:
            continue
        reply = await _ask(replica, "/tokenize", {"prompt": text, "add_special_tokens": False})
        server_ids = reply.get("tokens") if isinstance(reply, Mapping) else None
        local_ids = tokenizer.encode(text, add_special_tokens=False)
        if server_ids != local_ids:
            return (
                f"{replica.url} has another tokenizer than the model in training: {text[:40]!r} is {server_ids!r:.60} "
                f"there and {local_ids!r:.60} here; start it with the folder of that model"
            )
    return ""


async def _ask(replica: Replica, path: str, body: Mapping[str, Any] | None = None) -> Any:
    try:
        return await replica.ask(path, body, HEALTH_SECONDS)
    except Lost as error:
        if "not JSON" in str(error):
            raise RequestRejected(f"{replica.url} is no vLLM server: {error}; {_STARTED}") from None
        raise
    except RequestRejected as error:
        raise RequestRejected(f"{replica.url} is no vLLM server that palaestra started: {error}; {_STARTED}") from None
