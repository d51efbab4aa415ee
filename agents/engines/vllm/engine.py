"""The engine that samples turns on vLLM servers, with the weights that a trainer sends them.

Requests and answers are token ids. Each sampled token comes with the log-prob in the distribution that it was sampled
from, and with the version of the weights. The seed of a turn depends only on the run, the episode and the turn, so
curves repeat, except that the last bits of a server's sums depend on which rows it computes together. Weights are sent
as files, or from GPU to GPU (`transfer`). Before the first turn the servers get the present weights of the model.

Left out: starting servers (`palaestra serve vllm`).
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

import torch

from palaestra.agents.adapters import effective_weights
from palaestra.agents.engines.background_engine import BackgroundEngine
from palaestra.agents.engines.noise import row_key
from palaestra.agents.engines.vllm.checks import described, tokenizer_fault
from palaestra.agents.engines.vllm.fleet import Fleet
from palaestra.agents.engines.vllm.own_servers import OwnServers
from palaestra.agents.engines.vllm.replica import HEALTH_SECONDS, LOAD_SECONDS, Lost, Replica, RequestRejected
from palaestra.agents.engines.vllm.routing import PendingRequest
from palaestra.agents.engines.vllm.weights import WeightFiles, from_files
from palaestra.agents.engines.weight_files import expected
from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.config import Secret
from palaestra.errors import Broken, UsageError
from palaestra.protocols import PauseMode, Request

T = TypeVar("T")
_EXTRA_SECONDS = 10.0
"""Seconds beyond the timeouts of a piece of work, after which its event loop is taken for dead."""


class VllmEngine(BackgroundEngine):
    """One engine for several servers. Close it after use: it owns a thread, connections and a folder of weights."""

    shares_weights = False

    def __init__(
        self,
        model: Any,
        stops: Iterable[int],
        *,
        urls: Sequence[str],
        slots: int = 0,
        seed: int = 0,
        weights_folder: str = "",
        transfer: str = "files",
        answer_seconds: float = 600.0,
        restart_seconds: float = 300.0,
        api_key_env: str = "",
        own_servers: OwnServers | None = None,
        shares_memory: bool = False,
    ) -> None:
        """`model` is the model in training, whose weights are sent before the first turn and which is not kept after
        it. `slots` is ignored: the servers decide how many turns run at once.

        `weights_folder` is a folder that servers on other machines can read too. `answer_seconds` is the timeout of one
        turn, not counting pauses; `restart_seconds` is the longest time to wait until a server is ready again.
        `own_servers` end with their last engine; they sleep while the trainer learns if they use its memory
        (`shares_memory`).
        """
        if not urls:
            raise UsageError(
                "an engine of kind vllm needs the addresses of its servers: --engine.urls http://HOST:8000"
            )
        super().__init__("palaestra-vllm")
        self.model, self.seed, self.version = model, seed, 0
        self._config = model.config
        self._weight_names = frozenset(name for name, _ in effective_weights(model))
        self.own_servers, self.shares_memory = own_servers, shares_memory
        self._stops = frozenset(stops)
        self._words = model.config.get_text_config().vocab_size
        self._fleet = Fleet(urls, Secret(api_key_env), answer_seconds, restart_seconds)
        self._longest_wait = answer_seconds + restart_seconds + LOAD_SECONDS
        self._folder, self._transfer_kind = weights_folder, transfer
        self._files: WeightFiles | None = None
        self._transfer: Any = None
        self._updates, self._name = count(), uuid4().hex[:8]
        self._longest = 0
        self._dtype = torch.float32
        self._has_weights, self._paused = False, False
        # A trainer drops its engine when its run is over, and does not close it.
        self._hang_up = weakref.finalize(self, _hang_up, self._background, self._fleet)

    @property
    def sampled(self) -> int:
        """Return the number of sampled tokens of all turns, as reported by the servers."""
        return self._fleet.sampled

    def submit(self, request: Request) -> int:
        """Send a turn; return its ticket."""
        if not self._has_weights:
            self.update_weights(effective_weights(self.model), self.version)
        room = min(request.max_tokens, self._longest - len(request.ids))
        if not request.ids or room < 1:
            raise UsageError(
                f"a request needs ids, max_tokens >= 1 and room in the servers' rows of {self._longest} tokens; got "
                f"{len(request.ids)} ids and max_tokens {request.max_tokens}"
            )
        start = request.start
        sampling = {
            "max_tokens": room,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": request.min_p,
            "seed": row_key(self.seed, start.task, start.seed, request.turn),
            "logprobs": 0,
            # These are all stops: any other that ended a turn on the server would not end it here.
            "stop_token_ids": sorted(self._stops),
            "ignore_eos": True,
            "detokenize": False,
        }
        ticket = next(self._tickets)
        turn = PendingRequest(ticket, request.row, {"token_ids": list(request.ids), "sampling_params": sampling}, room)
        return self._start(ticket, partial(self._fleet.answer, turn, self._stops, self._words), turn)

    def cancel(self, ticket: int) -> None:
        """Cancel a turn, and make its server stop sampling it."""
        if ticket in self._live:
            future, turn = self._live.pop(ticket)
            turn.cancelled = True
            self._background.submit(self._fleet.cancel(turn, future))

    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Send these weights to every server. Running turns continue with them after their rows are computed again."""
        if not self._longest:
            self._require_servers()
        number = next(self._updates)
        give, keeps = self._give_function(expected(tensors, self._weight_names), number)
        if self.own_servers is not None:
            self.own_servers.let_start()
        self._wait(self._fleet.update(f"{self._name}-{number}", version, give, keeps))
        self.version, self._has_weights = version, True
        self.model = None

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop sampling until `resume`."""
        self._paused = True
        self._wait(self._fleet.pause(mode))

    def resume(self) -> None:
        """End a pause: sampling continues."""
        self._paused = False
        self._wait(self._fleet.resume())

    def release(self) -> None:
        """Make the servers free memory, if they support it. Sampling stops until `reclaim`.

        A server of this engine that dies now starts again when `update_weights` or `reclaim` is called.
        """
        if self.own_servers is not None:
            self.own_servers.hold()
        self._wait(self._fleet.release())

    def reclaim(self) -> None:
        """Make the servers allocate the memory that `release` freed. Sampling continues if the engine is not paused."""
        if self.own_servers is not None:
            self.own_servers.let_start()
        self._wait(self._fleet.reclaim(self._paused))

    def check(self, tokenizer: Any, longest_row: int) -> None:
        """Raise UsageError if a server does not answer, or has another model, another tokenizer or too short rows."""
        faults = self._faults(self._shape_fault) or self._faults(lambda replica: tokenizer_fault(replica, tokenizer))
        if faults:
            raise UsageError("; ".join(faults))
        if self._longest < longest_row:
            raise UsageError(
                f"the servers' rows have {self._longest} tokens, and those of the run up to {longest_row}; start them "
                f"with --max-model-len {longest_row}, or lower max_episode_tokens"
            )

    def close(self) -> None:
        """Close the connections, end the thread and remove the weights."""
        self._live.clear()
        self._hang_up()
        if self._files is not None:
            self._files.close()
        if self._transfer is not None:
            self._transfer.close()
        self.own_servers = None

    def _give_function(
        self, pairs: Iterable[tuple[str, Any]], number: int
    ) -> tuple[Callable[[Replica], Awaitable[None]], bool]:
        """Return a function that sends these weights to a server, and whether it can be called again later."""
        if self._transfer_kind == "files":
            self._files = self._files or WeightFiles(self._folder)
            return from_files(self._files.write(pairs, number, self._dtype)), True
        from palaestra.agents.engines.vllm.transfer import Transfer

        self._transfer = self._transfer or Transfer(self._transfer_kind)
        return self._transfer.giving(pairs), False

    def _require_servers(self) -> None:
        """Read the servers' descriptions; raise UsageError if they cannot be used."""
        if faults := self._faults(self._shape_fault):
            raise UsageError("; ".join(faults))

    async def _shape_fault(self, replica: Replica) -> str:
        description = await described(replica, self._config)
        self._longest = min(self._longest or description["max_model_len"], description["max_model_len"])
        self._dtype = getattr(torch, str(description.get("dtype")), torch.float32)
        return ""

    def _faults(self, look: Callable[[Replica], Awaitable[str]]) -> list[str]:
        """Call `look` for every server, with a timeout of seconds, and return the faults that it finds."""

        async def check_replica(replica: Replica) -> str:
            try:
                async with asyncio.timeout(2 * HEALTH_SECONDS):
                    return await look(replica)
            except (Lost, RequestRejected) as error:
                return str(error)
            except TimeoutError:
                return f"{replica.url} does not answer in time"

        async def check_all() -> list[str]:
            return [fault for fault in await asyncio.gather(*map(check_replica, self._fleet.replicas)) if fault]

        return self._wait(check_all())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's event loop, wait for it, and return its result."""
        future = self._background.submit(work)
        try:
            return future.result(self._longest_wait + _EXTRA_SECONDS)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise Broken(f"the engine's servers did not do within {self._longest_wait:g} s what was asked") from None


def _hang_up(background: BackgroundLoop, fleet: Fleet) -> None:
    if fleet.busy:
        with suppress(Exception):  # The engine is closing: errors do not matter.
            background.submit(fleet.stop()).result(_EXTRA_SECONDS)
    background.close(fleet.aclose())
