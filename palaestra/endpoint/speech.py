"""The request form of `/audio/transcriptions` for a recording, and the text in its response."""

import secrets
from collections.abc import Mapping
from typing import Any

from palaestra.endpoint.reply import UnreadableReply

SPEECH_PATH = "/audio/transcriptions"


def sound_form(model: str, sound: bytes, kind: str) -> tuple[bytes, str]:
    """Return the body and its content type; servers recognize the format by the file name."""
    boundary = secrets.token_hex(16)
    fields = {"model": model, "response_format": "json", "temperature": "0"}
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    file = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="sound.{kind}"\r\n'
    head = "".join(parts) + file + f"Content-Type: audio/{kind}\r\n\r\n"
    return head.encode() + sound + f"\r\n--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def read_transcript(document: Mapping[str, Any]) -> str:
    """Return the transcript in a response."""
    text = document.get("text")
    if not isinstance(text, str):
        raise UnreadableReply(f"no 'text' but {', '.join(map(str, document))[:100]!r}")
    return text.encode("utf-8", "replace").decode("utf-8")
