"""The tools `image2text` and `audio2text`: served models read images and recordings for an agent that reads text.

An image goes to `/chat/completions` as a part of the question, a recording to `/audio/transcriptions`, which most
speech servers have; `api = "chat"` sends it as a part of a question, for chat models with audio. A file's bytes decide
its kind. Left out: models in this process (any of them can be served: vLLM, llama.cpp, speaches), and video.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from palaestra.endpoint import ChatCompletion, Endpoint, EndpointConfig
from palaestra.envs.core import window
from palaestra.envs.core.tool import tool
from palaestra.envs.files.kinds import AUDIO, IMAGES, is_whole, kind_of
from palaestra.envs.files.place import EpisodeFiles
from palaestra.envs.tools.asked_model import model_at
from palaestra.envs.tools.budgets import Spent
from palaestra.envs.tools.task_files import TaskFiles
from palaestra.episode import Task
from palaestra.errors import ToolError, UsageError

DEADLINE = 600.0
"""Outer timeout of a call, in seconds; `call_seconds` is that of the model."""
_LONGEST = 4000
"""Most characters of a question; the rest is cut off."""
_DESCRIBE = "Describe this image, with every text in it."
_TRANSCRIBE = "Write down what is said in this recording, word by word, and nothing else."


class MediaToolkit(TaskFiles):
    """Base of tools that have a served model look at a file."""

    call_seconds = 120.0
    model: EndpointConfig | None = None
    """Where the model is."""
    max_bytes: int = 20 * 2**20
    """A larger file is refused."""
    max_tokens: int = 2048
    """Of an answer."""
    window_tokens: int = 1024
    """Tokens of an answer that are shown at once."""

    def __init__(self, model: EndpointConfig | None = None) -> None:
        """`model` in place of the class's."""
        if model is not None:
            self.model = model
        if not isinstance(self.model, EndpointConfig):
            raise UsageError(
                f"{type(self).__name__} has no model; expected one such as "
                'EndpointConfig("http://localhost:8000/v1", "Qwen/Qwen3-VL-4B-Instruct")'
            )
        self._asked = model_at(self.model)

    async def start(self, task: Task, rng: np.random.Generator) -> None:  # type: ignore[override]
        """Set the files of the episode, and check the server."""
        await asyncio.to_thread(super().start, task, rng)
        await self._asked.check()

    async def read(self, path: str, kinds: Sequence[str], what: str) -> tuple[bytes, str]:
        """Return the bytes of a file of one of these kinds, and its kind."""
        try:
            file_read = await asyncio.to_thread(self._place.read, path, self.max_bytes)
        except OSError as error:
            raise ToolError(f"{path[:200]} cannot be read: {error.strerror}") from None
        kind = kind_of(file_read.data)
        if file_read.inner:
            raise ToolError(f"{file_read.name} is a file, so there is nothing below it")
        if kind not in kinds:
            raise ToolError(f"{path[:200]} is no {what} but {kind or 'something else'}; expected {', '.join(kinds)}")
        if not is_whole(file_read.data, kind):
            raise ToolError(f"{path[:200]} is a broken {kind}: it is cut off")
        return file_read.data, kind

    async def ask(self, question: Callable[[Endpoint], Any]) -> str:
        """Return the model's answer, within the budgets."""

        async def asked(seconds: float) -> ChatCompletion | str:
            try:
                answer_or_text: ChatCompletion | str = await self._asked.ask(question, seconds)
                return answer_or_text
            except TimeoutError:
                raise self.late(seconds, "the model", self._asked.trouble) from None

        answer = await self.within_budget(asked)
        text = answer if isinstance(answer, str) else answer.content
        if not text.strip():
            raise ToolError("the model found nothing to say about it")
        return text

    async def chat(self, words: str, part: dict[str, Any]) -> str:
        """Return the model's answer to a question with a file."""
        content = [{"type": "text", "text": words}, part]
        messages = [{"role": "user", "content": content}]
        return await self.ask(lambda one: one.complete(messages, max_tokens=self.max_tokens, temperature=0.0))


class ImageToText(MediaToolkit):
    """Answers questions about images; a subclass says which, by `folder(task)` or `files(task)`."""

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
    """Writes down what recordings say; a subclass says which, by `folder(task)` or `files(task)`."""

    call_seconds = 300.0
    max_bytes = 25 * 2**20
    api: Literal["transcriptions", "chat"] = "transcriptions"
    """How the server is asked."""

    def __init__(self, model: EndpointConfig | None = None) -> None:
        """`model` in place of the class's."""
        super().__init__(model)
        if self.api not in ("transcriptions", "chat"):
            raise UsageError(f"{type(self).__name__}.api is {self.api!r}; expected 'transcriptions' or 'chat'")

    _transcripts: dict[str, str]
    """Transcripts of this episode, by the digest of the recording."""

    def restore(self, state: tuple[EpisodeFiles, Spent]) -> None:
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
        """Return the transcript, cached by the bytes of the recording, because agents read it in parts."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._transcripts:
            if self.api == "chat":
                sound = {"data": base64.b64encode(data).decode(), "format": kind}
                self._transcripts[digest] = await self.chat(_TRANSCRIBE, {"type": "input_audio", "input_audio": sound})
            else:
                self._transcripts[digest] = await self.ask(lambda one: one.transcribe(data, kind))
        return self._transcripts[digest]
