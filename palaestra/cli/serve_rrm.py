"""`palaestra serve rrm MODEL`: serve a judge to other processes and machines, as an OpenAI-compatible server.

It offers a part of OpenAI's POST /v1/chat/completions and GET /v1/models: messages in, one whole message out. The
access token and the maximum size of a body work as in `palaestra serve sandbox`. With `--engine vllm` a vLLM server
answers. Left out: streaming, tools, several answers to a question; and the prompt of a judge (`palaestra.judging`).
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from palaestra.cli.shared_options import ListenOptions
from palaestra.errors import Broken, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from palaestra.agents.answering import Answering

TOKEN_ENV = "PALAESTRA_RRM_TOKEN"
BODY_BYTES = 8 * 2**20
MOST_TOKENS = 32_768


@dataclass(frozen=True, kw_only=True)
class ServeRRMOptions(ListenOptions):
    """Serve a judge for `--recipe.judge.url`: the folder of a trained one, or any model that can follow its
    instructions.
    """

    model: Annotated[str, tyro.conf.Positional]
    """Folder or hub name of the model."""
    served_as: str = "rrm"
    """Name of the model for clients."""
    engine: Literal["torch", "vllm"] = "torch"
    """Engine: the built-in one in this process, or vLLM; `palaestra serve vllm` has more settings for it."""
    slots: int = 16
    """Maximum number of questions that the built-in engine answers at once; others wait."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU if there is one."""
    port: int = 8100
    """Port; 0 chooses a free one."""
    token_env: str = TOKEN_ENV
    """Environment variable that holds the token, which a client sets by `--recipe.judge.key-env`. Without a token only
    requests from this machine are answered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots < 1:
            raise UsageError(f"slots is {self.slots}; expected at least 1")


def run(arguments: Sequence[str]) -> int:
    """Answer requests until interrupted."""
    options = tyro.cli(ServeRRMOptions, args=list(arguments), prog="palaestra serve rrm")
    if options.engine == "vllm":
        from palaestra.cli.serve_vllm import run as serve_vllm

        where = ["--host", options.host, "--port", str(options.port)]
        return serve_vllm([options.model, *where, "--vllm", f"--served-model-name {options.served_as}"])
    from palaestra.agents.answering import Answering
    from palaestra.agents.local_model import load
    from palaestra.envs.sandboxes.remote.listening import listen
    from palaestra.envs.sandboxes.remote.server import find_token

    token = find_token(options.token_env, options.host, TOKEN_ENV)
    local = load(options.model, slots=options.slots, device=options.device)
    app = application(Answering(local.agent), options.served_as, token)
    try:
        listen(app, options.host, options.port, connections=1024, ready=lambda url: print(
            f"ready: --recipe.judge.url {url}/v1 --recipe.judge.served-as {options.served_as}\nCtrl-C ends it",
            flush=True,
        ))  # fmt: skip
    except KeyboardInterrupt:
        print("ended")
    return 0


def application(answering: "Answering", name: str, token: str = "") -> "Starlette":
    """Return the ASGI application. It closes `answering` at its end. Without a token it accepts only requests to host
    names of this machine.
    """
    from contextlib import asynccontextmanager

    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from palaestra.envs.sandboxes.remote.server import refused

    async def models(request: "Request") -> "Response":
        if refusal := refused(request, token.encode()):
            return _error(*refusal)
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"}]})

    async def chat(request: "Request") -> "Response":
        if refusal := refused(request, token.encode()):
            return _error(*refusal)
        question = await _read_request(request, name)
        if not isinstance(question, dict):
            return question
        work = asyncio.ensure_future(_answered(answering, name, question))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=1.0)
                if not work.done() and await request.is_disconnected():
                    return _error(499, "nobody waits for the answer")
            return work.result()
        finally:
            work.cancel()

    @asynccontextmanager
    async def lifespan(_: "Starlette") -> Any:
        yield
        await answering.aclose()

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


async def _read_request(request: "Request", name: str) -> "dict[str, Any] | Response":
    """Read a request. Return the arguments for `complete`, or an error response."""
    from palaestra.envs.sandboxes.remote.server import READ_SECONDS, read_body

    try:
        async with asyncio.timeout(READ_SECONDS):
            body = await read_body(request, BODY_BYTES)
    except TimeoutError:
        return _error(408, f"the request did not come within {READ_SECONDS:g} s")
    if body is None:
        return _error(413, f"the request has more than {BODY_BYTES:,} bytes")
    try:
        return _read(body, name)
    except LookupError:
        return _error(404, f"this server has one model, {name!r}")
    except ValueError as error:
        return _error(400, str(error))


async def _answered(answering: "Answering", name: str, question: dict[str, Any]) -> "Response":
    from starlette.responses import JSONResponse

    try:
        answer = await answering.complete(**question)
    except UsageError as error:
        return _error(400, f"beyond the context length: {error}")
    except Broken as error:
        return _error(500, str(error))
    usage = {"prompt_tokens": answer.usage.prompt_tokens, "completion_tokens": answer.usage.completion_tokens}
    choice = {"index": 0, "message": {"role": "assistant", "content": answer.content}}
    return JSONResponse(
        {
            "object": "chat.completion",
            "model": name,
            "choices": [choice | {"finish_reason": "length" if answer.cut else "stop"}],
            "usage": usage | {"total_tokens": sum(usage.values())},
        }
    )


def _read(body: bytes, name: str) -> dict[str, Any]:
    """Return the arguments for `complete` from a body. Raise a ValueError that says what is wrong with it, or a
    LookupError if it names another model.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list) or not messages or not all(
        isinstance(message, dict) and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), str) for message in messages
    ):  # fmt: skip
        raise ValueError("expected messages, each with a role (system, user, assistant) and its content as text")
    if document.get("model", name) != name:
        raise LookupError
    if document.get("stream") or document.get("tools") or document.get("n", 1) != 1:
        raise ValueError("stream, tools and n are not supported")
    max_tokens = document.get("max_completion_tokens", document.get("max_tokens", 1024))
    temperature, seed = document.get("temperature", 0.0), document.get("seed")
    if not isinstance(max_tokens, int) or not 1 <= max_tokens <= MOST_TOKENS:
        raise ValueError(f"max_tokens is {max_tokens!r}; expected 1 to {MOST_TOKENS}")
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 2:
        raise ValueError(f"temperature is {temperature!r}; expected 0 to 2")
    if seed is not None and (not isinstance(seed, int) or seed < 0):
        raise ValueError(f"seed is {seed!r}; expected a whole number")
    dialogue = [{"role": message["role"], "content": message["content"]} for message in messages]
    return {"messages": dialogue, "max_tokens": max_tokens, "temperature": float(temperature), "seed": seed}


def _error(status: int, text: str) -> "Response":
    from starlette.responses import JSONResponse

    return JSONResponse({"error": {"message": text[:2000]}}, status)
