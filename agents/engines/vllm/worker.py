"""The extension of vLLM's worker: it describes the served model, and loads new weights from files.

This module runs inside the server, in an environment without palaestra, so it imports only torch and the standard
library. `palaestra serve vllm` copies the file, and vLLM adds the methods of `Palaestra` to its worker
(`--worker-extension-cls`).

vLLM on CPU keeps a prepacked copy of its output head. If the head is tied to the embeddings, a reload replaces the
embeddings but not that copy, and the server silently continues to sample with the old head. So the head is packed again
and tested after every reload: for a hidden state that is 1 at one index and 0 elsewhere, it must return a column of its
weights. Left out: transfers between GPUs, for which vLLM has its own code.
"""

import os
from pathlib import Path
from typing import Any

import torch


class Palaestra:
    """Methods that vLLM adds to its worker, and that requests to `/collective_rpc` call."""

    vllm_config: Any
    model_runner: Any
    reload_weights: Any

    def palaestra_describe(self) -> dict[str, Any]:
        """Return the shape of the served model, and its sampling settings."""
        model = self.vllm_config.model_config
        text = model.hf_text_config
        return {
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "num_hidden_layers": text.num_hidden_layers,
            "tie_word_embeddings": bool(text.tie_word_embeddings),
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_model_len": model.max_model_len,
            "logprobs_mode": str(model.logprobs_mode),
            "device": str(self.vllm_config.device_config.device_type),
        }

    def palaestra_load(self, folder: str, only: str = "") -> dict[str, Any]:
        """Load all weights from the safetensors files in a folder. Return how far the head's outputs differ from them.

        With `only="first"`, for a restarted server, load nothing if a trainer has already sent newer weights.
        """
        if only == "first" and getattr(self, "_palaestra_given", False):
            return {"head_gap": 0.0}
        config = self.vllm_config.model_config
        name = config.model
        try:
            # An exception in a worker ends the server, so errors are returned.
            if not list(Path(folder).glob("*.safetensors")):
                return {"error": f"there are no safetensors in {folder}; do this machine and the trainer share it?"}
            self._palaestra_given = True
            self.reload_weights(weights_path=folder)
            gap = self._palaestra_head()
            if newest := os.environ.get("PALAESTRA_NEWEST"):
                Path(f"{newest}.half").write_text(folder, encoding="utf-8")
                Path(f"{newest}.half").replace(newest)
            return {"head_gap": gap}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            config.model = name  # The reload renames the served model after the folder.

    @torch.inference_mode()
    def _palaestra_head(self) -> float:
        """Pack the output head again if this platform packs it. Return the largest difference between its outputs and
        its weights.
        """
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        method = getattr(head, "quant_method", None)
        if head is None or method is None or not isinstance(getattr(head, "weight", None), torch.Tensor):
            return 0.0  # The head is on another rank of a pipeline.
        weight = head.weight
        if weight.device.type == "cpu":
            method.process_weights_after_loading(head)
        place = weight.shape[1] // 2
        unit = torch.zeros(1, weight.shape[1], dtype=weight.dtype, device=weight.device)
        unit[0, place] = 1
        return float((method.apply(head, unit)[0].float() - weight[:, place].float()).abs().max())
