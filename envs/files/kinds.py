"""Finds the kind of a file from its first bytes, because the suffix of a name may be wrong.

`plain_text` distinguishes kinds of text, and `archive` kinds of zip.
"""

_BEGINNINGS = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"ID3", "mp3"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\x1aE\xdf\xa3", "webm"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "ole"),
    (b"\x1f\x8b", "gzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"SQLite format 3\0", "sqlite"),
    (b"\x7fELF", "program"),
)
IMAGES = ("png", "jpeg", "gif", "webp")
"""Kinds that vision models accept."""
AUDIO = ("wav", "mp3", "flac", "ogg", "m4a", "webm")
"""Kinds that speech models accept."""
_PDF_WITHIN = 1024
_TEXT = frozenset({*range(32, 127), 9, 10, 12, 13})


def kind_of(data: bytes) -> str:
    """Return the kind of a file that is not text; "" for one that may be text."""
    if b"%PDF-" in data[:_PDF_WITHIN]:
        return "pdf"
    if data[:4] == b"RIFF":
        return {b"WAVE": "wav", b"WEBP": "webp"}.get(data[8:12], "riff")
    if data[4:8] == b"ftyp":
        return "m4a" if data[8:11] == b"M4A" else "mp4"
    for beginning, kind in _BEGINNINGS:
        if data.startswith(beginning) and not (len(beginning) < 4 and set(data[:64]) <= _TEXT):
            return kind
    return "mp3" if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2 else ""


def is_whole(data: bytes, kind: str) -> bool:
    """Return False if the end of an image or sound shows that it is cut off, else True."""
    if kind == "png":
        return b"IEND" in data[-64:]
    if kind == "jpeg":
        return b"\xff\xd9" in data[-(2**16) :]
    if kind == "gif":
        return b"\x3b" in data[-64:]
    if kind in ("webp", "wav"):
        return int.from_bytes(data[4:8], "little") <= len(data) - 8
    return len(data) > 128
