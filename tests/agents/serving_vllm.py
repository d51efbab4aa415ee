"""A stand-in for vLLM's server that samples from a real model, for what vLLM itself does on GPUs alone: sleep.

Its routes do what those of vLLM 0.33 do by their sources (`entrypoints/serve/dev/sleep`, `entrypoints/rl/online` and
`v1/engine/core.py`): a pause keeps, ends or waits for turns; while one lasts, new turns are refused with 503, or taken
and not begun if it keeps turns (0.32 takes them in every pause); what is asleep can be neither read nor written; a
server that is awake again goes on by itself. New weights change neither their name nor what older ones have computed:
that takes requests of their own, as there.

`python -m` starts it in vLLM's place where `stand_in` has made a package of that name.
"""

import argparse
import asyncio
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import torch
from fake_server import error
from fake_vllm import TOKENIZER, FakeVllm, hang_up, said
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from palaestra import Completion, Request, Start
from palaestra.agents.engines.torch_engine import TorchEngine

TAGS = frozenset({"weights", "kv_cache"})
"""What sleeps."""


class ServingVllm(FakeVllm):
    """The built-in engine behind vLLM's routes."""

    def __init__(
        self, model: Any, longest: int, port: int = 0, *, sleeps: bool = True, tokenizer: Any = TOKENIZER
    ) -> None:
        super().__init__(model.config, port)
        self.shape |= {"max_model_len": longest, "dtype": str(model.dtype).removeprefix("torch.")}
        self.tokenizer = tokenizer
        self.model, self.engine, self.sleeps = model, TorchEngine(model, (), slots=5), sleeps
        self.tags = ["default"]
        """Names of the weights so far, by the version of the engine."""
        self.folders: list[str] = []
        """Where weights were read from, one after the other."""
        self.asleep: set[str] = set()
        self.on_host: dict[str, torch.Tensor] = {}
        self.own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.paused, self.refuses = "", False
        self.rows = count()
        self.queued: dict[str, Request] = {}
        self.tickets: dict[int, str] = {}
        self.answers: dict[str, asyncio.Future[Any]] = {}
        self.driver: asyncio.Task[None] | None = None

    def restart(self) -> None:
        """As it is when it has died and somebody has started it again."""
        super().restart()
        self._fill(self.own)
        self.asleep.clear()
        self.engine.reclaim()
        self.paused, self.refuses = "", False
        for ticket in self.tickets:
            self.engine.cancel(ticket)
        self.tickets.clear()
        self.queued.clear()
        for name in list(self.answers):
            self._answer(name, hang_up(None, None))

    @property
    def held(self) -> int:
        """Bytes of what is awake."""
        weights = sum(weight.nbytes for weight in self.model.parameters())
        return self.engine.held_bytes + weights * ("weights" not in self.asleep)

    async def _drive(self) -> None:
        """Decode while there is something to decode; give way to requests after each step."""
        while True:
            if self.engine.busy and self.paused != "keep":
                for completion in self.engine.poll():
                    self._answer(self.tickets.pop(completion.ticket), self._said(completion))
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(0.001)

    def _admit(self) -> None:
        if not self.paused:
            for name, request in self.queued.items():
                self.tickets[self.engine.submit(request)] = name
            self.queued.clear()

    def _said(self, completion: Completion) -> Any:
        answer = said(list(completion.ids), "", "length" if completion.cut else "stop")
        (choice,) = answer["choices"]
        for entry, logprob in zip(choice["logprobs"]["content"], completion.logprobs, strict=True):
            entry["logprob"] = float(logprob)
        versions = enumerate(completion.versions)
        choice["weight_versions"] = [{"version": self.tags[v], "start": n, "end": n + 1} for n, v in versions]
        return answer

    def _answer(self, name: str, answer: Any) -> None:
        future = self.answers.pop(name)
        if not future.done():
            future.set_result(answer)

    def _abort(self, names: set[str]) -> None:
        """End turns with what they have said so far, log-probs left out."""
        for ticket in [ticket for ticket, name in self.tickets.items() if name in names]:
            self.engine.cancel(ticket)
            del self.tickets[ticket]
        for name in names & self.answers.keys():
            self.queued.pop(name, None)
            self._answer(name, said([], "", "abort"))

    async def _generate(self, body: Any) -> Any:
        self.driver = self.driver or asyncio.ensure_future(self._drive())
        if self.refuses:
            return error(503, "Generation is paused. Please retry after it resumes.")
        self.asked.append(body)
        number, params = next(self.rows), body["sampling_params"]
        name = f"generate-tokens-{body.get('request_id', number)}"
        options = {key: params[key] for key in ("temperature", "top_p", "top_k", "min_p") if key in params}
        start = Start(params.get("seed", number) % 2**31, 0)
        # The engine has one set of stops, which every request of a run names.
        self.engine._stops = frozenset(params.get("stop_token_ids", ()))
        self.queued[name] = Request(number, start, 0, (), (), body["token_ids"], params["max_tokens"], **options)
        self.answers[name] = future = asyncio.get_running_loop().create_future()
        self._admit()
        return await future

    async def _abort_requests(self, body: Any) -> Any:
        self._abort(set(body["request_ids"]))
        return {"status": "aborted"}

    async def _pause(self, body: Any) -> Any:
        self.refuses = body.get("mode", "abort") != "keep"
        return await self._halt(body)

    async def _halt(self, body: Any) -> Any:
        self.paused = body.get("mode", "abort")
        if self.paused == "abort":
            self._abort(set(self.answers))
        while self.paused == "wait" and self.tickets:
            await asyncio.sleep(0.001)
        return {"status": "paused"}

    async def _resume(self, body: Any) -> Any:
        self.paused, self.refuses = "", False
        self._admit()
        return {"status": "resumed"}

    async def _sleep(self, body: Any) -> Any:
        if not self.sleeps:
            return error(500, "sleep mode is not enabled")
        await self._halt(body)
        if "weights" not in self.asleep:
            self.on_host = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
            self._fill({name: torch.full_like(weight, torch.nan) for name, weight in self.on_host.items()})
            self.asleep |= TAGS
            self.engine.release()
        return {"status": "sleeping", "level": body.get("level", 1)}

    async def _wake_up(self, body: Any) -> Any:
        tags = {body["tags"]} if "tags" in body else set(self.asleep)
        if tags <= self.asleep:
            if "weights" in tags:
                self._fill(self.on_host)
            self.asleep -= tags
            if not self.asleep:
                self.engine.reclaim()
                await self._resume(body)
        return {"status": "sleeping" if self.asleep else "awake"}

    async def _palaestra_load(self, body: Any) -> Any:
        if "weights" in self.asleep:
            return {"results": [{"error": "the weights are asleep"}]}
        self.folders.append(body["kwargs"]["folder"])
        files = sorted(Path(self.folders[-1]).glob("*.safetensors"))
        self._fill({name: tensor for file in files for name, tensor in load_file(file).items()})
        return await super()._palaestra_load(body)

    def _fill(self, tensors: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(tensors[name])

    async def _update_weight_version(self, body: Any) -> Any:
        self.engine.version = len(self.tags)
        self.tags.append(body["new_version"])
        return await super()._update_weight_version(body)

    async def _reset_prefix_cache(self, body: Any) -> Any:
        if self.tickets and "reset_running_requests" not in body:
            return {"success": False}
        # Of its own weights: what is cached goes, and turns are computed anew.
        self.engine.update_weights(self.model.named_parameters(), self.engine.version)
        return {"success": True}

    async def _tokenize(self, body: Any) -> Any:
        return {"tokens": self.tokenizer.encode(body["prompt"], add_special_tokens=False)}

    async def _held(self, body: Any) -> Any:
        """No route of vLLM's, where a GPU can be asked."""
        return {"held": self.held}


def stand_in(folder: Path) -> Path:
    """Make a package `vllm` in a folder, whose server is this one; what starts vLLM finds it by PYTHONPATH."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    program = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom serving_vllm import main\n\nmain()\n"
    )
    (package / "api_server.py").write_text(program)
    return folder


def main() -> None:
    """Serve until the process is ended. An option that vLLM's command line does not have is an error."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model", "host", "dtype", "logprobs-mode", "generation-config", "worker-extension-cls"):
        parser.add_argument(f"--{name}", required=True)
    for name, kind in (("port", int), ("max-model-len", int), ("gpu-memory-utilization", float)):
        parser.add_argument(f"--{name}", type=kind)
    for name in ("enable-scale-out", "enable-sleep-mode", "enforce-eager"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--distributed-executor-backend")
    options = parser.parse_args(sys.argv[1:])
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).eval()
    tokenizer = (
        AutoTokenizer.from_pretrained(options.model) if Path(options.model, "tokenizer.json").is_file() else None
    )
    sleeps = options.enable_sleep_mode
    serving = ServingVllm(model, options.max_model_len, options.port, sleeps=sleeps, tokenizer=tokenizer)
    with serving.server:
        threading.Event().wait()
