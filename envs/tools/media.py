"""The tools `image2text` and `audio2text`: served models read images and recordings for an agent that reads text.

An image is sent to `/chat/completions` as a part of the question. A recording is sent to `/audio/transcriptions`, which
most speech servers have, or (`api = "chat"`) as a part of a question, to chat models with audio. A file's bytes decide
its kind. Left out: models in this process (serve them with vLLM, llama.cpp or speaches), and video.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.envs.core import window
from palaestra.envs.core.tool import tool
from palaestra.envs.files.kinds import AUDIO, IMAGES, is_whole, kind_of
from palaestra.envs.files.place import EpisodeFiles
from palaestra.envs.tools.budgets import BudgetUsage
from palaestra.envs.tools.task_files import TaskFiles
from palaestra.envs.tools.tool_model import model_at
from palaestra.episode import Task
from palaestra.errors import ToolError, UsageError

DEADLINE = 600.0
"""Outer timeout of a call, in seconds; `call_seconds` is that of the model."""
_LONGEST = 4000
"""Maximum characters of a question; the rest is cut off."""
_DESCRIBE = "Describe this image, with every text in it."
_TRANSCRIBE = "Write down what is said in this recording, word by word, and nothing else."


class MediaToolkit(TaskFiles):
    """Base of toolkits whose tools send a file to a served model."""

    call_seconds = 120.0
    model: EndpointConfig | None = None
    """The model; a toolkit without one is refused."""
    max_bytes: int = 20 * 2**20
    """Maximum bytes of a file that is sent."""
    max_tokens: int = 2048
    """Maximum tokens of an answer."""
    window_tokens: int = 1024
    """Tokens of an answer that are shown at once."""

    def __init__(self, model: EndpointConfig | None = None) -> None:
        """`model` replaces the model of the class."""
        if model is not None:
            self.model = model
        if not isinstance(self.model, EndpointConfig):
            raise UsageError(
                f"{type(self).__name__} has no model; expected one such as "
                'EndpointConfig("http://localhost:8000/v1", "Qwen/Qwen3-VL-4B-Instruct")'
            )
        self._model = model_at(self.model)

    async def start(self, task: Task, rng: np.random.Generator) -> None:  # type: ignore[override]
        """Set the files of the episode, and check the model's server."""
        await asyncio.to_thread(super().start, task, rng)
        await self._model.check()

    async def read(self, path: str, kinds: Sequence[str], what: str) -> tuple[bytes, str]:
        """Return the bytes of a file and its kind, which must be one of `kinds`; errors call these kinds `what`."""
        file = await self.read_file(path, self.max_bytes)
        kind = kind_of(file.data)
        if file.inner:
            raise ToolError(f"{file.name} is a file, so there is nothing below it")
        if kind not in kinds:
            raise ToolError(f"{path[:200]} is no {what} but {kind or 'something else'}; expected {', '.join(kinds)}")
        if not is_whole(file.data, kind):
            raise ToolError(f"{path[:200]} is a broken {kind}: it is cut off")
        return file.data, kind

    async def ask(self, question: Callable[[Endpoint], Coroutine[Any, Any, str]]) -> str:
        """Return the model's answer to a question, within the budgets."""

        async def work(seconds: float) -> str:
            try:
                return await self._model.ask(question, seconds)
            except TimeoutError:
                raise self.late(seconds, "the model", self._model.trouble) from None

        text = await self.within_budget(work)
        if not text.strip():
            raise ToolError("the model found nothing to say about it")
        return text

    async def chat(self, words: str, part: dict[str, Any]) -> str:
        """Return the model's answer to a text together with a file."""
        messages = [{"role": "user", "content": [{"type": "text", "text": words}, part]}]

        async def question(endpoint: Endpoint) -> str:
            return (await endpoint.complete(messages, max_tokens=self.max_tokens, temperature=0.0)).content

        return await self.ask(question)


class ImageToText(MediaToolkit):
    """Answers questions about images; a subclass defines which, by `folder(task)` or `files(task)`."""

    @tool(timeout=DEADLINE)
    async def image2text(self, path: str, question: str = _DESCRIBE) -> str:
        """Ask about an image: what it shows, what is written in it.

        Args:
            path: Path of the image: png, jpeg, gif or webp.
            question: What you want to know.
        """
        data, kind = await self.read(path, IMAGES, "image")
        url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
        text = await self.chat(question[:_LONGEST], {"type": "image_url", "image_url": {"url": url}})
        return window.view(window.wrapped(text), 1, self.window_tokens)


class AudioToText(MediaToolkit):
    """Transcribes recordings; a subclass defines which, by `folder(task)` or `files(task)`."""

    call_seconds = 300.0
    max_bytes = 25 * 2**20
    api: Literal["transcriptions", "chat"] = "transcriptions"
    """Route of the server: `/audio/transcriptions`, or `/chat/completions`."""

    def __init__(self, model: EndpointConfig | None = None) -> None:
        """`model` replaces the model of the class."""
        super().__init__(model)
        if self.api not in ("transcriptions", "chat"):
            raise UsageError(f"{type(self).__name__}.api is {self.api!r}; expected 'transcriptions' or 'chat'")

    _transcripts: dict[str, str]
    """Transcripts of this episode, by the digest of the recording."""

    def restore(self, state: tuple[EpisodeFiles, BudgetUsage]) -> None:
        """Continue from a snapshot, without cached transcripts."""
        super().restore(state)
        self._transcripts = {}

    @tool(timeout=DEADLINE)
    async def audio2text(self, path: str, first_line: Annotated[int, Field(ge=1)] = 1) -> str:
        """Write down what is said in a recording.

        Args:
            path: Path of the recording: wav, mp3, flac, ogg, m4a or webm.
            first_line: Line to begin at; long transcripts are shown in parts.
        """
        data, kind = await self.read(path, AUDIO, "recording")
        return window.view(window.wrapped(await self._transcript(data, kind)), first_line, self.window_tokens)

    async def _transcript(self, data: bytes, kind: str) -> str:
        """Return the transcript. It is cached by the recording's bytes, because agents read it in parts."""
        digest = hashlib.sha256(data).hexdigest()
        if digest in self._transcripts:
            return self._transcripts[digest]
        if self.api == "chat":
            sound = {"data": base64.b64encode(data).decode(), "format": kind}
            text = await self.chat(_TRANSCRIBE, {"type": "input_audio", "input_audio": sound})
        else:
            text = await self.ask(lambda endpoint: endpoint.transcribe(data, kind))
        self._transcripts[digest] = text
        return text
