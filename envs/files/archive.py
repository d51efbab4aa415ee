"""Reads members of a zip in memory: nothing is unpacked to disk, so a member's name cannot do harm.

The declared size of a member is a reliable limit, because no more bytes of it are read. Left out: other archive
formats.
"""

import zipfile
from collections.abc import Iterator, Sequence
from io import BytesIO

from palaestra.envs.files.limits import ReadLimits, UnreadableFile

_DEPTH = 4
"""Maximum depth of nested archives."""
_OFFICE = (("word/document.xml", "docx"), ("ppt/presentation.xml", "pptx"), ("xl/workbook.xml", "xlsx"))


def opened(data: bytes) -> zipfile.ZipFile:
    """Open a zip. Raise `UnreadableFile` if it is broken."""
    try:
        return zipfile.ZipFile(BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise UnreadableFile(f"is a broken zip ({error})") from None


def office_kind(archive: zipfile.ZipFile, limits: ReadLimits) -> str:
    """Return docx, pptx or xlsx; "" for any other zip.

    Raise `UnreadableFile` if an office file is too large when unpacked.
    """
    kind = next((kind for name, kind in _OFFICE if name in archive.NameToInfo), "")
    unpacked = sum(entry.file_size for entry in archive.infolist())
    if kind and unpacked > limits.unpacked_bytes:
        raise UnreadableFile(f"unpacks to {unpacked} bytes, which is more than unpacked_bytes={limits.unpacked_bytes}")
    return kind


def listing(archive: zipfile.ZipFile, name: str, limits: ReadLimits) -> Iterator[str]:
    """Yield a line for each member, with the path under which it can be read."""
    yield f"{name} is a zip; its members are read by these paths:"
    for member in limits.take((entry for entry in archive.infolist() if not entry.is_dir()), "members"):
        yield member if isinstance(member, str) else f"{name}/{member.filename} ({member.file_size} bytes)"


def member(data: bytes, path: Sequence[str], limits: ReadLimits, room: int, depth: int = 1) -> bytes:
    """Return the member at a path in an archive, or in an archive inside it.

    `room` is the number of bytes that may still be unpacked, `depth` the number of archives opened so far.
    """
    archive = opened(data)
    for end in range(len(path), 0, -1):
        name = "/".join(path[:end])
        if (entry := archive.NameToInfo.get(name)) is None or entry.is_dir():
            continue
        room -= entry.file_size
        if room < 0 or entry.file_size > limits.unpacked_bytes:
            raise UnreadableFile(
                f"{name} unpacks to {entry.file_size} bytes: more than unpacked_bytes={limits.unpacked_bytes}"
            )
        try:
            inside = archive.read(entry)
        except Exception as error:  # It is encrypted, has an unknown compression or a wrong checksum.
            raise UnreadableFile(f"{name} cannot be unpacked ({type(error).__name__}: {error})") from None
        if end == len(path):
            return inside
        if depth == _DEPTH:
            raise UnreadableFile(f"{name} lies in {_DEPTH} archives, and no deeper one is opened")
        return member(inside, path[end:], limits, room, depth + 1)
    raise UnreadableFile(f"has no member {'/'.join(path)!r}; file_reader on the zip itself names its members")
