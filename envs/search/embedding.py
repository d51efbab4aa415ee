"""Turns texts into vectors, by any local embedding model that transformers reads: mean pooling, then normalised.

Only this module of `envs.search` loads torch, and only when the first text comes. Left out: models with another
pooling, and training models.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.errors import MissingExtra, UsageError

Vectors = NDArray[np.float32]


class Embedder:
    """One embedding model. Calls from several threads run one after another."""

    def __init__(
        self,
        model: str,
        *,
        query_prefix: str = "",
        passage_prefix: str = "",
        tokens: int = 256,
        batch: int = 32,
        device: str = "cpu",
    ) -> None:
        """`model` is a folder or a hub name.

        The prefixes must be those that the model was trained with: "query: " and "passage: " for e5. Of each text, the
        model reads the first `tokens` tokens.
        """
        if tokens < 2 or batch < 1:
            raise UsageError(f"tokens is {tokens} and batch {batch}; expected at least 2 and 1")
        self.model, self.query_prefix, self.passage_prefix = model, query_prefix, passage_prefix
        self.tokens, self.batch, self.device = tokens, batch, device
        self._loaded: tuple[Any, Any] | None = None
        self._guard = threading.Lock()

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Return an array with one row, the vector, for each query."""
        return self._rows([self.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Return an array with one row, the vector, for each passage."""
        return self._rows([self.passage_prefix + text for text in texts])

    def _rows(self, texts: list[str]) -> Vectors:
        import torch

        rows = []
        with self._guard, torch.inference_mode():
            tokenizer, model = self._open()
            for first in range(0, len(texts), self.batch):
                part = [text.encode("utf-8", "replace").decode() for text in texts[first : first + self.batch]]
                read = tokenizer(part, padding=True, truncation=True, max_length=self.tokens, return_tensors="pt")
                read = read.to(self.device)
                hidden = model(**read).last_hidden_state.float()
                mask = read["attention_mask"].unsqueeze(-1)
                mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
                rows.append(torch.nn.functional.normalize(mean, dim=1).cpu().numpy())
        return np.concatenate(rows).astype(np.float32) if rows else np.zeros((0, 0), np.float32)

    def _open(self) -> tuple[Any, Any]:
        if self._loaded is None:
            try:
                from transformers import AutoModel, AutoTokenizer
                from transformers.utils.peft_utils import find_adapter_config_file
            except ImportError as error:
                raise MissingExtra("transformers", "dense", "an embedding model") from error
            try:
                if find_adapter_config_file(self.model) is not None:  # Its settings may name modules to import.
                    raise ValueError("it holds an adapter; merge that into its base")
                safe = {"trust_remote_code": False}
                tokenizer = AutoTokenizer.from_pretrained(self.model, **safe)
                model = AutoModel.from_pretrained(self.model, use_safetensors=True, **safe).to(self.device).eval()
            except (OSError, ValueError, RuntimeError) as error:
                reason = (str(error).splitlines() or [""])[0]
                raise UsageError(f"no embedding model could be read from {self.model!r}: {reason}") from error
            self._loaded = tokenizer, model
        return self._loaded
