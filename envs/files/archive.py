"""Members of a zip, read in memory: nothing is unpacked to a disk, so a member's name leads nowhere.

What a member unpacks to is what the archive says, for not a byte more is read of it. Left out: every other archive.
"""

import zipfile
from collections.abc import Iterator, Sequence
from io import BytesIO

from palaestra.envs.files.limits import ReadLimits, Unreadable

_DEPTH = 4
"""Archives inside one another."""
_OFFICE = (("word/document.xml", "docx"), ("ppt/presentation.xml", "pptx"), ("xl/workbook.xml", "xlsx"))


def opened(data: bytes) -> zipfile.ZipFile:
    """The archive."""
    try:
        return zipfile.ZipFile(BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise Unreadable(f"is a broken zip ({error})") from None


def office_kind(archive: zipfile.ZipFile, limits: ReadLimits) -> str:
    """docx, pptx or xlsx; "" for any other zip. Such a file is unpacked whole by its reader, so its size is judged."""
    kind = next((kind for name, kind in _OFFICE if name in archive.NameToInfo), "")
    unpacked = sum(one.file_size for one in archive.infolist())
    if kind and unpacked > limits.unpacked_bytes:
        raise Unreadable(f"unpacks to {unpacked} bytes, which is more than unpacked_bytes={limits.unpacked_bytes}")
    return kind


def listing(archive: zipfile.ZipFile, name: str, limits: ReadLimits) -> Iterator[str]:
    """The members by the paths that read them."""
    yield f"{name} is a zip; its members are read by these paths:"
    for member in limits.most((one for one in archive.infolist() if not one.is_dir()), "members"):
        yield member if isinstance(member, str) else f"{name}/{member.filename} ({member.file_size} bytes)"


def member(data: bytes, path: Sequence[str], limits: ReadLimits, room: int, depth: int = 1) -> bytes:
    """What lies under a path in an archive, or in archives in it."""
    archive = opened(data)
    for end in range(len(path), 0, -1):
        name = "/".join(path[:end])
        if (found := archive.NameToInfo.get(name)) is None or found.is_dir():
            continue
        room -= found.file_size
        if room < 0 or found.file_size > limits.unpacked_bytes:
            raise Unreadable(
                f"{name} unpacks to {found.file_size} bytes: more than unpacked_bytes={limits.unpacked_bytes}"
            )
        try:
            inside = archive.read(found)
        except Exception as error:  # Encrypted, packed in an unknown way, not what its sum says.
            raise Unreadable(f"{name} cannot be unpacked ({type(error).__name__}: {error})") from None
        if end == len(path):
            return inside
        if depth == _DEPTH:
            raise Unreadable(f"{name} lies in {_DEPTH} archives, and no deeper one is opened")
        return member(inside, path[end:], limits, room, depth + 1)
    raise Unreadable(f"has no member {'/'.join(path)!r}; file_reader on the zip itself names its members")
